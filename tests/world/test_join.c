/* Ranks that die or stop while a world is opened: the others get an error at once, and rank 0,
 * which hosts the rendezvous, observes the deadline too. */
#include "support/test.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/deadline.h"
#include "world/bootstrap/rendezvous.h"

/* In memory that all processes share. */
struct play {
    _Atomic uint64_t ended_ns;
    _Atomic int pid, done;
};

static struct play *play;

struct line {
    uint64_t ns;
    char text[512];
};

static struct line lines[16];
static int line_count;

static void keep_line(banyan_log_level level, const char *message, void *context)
{
    (void)context;
    if (level != BANYAN_LOG_WARN || line_count == 16)
        return;
    lines[line_count].ns = time_now_ns();
    snprintf(lines[line_count++].text, sizeof lines[0].text, "%s", message);
}

static const struct line *find_line(const char *part)
{
    for (int i = 0; i < line_count; i++) {
        if (strstr(lines[i].text, part))
            return &lines[i];
    }
    return NULL;
}

static banyan_status open_rank(int rank, int count, const banyan_unique_id *id, uint64_t timeout_ns,
                               banyan_world **world)
{
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = count;
    options.unique_id = id;
    options.timeout_ns = timeout_ns;
    return banyan_world_open(&options, world);
}

static void die(int signal)
{
    (void)signal;
    play->ended_ns = time_now_ns();
    kill(getpid(), SIGKILL);
}

static void in_200_ms(void (*handler)(int))
{
    struct itimerval fuse = {.it_value.tv_usec = 200000};
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &fuse, NULL);
}

/* Process 1 joins as rank 1 and dies; process 3 takes its place later; rank 2 comes last. */
static void lose_and_replace(int process, int count, const banyan_unique_id *id, void *context)
{
    (void)count;
    bool replaced = *(const bool *)context;
    banyan_world *world = NULL;
    banyan_log_set(keep_line, NULL);
    if (process == 1)
        in_200_ms(die);
    if (process >= 2) {
        usleep(process == 2 ? 1800000 : 1200000);
        if (!replaced)
            return;
    }
    banyan_status status = open_rank(process == 3 ? 1 : process, 3, id,
                                     replaced ? 20 * NS_PER_S : 3 * NS_PER_S / 2, &world);
    if (process != 0) {
        CHECK_OK(status);
        CHECK_OK(banyan_world_close(world));
        return;
    }
    const struct line *line = find_line("rank 1 (pid ");
    CHECK(line && strstr(line->text, "died before all 3 ranks had joined") &&
              strstr(line->text, "another process may take its place"),
          "no line says that it died");
    CHECK(line->ns - play->ended_ns < NS_PER_S, "%.2f s after the death",
          (double)(line->ns - play->ended_ns) / 1e9);
    if (replaced) {
        CHECK_OK(status);
        CHECK(find_line("has taken its place"), "no line says who took its place");
        CHECK_OK(banyan_world_close(world));
        return;
    }
    CHECK(status == BANYAN_ERR_TIMEOUT, "%s", banyan_last_error());
    CHECK(strstr(banyan_last_error(), "rank 1 (died), 2"), "%s", banyan_last_error());
}

static void a_death_while_ranks_join_is_reported_at_once(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        bool replaced = i == 0;
        int statuses[4];
        *play = (struct play){0};
        ranks_fork(4, lose_and_replace, &replaced, statuses);
        for (int process = 0; process < 4; process++)
            assert_true(process == 1 ? WIFSIGNALED(statuses[process]) : statuses[process] == 0);
    }
}

enum { HUNG_UP = 2 };

struct host {
    struct rendezvous_place place;
    struct rendezvous *rendezvous;
    int listener;
};

/* Like an overloaded rendezvous, which may drop a rank among other connections. */
static void *hang_up_and_begin(void *argument)
{
    struct host *host = argument;
    for (int i = 0; i < HUNG_UP; i++) {
        struct pollfd wait = {host->listener, POLLIN, 0};
        CHECK(poll(&wait, 1, 10000) == 1);
        int fd = accept(host->listener, NULL, NULL);
        CHECK(fd >= 0);
        close(fd);
    }
    CHECK_OK(rendezvous_start(&host->place, host->listener, 1, false, &host->rendezvous));
    return NULL;
}

static void a_rank_that_is_hung_up_on_comes_again(void **state)
{
    (void)state;
    struct host host = {.place = {.address_count = 1, .key = {1}}};
    struct join_request request = {.world_size = 1,
                                   .timeout_ns = 20 * NS_PER_S,
                                   .self = {.node = "here", .host = "here", .pid = getpid()}};
    struct member_table table = {0};
    struct joiner joiner = {0};
    pthread_t thread;
    int port;
    address_random_name(host.place.name);
    address_random_name(request.self.name);
    CHECK_OK(address_listen_tcp(true, 0, &host.listener, &port));
    host.place.addresses[0] = address_loopback(port);
    assert_int_equal(pthread_create(&thread, NULL, hang_up_and_begin, &host), 0);
    CHECK_OK(joiner_join(&joiner, &host.place, &request, &table));
    CHECK(strcmp(table.members[0].name, request.self.name) == 0);
    CHECK_OK(joiner_wait_for_all(&joiner));
    joiner_close(&joiner);
    pthread_join(thread, NULL);
    (void)rendezvous_stop(host.rendezvous, NULL);
    free(table.members);
}

static void wait_for_the_last(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)context;
    banyan_world *world;
    banyan_log_set(keep_line, NULL);
    if (rank == 2)
        usleep(900000);
    CHECK_OK(open_rank(rank, count, id, 20 * NS_PER_S, &world));
    if (rank == 0)
        CHECK(find_line("not there yet: rank 2") && line_count <= 8, "%d lines", line_count);
    CHECK_OK(banyan_world_close(world));
}

static void a_rank_that_has_not_joined_is_named_in_the_log(void **state)
{
    (void)state;
    int statuses[3];
    ranks_fork(3, wait_for_the_last, NULL, statuses);
    for (int rank = 0; rank < 3; rank++)
        assert_int_equal(statuses[rank], 0);
}

static void stop(int signal)
{
    (void)signal;
    play->pid = getpid();
    kill(getpid(), SIGSTOP);
}

static void set_number(const char *name, int number)
{
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    setenv(name, text, 1);
}

/* Rank 1 joins and stops, so it never reads the table that rank 0 sends. */
static void open_with_the_stopped(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)id;
    (void)context;
    char job[64];
    banyan_world *world;
    snprintf(job, sizeof job, "stopped-%d", (int)getppid());
    setenv("BANYAN_JOB", job, 1);
    set_number("BANYAN_RANK", rank);
    set_number("BANYAN_WORLD_SIZE", count);
    set_number("BANYAN_LOCAL_RANK", rank);
    set_number("BANYAN_LOCAL_SIZE", count);
    if (rank == 1)
        in_200_ms(stop);
    if (rank == 2)
        usleep(600000);
    uint64_t began_ns = time_now_ns();
    banyan_status status = open_rank(-1, -1, NULL, 2 * NS_PER_S, &world);
    uint64_t took_ns = time_now_ns() - began_ns;
    CHECK(status == BANYAN_ERR_TIMEOUT, "%s: %s", banyan_status_name(status), banyan_last_error());
    CHECK(strstr(banyan_last_error(), "for rank 1 (pid "), "%s", banyan_last_error());
    CHECK(took_ns < 4 * NS_PER_S, "rank %d: %.2f s", rank, (double)took_ns / 1e9);
    if (++play->done == count - 1)
        kill(play->pid, SIGKILL);
}

static void rank_0_keeps_the_deadline_when_a_rank_does_not_take_the_table(void **state)
{
    (void)state;
    int statuses[3];
    *play = (struct play){0};
    ranks_fork(3, open_with_the_stopped, NULL, statuses);
    assert_int_equal(statuses[0], 0);
    assert_int_equal(statuses[2], 0);
}

int main(void)
{
    setenv("BANYAN_WAIT_LOG", "0.2", 1);
    play = mmap(NULL, sizeof *play, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_while_ranks_join_is_reported_at_once),
        cmocka_unit_test(a_rank_that_is_hung_up_on_comes_again),
        cmocka_unit_test(a_rank_that_has_not_joined_is_named_in_the_log),
        cmocka_unit_test(rank_0_keeps_the_deadline_when_a_rank_does_not_take_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
