/* Addresses in the kernel's form and as text. */
#include "support/test.h"

#include <poll.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "world/net/address.h"

/* Others find it by these bytes, without a zero after them. */
static void a_unix_name_is_its_characters_alone(void **state)
{
    (void)state;
    char name[ADDRESS_NAME_BYTES], text[ADDRESS_TEXT_BYTES];
    int fd;
    address_random_name(name);
    struct address address = address_unix(name);
    CHECK_OK(address_listen(&address, &fd));
    struct sockaddr_un bound = {0};
    socklen_t bytes = sizeof bound;
    CHECK(getsockname(fd, (struct sockaddr *)&bound, &bytes) == 0);
    CHECK(bytes == offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
    CHECK(bound.sun_path[0] == '\0' && memcmp(bound.sun_path + 1, name, strlen(name)) == 0);
    CHECK(address_text(&address, text)[0] == '@' && strcmp(text + 1, name) == 0, "%s", text);
    close(fd);
}

/* The kernel keeps the port of a connection that this side closed first. */
static void a_port_can_be_listened_at_again_at_once(void **state)
{
    (void)state;
    int listener, port, client, error;
    CHECK_OK(address_listen_tcp(true, 0, &listener, &port));
    struct address address = address_loopback(port);
    address_connect(&address, &client, &error);
    struct pollfd ways[] = {{client, POLLOUT, 0}, {listener, POLLIN, 0}};
    CHECK(poll(&ways[0], 1, 10000) == 1 && send(client, "x", 1, 0) == 1);
    CHECK(poll(&ways[1], 1, 10000) == 1);
    char sent;
    int server = accept(listener, NULL, NULL);
    CHECK(server >= 0 && recv(server, &sent, 1, 0) == 1);
    close(server);
    CHECK(poll(&(struct pollfd){client, POLLIN, 0}, 1, 10000) == 1);
    close(client);
    close(listener);
    CHECK_OK(address_listen_tcp(true, port, &listener, &port));
    close(listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_unix_name_is_its_characters_alone),
        cmocka_unit_test(a_port_can_be_listened_at_again_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
