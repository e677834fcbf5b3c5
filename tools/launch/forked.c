#include "launch/forked.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "launch/launch.h"

static int read_environment_count(const char *name, int otherwise)
{
    const char *text = getenv(name);
    char *end;
    long count = text ? strtol(text, &end, 10) : otherwise;
    return text && (*end != '\0' || end == text || count < 0 || count > INT_MAX) ? otherwise
                                                                                 : (int)count;
}

job_place job_place_find(void)
{
    static const char *const sources[][2] = {
        {"BANYAN_RANK", "BANYAN_WORLD_SIZE"},
        {"RANK", "WORLD_SIZE"},
        {"PMIX_RANK", "OMPI_COMM_WORLD_SIZE"},
        {"PMIX_RANK", "SLURM_STEP_NUM_TASKS"},
    };
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        job_place found = {read_environment_count(sources[i][0], -1),
                           read_environment_count(sources[i][1], 0)};
        if (found.rank >= 0 && found.rank < found.size)
            return found;
    }
    return (job_place){.size = 1};
}

int job_run(const char *who, int ranks, int (*rank_main)(int rank, void *context), void *context,
            failure *noted)
{
    job_place place = job_place_find();
    char text[FAILURE_TEXT_BYTES];
    if (place.size <= 1)
        return forked_run(who, ranks, rank_main, context, noted);
    if (place.size != ranks) {
        fprintf(
            stderr,
            "%s: this process is rank %d of a job of %d, and the command is for %d ranks: start "
            "%d, or unset the launcher's variables to start them on this machine\n",
            who, place.rank, place.size, ranks, ranks);
        return 1;
    }
    signal(SIGXFSZ, SIG_IGN);
    int code = rank_main(place.rank, context);
    const char *message = failure_message(noted, text);
    if (message)
        fprintf(stderr, "%s: %s\n", who, message);
    return code;
}

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
    const char *message = failure_message(noted, text);
    if (message)
        fprintf(stderr, "%s: %s\n", who, message);
    else if (code != 0 && code < LAUNCH_SIGNALLED)
        fprintf(stderr, "%s: a rank ended with code %d without a message\n", who, code);
    return code;
}

failure *failure_create(void)
{
    void *shared =
        mmap(NULL, sizeof(failure), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return shared == MAP_FAILED ? NULL : shared;
}

void failure_destroy(failure *shared)
{
    if (shared)
        munmap(shared, sizeof *shared);
}

void failure_note(failure *shared, int rank, banyan_status status)
{
    bool follows = status == BANYAN_ERR_PEER_LOST || status == BANYAN_ERR_ABORTED;
    failure_slot *slot = follows ? &shared->consequence : &shared->cause;
    if (atomic_exchange(&slot->taken, true))
        return;
    slot->rank = rank;
    snprintf(slot->message, sizeof slot->message, "%s", banyan_last_error());
}

/* Return the message. One that all ranks agreed on names its rank already. */
const char *failure_message(const failure *shared, char text[FAILURE_TEXT_BYTES])
{
    const failure_slot *slot =
        atomic_load(&shared->cause.taken) ? &shared->cause : &shared->consequence;
    if (!atomic_load(&slot->taken))
        return NULL;
    if (strncmp(slot->message, "rank ", 5) == 0)
        return slot->message;
    snprintf(text, FAILURE_TEXT_BYTES, "rank %d: %s", slot->rank, slot->message);
    return text;
}

int under_mpi_rank(void)
{
    const char *rank = getenv("PMIX_RANK");
    return rank && getenv("PMIX_NAMESPACE") ? atoi(rank) : -1;
}

/* Open MPI refuses more ranks than cores, and root, unless its own variables allow it. Set these,
 * so that the command line fits every mpirun. Variables that the user has set stay. */
static void allow_what_forks_are_allowed(void)
{
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 0);
    setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
}

int under_mpi_start(const char *who, int count, char **argv)
{
    char program[4096], ranks[16];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    int words = 0;
    while (argv[words])
        words++;
    const char **command = calloc((size_t)words + 5, sizeof *command);
    if (length < 0 || !command) {
        fprintf(stderr, "%s: out of memory\n", who);
        free((void *)command);
        return 1;
    }
    program[length] = '\0';
    snprintf(ranks, sizeof ranks, "%d", count);
    command[0] = "mpirun";
    command[1] = "-n";
    command[2] = ranks;
    command[3] = program;
    for (int i = 0; i < words; i++)
        command[4 + i] = argv[i];
    allow_what_forks_are_allowed();
    execvp(command[0], (char *const *)command);
    fprintf(stderr, "%s: --backend mpi starts its ranks with mpirun, which cannot be run: %s\n",
            who, strerror(errno));
    free((void *)command);
    return 127;
}
