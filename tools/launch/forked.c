#include "launch/forked.h"

#include <signal.h>
#include <stdio.h>

#include "launch/launch.h"

int forked_run(const char *who, int ranks, int (*rank_main)(int rank, void *context), void *context,
               failure *noted)
{
    if (ranks > LAUNCH_MAX_RANKS) {
        fprintf(stderr, "%s: %d ranks are more than the %d that one machine is given\n", who, ranks,
                LAUNCH_MAX_RANKS);
        return 1;
    }
    launch_job job = {.who = who,
                      .count = ranks,
                      .rank_main = rank_main,
                      .context = context,
                      .ranks_explain = true};
    signal(SIGXFSZ, SIG_IGN); /* a file that grows too long causes an error with a message */
    int code = launch_run(&job);
    char text[FAILURE_TEXT_BYTES];
    const char *sentence = failure_sentence(noted, text);
    if (sentence)
        fprintf(stderr, "%s: %s\n", who, sentence);
    else if (code != 0 && code < LAUNCH_SIGNALLED)
        fprintf(stderr, "%s: a rank ended with code %d and did not say why\n", who, code);
    return code;
}
