#include "publish/service.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/files.h"

static volatile sig_atomic_t service_signals;

static void service_take_signal(int number)
{
    (void)number;
    service_signals = 1;
}

void service_catch_signals(void)
{
    struct sigaction action = {.sa_handler = service_take_signal,
                               .sa_flags = (int)SA_RESETHAND | SA_RESTART};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

bool service_ends(void)
{
    return service_signals != 0;
}

banyan_status service_print(json_t *json, const char *text)
{
    char *line = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    if (json && !line)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory for a line of JSON");
    puts(line ? line : text);
    free(line);
    json_decref(json);
    if (!out_file_flush_stdout())
        return banyan_error_set(BANYAN_ERR_SYSTEM, "cannot write to stdout: %s", strerror(errno));
    return BANYAN_OK;
}

const char *service_secret(const char *who)
{
    const char *secret = getenv("BANYAN_SECRET");
    if (secret && *secret)
        return secret;
    fprintf(stderr,
            "%s: BANYAN_SECRET is not set: both sides need the same 32 hexadecimal digits "
            "(openssl rand -hex 16)\n",
            who);
    return NULL;
}
