/* Batches of random calls by the ranks of small worlds, each batch in its own process. usage:
 * soak_inputs SECONDS SEED [BATCH]: for this long, or this one batch again. The last line has the
 * counts. */
#include "soak/inputs.h"
#include "support/folder.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "core/deadline.h"

enum { CASES = 200, HANG_S = 300 };

static const struct {
    const char *name;
    inputs_fn run;
} kinds[] = {{"texts", inputs_texts},
             {"layouts", inputs_layouts},
             {"programs", inputs_programs},
             {"files", inputs_files},
             {"memory", inputs_memory},
             {"worlds", inputs_worlds},
             {"collectives", inputs_collectives},
             {"mixed", inputs_mixed},
             {"copies", inputs_copies},
             {"reshard", inputs_reshard}};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* In memory that the processes share. */
typedef struct batch {
    int ranks, kind;
    uint64_t seed;
    char folder[256];
    _Atomic int at; /* case of rank 0 */
    _Atomic uint64_t calls, refused;
} batch;

struct rank_of {
    batch *all;
    int rank;
    const banyan_unique_id *id;
};

bool input_taken(inputs *of, banyan_status status)
{
    (*of->calls)++;
    *of->refused += status != BANYAN_OK;
    CHECK(status == BANYAN_OK || banyan_last_error()[0] != '\0', "%s without a message",
          banyan_status_name(status));
    CHECK(status >= BANYAN_OK && status <= BANYAN_ERR_NVSHMEM, "status %d", (int)status);
    return status == BANYAN_OK;
}

bool input_taken_by_all(inputs *of, banyan_status status)
{
    int32_t all[INPUTS_MAX_RANKS], mine = status;
    char message[256];
    bool taken = input_taken(of, status);
    snprintf(message, sizeof message, "%s", taken ? "" : banyan_last_error());
    CHECK_OK(banyan_world_allgather(of->world, &mine, sizeof mine, all));
    for (int r = 0; r < banyan_world_size(of->world); r++)
        CHECK((all[r] == BANYAN_OK) == taken, "%s here (%s), %s at rank %d",
              banyan_status_name(status), message, banyan_status_name((banyan_status)all[r]), r);
    return taken;
}

bool input_chance(random_state *random, int one_in)
{
    return random_next(random) % (uint64_t)one_in == 0;
}

int input_int(random_state *random)
{
    static const int edges[] = {-1, INT32_MAX, INT32_MIN, 1 << 20, 255, 256, 1024, 65536};
    return input_chance(random, 4) ? edges[random_next(random) % 8]
                                   : (int)random_between(random, -1, 9);
}

int64_t input_extent(random_state *random)
{
    static const int64_t edges[] = {-1, INT64_MAX, INT64_MIN, INT64_C(1) << 32, INT64_C(1) << 62,
                                    0};
    return input_chance(random, 12) ? edges[random_next(random) % 6]
                                    : random_between(random, 0, 12);
}

DLDataType input_dtype(random_state *random)
{
    static const DLDataType right[] = {{kDLFloat, 32, 1}, {kDLBfloat, 16, 1}, {kDLFloat, 16, 1},
                                       {kDLUInt, 8, 1},   {kDLInt, 64, 1},    {kDLUInt, 32, 1}};
    if (!input_chance(random, 6))
        return right[random_next(random) % 6];
    return (DLDataType){(uint8_t)random_between(random, 0, 20), (uint8_t)random_next(random),
                        (uint16_t)random_between(random, 0, 3)};
}

const char *input_text(random_state *random)
{
    static const char *const parts[] = {"tp=",
                                        "2",
                                        ",",
                                        "pp=",
                                        "dp=1",
                                        "ep=4",
                                        "packing=vllm",
                                        "=",
                                        "-1",
                                        "99999999999999999999",
                                        "world=8",
                                        "fsdp=3",
                                        "model.layers.0.",
                                        "self_attn.q_proj.weight",
                                        "\xff\xfe",
                                        "..",
                                        "/",
                                        "f32",
                                        "torch.bfloat16",
                                        "allreduce",
                                        "one_shot",
                                        "direct",
                                        "%s%n",
                                        "\n",
                                        "\x1b[31m"};
    static _Thread_local char text[2048];
    size_t used = 0;
    if (input_chance(random, 20))
        return NULL;
    text[0] = '\0';
    for (int64_t i = random_between(random, 0, input_chance(random, 20) ? 80 : 6); i > 0; i--)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s",
                                 parts[random_next(random) % (sizeof parts / sizeof parts[0])]);
    return text;
}

static void *be_rank(void *argument)
{
    struct rank_of *rank = argument;
    batch *all = rank->all;
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    char folder[300];
    inputs of = {.together = random_from(all->seed),
                 .alone = random_from(all->seed + 1 + (uint64_t)rank->rank),
                 .folder = folder,
                 .calls = &all->calls,
                 .refused = &all->refused};
    snprintf(folder, sizeof folder, "%s/%d", all->folder, rank->rank);
    CHECK(mkdir(folder, 0700) == 0);
    options.rank = rank->rank;
    options.world_size = all->ranks;
    options.unique_id = rank->id;
    options.timeout_ns = HANG_S * NS_PER_S;
    CHECK_OK(banyan_world_open(&options, &of.world));
    for (int i = 0; i < CASES; i++) {
        if (rank->rank == 0)
            all->at = i;
        kinds[all->kind].run(&of);
    }
    CHECK_OK(banyan_world_close(of.world));
    return NULL;
}

static void no_log(banyan_log_level level, const char *message, void *context)
{
    (void)level;
    (void)message;
    (void)context;
}

static void be_batch(batch *all)
{
    banyan_unique_id id;
    pthread_t threads[INPUTS_MAX_RANKS];
    struct rank_of ranks[INPUTS_MAX_RANKS];
    ranks_become_child();
    setenv("BANYAN_CHECK_CALLS", "1", 1);
    banyan_log_set(no_log, NULL);
    CHECK_OK(banyan_unique_id_create(&id));
    for (int r = 0; r < all->ranks; r++) {
        ranks[r] = (struct rank_of){all, r, &id};
        CHECK(pthread_create(&threads[r], NULL, be_rank, &ranks[r]) == 0);
    }
    for (int r = 0; r < all->ranks; r++)
        pthread_join(threads[r], NULL);
    fflush(NULL);
    exit(0);
}

static struct {
    uint64_t batches, calls, refused, crashes, hangs, wrong;
} found;

static void run_batch(batch *all, uint64_t seed, uint64_t number)
{
    random_state random = random_from(seed * 1000003 + number);
    const char *parent = getenv("TMPDIR");
    memset(all, 0, sizeof *all);
    all->seed = random_next(&random);
    all->kind = (int)(number % KINDS);
    all->ranks = (int)random_between(&random, 1, INPUTS_MAX_RANKS);
    snprintf(all->folder, sizeof all->folder, "%.200s/banyan-soak-XXXXXX",
             parent ? parent : "/tmp");
    CHECK(mkdtemp(all->folder));
    fflush(NULL);
    pid_t child = fork(), ended;
    CHECK(child >= 0);
    if (child == 0)
        be_batch(all);
    int status = 0;
    uint64_t end_ns = time_now_ns() + HANG_S * NS_PER_S;
    while ((ended = waitpid(child, &status, WNOHANG)) == 0 && time_now_ns() < end_ns)
        usleep(1000);
    if (ended == 0) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
    }
    bool failed = WIFEXITED(status) && WEXITSTATUS(status) == 1;
    found.hangs += ended == 0;
    found.wrong += failed;
    found.crashes += ended != 0 && status != 0 && !failed;
    if (status != 0)
        printf("batch %" PRIu64 " (%s, %d ranks), case %d: %s\n", number, kinds[all->kind].name,
               all->ranks, all->at,
               ended == 0            ? "hangs"
               : WIFSIGNALED(status) ? strsignal(WTERMSIG(status))
                                     : "fails");
    nftw(all->folder, folder_remove_one, 16, FTW_DEPTH | FTW_PHYS);
    found.batches++;
    found.calls += all->calls;
    found.refused += all->refused;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: soak_inputs SECONDS SEED [BATCH]\n");
        return 2;
    }
    uint64_t end_ns = time_now_ns() + strtoull(argv[1], NULL, 0) * NS_PER_S;
    uint64_t seed = strtoull(argv[2], NULL, 0), number = argc > 3 ? strtoull(argv[3], NULL, 0) : 0;
    batch *all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(all != MAP_FAILED);
    setvbuf(stdout, NULL, _IOLBF, 0);
    do
        run_batch(all, seed, number++);
    while (argc <= 3 && time_now_ns() < end_ns);
    printf("batches=%" PRIu64 " calls=%" PRIu64 " refused=%" PRIu64 " crashes=%" PRIu64
           " hangs=%" PRIu64 " wrong=%" PRIu64 "\n",
           found.batches, found.calls, found.refused, found.crashes, found.hangs, found.wrong);
    return found.crashes + found.hangs + found.wrong > 0;
}
