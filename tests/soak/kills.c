/* Jobs of 2 to 8 ranks in which ranks are killed, or stopped for a while, at random times.
 * Survivors must end soon with PEER_LOST and a dead rank's number, after correct results only;
 * stopped ranks must not disturb a job; and nothing may be left behind. usage: soak_kills SECONDS
 * SEED [JOB]: for this long, or this one job again. The last line has the counts. */
#include "soak/job.h"
#include "support/folder.h"

#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <banyan/checkpoint.h>

#include "core/deadline.h"

enum {
    WORLD_TIMEOUT_S = 30, /* limit after a rank's death before all have joined */
    HANG_S = 90,
    LATE_MS = 2000, /* survivors of a complete world must end sooner */
    STOP_MOST_MS = 1500
};

static const struct {
    const char *name;
    job_fn run;
} kinds[] = {{"collectives", job_collectives},
             {"plans", job_plans},
             {"mixed", job_mixed},
             {"reshard", job_reshard},
             {"save", job_save},
             {"worlds", job_worlds},
             {"memory", job_memory}};

typedef enum disturbance { NONE, KILL, TERMINATE, KILL_TWO, STOP, DISTURBANCES } disturbance;
static const char *const disturbance_names[] = {"nothing", "SIGKILL", "SIGTERM", "two SIGKILL",
                                                "SIGSTOP"};

/* In memory that the processes share. */
typedef struct rank_end {
    _Atomic bool joined, ended;
    _Atomic uint64_t ended_ns;
    banyan_status status;
    char message[512];
} rank_end;

typedef struct play {
    int kind, ranks, victims[2], victim_count;
    disturbance what;
    bool early; /* the death came before all have joined */
    uint64_t seed, delay_ns, stop_ns;
    char folder[256];
    _Atomic int stop;
    rank_end of[JOB_MAX_RANKS];
} play;

static struct {
    uint64_t jobs, kills, stops, crashes, hangs, wrong, late, left, unnamed, longest_ns;
} found;

banyan_status job_next(job *of, bool *more)
{
    int stop = *of->stop;
    banyan_status status = banyan_world_broadcast(of->world, &stop, sizeof stop, 0);
    *more = status == BANYAN_OK && !stop;
    of->rounds++;
    return status;
}

static void no_log(banyan_log_level level, const char *message, void *context)
{
    (void)level;
    (void)message;
    (void)context;
}

static void be_rank(play *all, int rank, const banyan_unique_id *id)
{
    rank_end *end = &all->of[rank];
    job of = {.random = random_from(all->seed), .folder = all->folder, .stop = &all->stop};
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = all->ranks;
    options.unique_id = id;
    options.timeout_ns = WORLD_TIMEOUT_S * NS_PER_S;
    banyan_status status = banyan_world_open(&options, &of.world);
    end->joined = status == BANYAN_OK;
    if (end->joined)
        status = kinds[all->kind].run(&of);
    end->ended_ns = time_now_ns();
    snprintf(end->message, sizeof end->message, "%s",
             status == BANYAN_OK ? "" : banyan_last_error());
    banyan_status closed = end->joined ? banyan_world_close(of.world) : BANYAN_OK;
    if (status == BANYAN_OK && closed != BANYAN_OK)
        snprintf(end->message, sizeof end->message, "at the end: %s", banyan_last_error());
    end->status = status != BANYAN_OK ? status : closed;
    end->ended = true;
}

/* A separate process answers the ranks' first request, like `banyan launch`. */
static pid_t begin_id(banyan_unique_id *id)
{
    int channel[2];
    CHECK(pipe(channel) == 0);
    pid_t host = fork();
    CHECK(host >= 0);
    if (host == 0) {
        ranks_become_child();
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        CHECK_OK(banyan_unique_id_create(id));
        CHECK(write(channel[1], id, sizeof *id) == sizeof *id);
        for (;;)
            pause();
    }
    close(channel[1]);
    CHECK(read(channel[0], id, sizeof *id) == sizeof *id);
    close(channel[0]);
    return host;
}

static bool all_joined(const play *all)
{
    for (int r = 0; r < all->ranks; r++) {
        if (!all->of[r].joined)
            return false;
    }
    return true;
}

static void sleep_ns(uint64_t ns)
{
    usleep((useconds_t)(ns / 1000));
}

static bool is_victim(const play *all, int rank)
{
    bool is = false;
    for (int i = 0; i < all->victim_count; i++)
        is |= all->victims[i] == rank;
    return is;
}

/* Returns when the first signal was sent. */
static uint64_t disturb(play *all, const pid_t *pids)
{
    uint64_t began_ns = time_now_ns();
    while (!all->early && !all_joined(all) && time_now_ns() - began_ns < HANG_S * NS_PER_S)
        usleep(500);
    sleep_ns(all->delay_ns);
    uint64_t sent_ns = time_now_ns();
    int number = all->what == TERMINATE ? SIGTERM : all->what == STOP ? SIGSTOP : SIGKILL;
    for (int i = 0; i < all->victim_count; i++)
        kill(pids[all->victims[i]], number);
    if (all->what == STOP) {
        sleep_ns(all->stop_ns);
        kill(pids[all->victims[0]], SIGCONT);
        found.stops++;
    } else if (all->what != NONE) {
        found.kills++;
    }
    if (all->what == NONE || all->what == STOP)
        all->stop = 1;
    return sent_ns;
}

static void complain(const play *all, uint64_t number, int rank, const char *what, uint64_t *count)
{
    (*count)++;
    printf("job %" PRIu64 " (%s, %d ranks, %s of rank %d%s, %.1f ms): rank %d %s: %s\n", number,
           kinds[all->kind].name, all->ranks, disturbance_names[all->what], all->victims[0],
           all->early ? " while joining" : "", (double)all->delay_ns / 1e6, rank, what,
           rank >= 0 ? all->of[rank].message : banyan_last_error());
}

static bool names_a_victim(const play *all, const char *message)
{
    char name[16];
    bool found_one = false;
    for (int i = 0; i < all->victim_count; i++) {
        int length = snprintf(name, sizeof name, "rank %d", all->victims[i]);
        for (const char *at = strstr(message, name); at; at = strstr(at + 1, name))
            found_one |= at[length] < '0' || at[length] > '9';
    }
    return found_one;
}

static void check_end(const play *all, uint64_t number, int rank, int status, uint64_t sent_ns)
{
    const rank_end *end = &all->of[rank];
    bool dies = all->what != NONE && all->what != STOP;
    if (WIFSIGNALED(status)) {
        complain(all, number, rank, strsignal(WTERMSIG(status)),
                 WTERMSIG(status) == SIGKILL ? &found.hangs : &found.crashes);
    } else if (WEXITSTATUS(status) != 0 || !end->ended) {
        complain(all, number, rank, "found wrong data, or was ended by a sanitizer", &found.wrong);
    } else if (!dies && end->status != BANYAN_OK) {
        complain(all, number, rank, banyan_status_name(end->status), &found.unnamed);
    } else if (dies) {
        bool whole = all_joined(all);
        uint64_t took_ns = end->ended_ns > sent_ns ? end->ended_ns - sent_ns : 0;
        bool is_right =
            end->status == BANYAN_ERR_PEER_LOST || (!whole && end->status == BANYAN_ERR_TIMEOUT);
        if (!is_right || !names_a_victim(all, end->message))
            complain(all, number, rank, banyan_status_name(end->status), &found.unnamed);
        if (whole && took_ns > found.longest_ns)
            found.longest_ns = took_ns;
        if (whole && took_ns > LATE_MS * NS_PER_MS)
            complain(all, number, rank, "ended late", &found.late);
    }
}

/* Saved folders are complete, and there is nothing else but a killed writer's hidden folder, which
 * the next one removes (docs/checkpoints.md). */
static void check_folder(const play *all, uint64_t number)
{
    DIR *folder = opendir(all->folder);
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        banyan_checkpoint *checkpoint = NULL;
        char path[600];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            strncmp(entry->d_name, ".banyan-", 8) == 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", all->folder, entry->d_name);
        if (strncmp(entry->d_name, "saved-", 6) != 0 ||
            banyan_checkpoint_open(path, &checkpoint) != BANYAN_OK)
            complain(all, number, -1, entry->d_name, &found.left);
        banyan_checkpoint_close(checkpoint);
    }
    if (folder)
        closedir(folder);
    nftw(all->folder, folder_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* This process is the parent of orphans. */
static void check_orphans(const play *all, uint64_t number)
{
    uint64_t end_ns = time_now_ns() + NS_PER_S;
    pid_t child;
    while ((child = waitpid(-1, NULL, WNOHANG)) == 0 && time_now_ns() < end_ns)
        usleep(1000);
    if (child == 0)
        complain(all, number, -1, "processes are left", &found.left);
}

static void draw(play *all, uint64_t seed, uint64_t number)
{
    random_state random = random_from(seed * 1000003 + number);
    all->seed = random_next(&random);
    all->kind = (int)random_between(&random, 0, (int64_t)(sizeof kinds / sizeof kinds[0]) - 1);
    all->ranks = (int)random_between(&random, 2, JOB_MAX_RANKS);
    all->what = (disturbance)random_between(&random, 0, 9);
    if (all->what >= DISTURBANCES)
        all->what = KILL;
    if (all->what == KILL_TWO && all->ranks == 2)
        all->what = KILL;
    all->victims[0] = (int)random_between(&random, 0, all->ranks - 1);
    all->victims[1] =
        (all->victims[0] + (int)random_between(&random, 1, all->ranks - 1)) % all->ranks;
    all->victim_count = all->what == NONE ? 0 : all->what == KILL_TWO ? 2 : 1;
    all->early = all->what != STOP && random_next(&random) % 10 == 0;
    all->delay_ns = (uint64_t)random_between(&random, 0, all->early ? 30 : 300) * NS_PER_MS +
                    random_next(&random) % NS_PER_MS;
    all->stop_ns = (uint64_t)random_between(&random, 1, STOP_MOST_MS) * NS_PER_MS;
}

static void run_job(play *all, uint64_t seed, uint64_t number)
{
    memset(all, 0, sizeof *all);
    draw(all, seed, number);
    const char *parent = getenv("TMPDIR");
    snprintf(all->folder, sizeof all->folder, "%.200s/banyan-soak-XXXXXX",
             parent ? parent : "/tmp");
    CHECK(mkdtemp(all->folder), "no folder in %s", parent);
    banyan_unique_id id;
    pid_t host = begin_id(&id), pids[JOB_MAX_RANKS];
    fflush(NULL);
    for (int r = 0; r < all->ranks; r++) {
        pids[r] = fork();
        CHECK(pids[r] >= 0);
        if (pids[r] == 0) {
            ranks_become_child();
            be_rank(all, r, &id);
            fflush(NULL);
            exit(0);
        }
    }
    uint64_t sent_ns = disturb(all, pids), end_ns = sent_ns + HANG_S * NS_PER_S;
    for (int r = 0; r < all->ranks; r++) {
        int status = 0;
        pid_t ended;
        while ((ended = waitpid(pids[r], &status, WNOHANG)) == 0 && time_now_ns() < end_ns)
            usleep(500);
        if (ended == 0) {
            kill(pids[r], SIGKILL);
            waitpid(pids[r], &status, 0);
        }
        if (!is_victim(all, r) || all->what == STOP)
            check_end(all, number, r, status, sent_ns);
    }
    kill(host, SIGKILL);
    waitpid(host, NULL, 0);
    check_orphans(all, number);
    check_folder(all, number);
    found.jobs++;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: soak_kills SECONDS SEED [JOB]\n");
        return 2;
    }
    uint64_t end_ns = time_now_ns() + strtoull(argv[1], NULL, 0) * NS_PER_S;
    uint64_t seed = strtoull(argv[2], NULL, 0), number = argc > 3 ? strtoull(argv[3], NULL, 0) : 0;
    banyan_log_set(no_log, NULL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    play *all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(all != MAP_FAILED);
    ranks_become_child();
    setvbuf(stdout, NULL, _IOLBF, 0);
    do
        run_job(all, seed, number++);
    while (argc <= 3 && time_now_ns() < end_ns);
    printf("jobs=%" PRIu64 " kills=%" PRIu64 " stops=%" PRIu64 " crashes=%" PRIu64 " hangs=%" PRIu64
           " wrong=%" PRIu64 " late=%" PRIu64 " left=%" PRIu64 " unnamed=%" PRIu64
           " longest_ms=%" PRIu64 "\n",
           found.jobs, found.kills, found.stops, found.crashes, found.hangs, found.wrong,
           found.late, found.left, found.unnamed, found.longest_ns / NS_PER_MS);
    return found.crashes + found.hangs + found.wrong + found.late + found.left + found.unnamed > 0;
}
