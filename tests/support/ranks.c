#include "support/nodes.h"
#include "support/test.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* cmocka's handlers would treat a crash of this process as a failed test and continue with the
 * next one. */
void ranks_become_child(void)
{
    const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGSYS};
    for (size_t i = 0; i < sizeof crashes / sizeof crashes[0]; i++)
        signal(crashes[i], SIG_DFL);
    ranks_in_child = true;
}

int ranks_networks(void)
{
    const char *text = getenv("BANYAN_TEST_NETWORK");
    return text ? atoi(text) : 0;
}

static void enter_network(int rank, int count)
{
    if (ranks_networks() > 0)
        nodes_enter(rank * ranks_networks() / count);
}

/* A separate process answers the ranks. This one then has a single thread when it forks them; the
 * helper ends with it. */
static pid_t host_unique_id(banyan_unique_id *id)
{
    int channel[2];
    assert_int_equal(pipe2(channel, O_CLOEXEC), 0);
    fflush(NULL);
    pid_t host = fork();
    assert_true(host >= 0);
    if (host == 0) {
        ranks_become_child();
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        enter_network(0, 1);
        CHECK_OK(banyan_unique_id_create(id));
        CHECK(write(channel[1], id, sizeof *id) == sizeof *id);
        for (;;)
            pause();
    }
    close(channel[1]);
    assert_int_equal(read(channel[0], id, sizeof *id), sizeof *id);
    close(channel[0]);
    return host;
}

static void fork_here(int count, ranks_raw_fn fn, void *context, int *statuses)
{
    banyan_unique_id id;
    pid_t host = host_unique_id(&id);
    pid_t *children = calloc((size_t)count, sizeof *children);
    fflush(NULL);
    for (int rank = 0; rank < count; rank++) {
        children[rank] = fork();
        assert_true(children[rank] >= 0);
        if (children[rank] == 0) {
            ranks_become_child();
            enter_network(rank, count);
            fn(rank, count, &id, context);
            fflush(NULL);
            _exit(0);
        }
    }
    for (int rank = 0; rank < count; rank++)
        assert_int_equal(waitpid(children[rank], &statuses[rank], 0), children[rank]);
    kill(host, SIGKILL);
    waitpid(host, NULL, 0);
    free(children);
}

void ranks_in_networks(int nodes, void (*fn)(void *context), void *context)
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        ranks_become_child();
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        const char *why_not = nodes > 0 ? nodes_make(nodes) : NULL;
        if (why_not)
            printf("skipped: %s\n", why_not);
        else
            fn(context);
        fflush(NULL);
        _exit(why_not ? 77 : 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        exit(77);
    assert_int_equal(status, 0);
}

struct fork_arguments {
    int count;
    ranks_raw_fn fn;
    void *context;
    int *statuses;
};

static void fork_in_network(void *context)
{
    const struct fork_arguments *arguments = context;
    fork_here(arguments->count, arguments->fn, arguments->context, arguments->statuses);
}

static void fork_in_networks(int count, ranks_raw_fn fn, void *context, int *statuses)
{
    size_t bytes = (size_t)count * sizeof *statuses;
    int *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    struct fork_arguments arguments = {count, fn, context, shared};
    ranks_in_networks(ranks_networks(), fork_in_network, &arguments);
    memcpy(statuses, shared, bytes);
    munmap(shared, bytes);
}

void ranks_fork(int count, ranks_raw_fn fn, void *context, int *statuses)
{
    (ranks_networks() > 0 ? fork_in_networks : fork_here)(count, fn, context, statuses);
}

void ranks_fork_and_lose_one(ranks_raw_fn fn, void *context)
{
    int statuses[2];
    ranks_fork(2, fn, context, statuses);
    assert_int_equal(statuses[0], 0);
    assert_true(WIFSIGNALED(statuses[1]));
}

struct world_run {
    ranks_fn fn;
    void *context;
    int rank, count;
    const banyan_unique_id *id;
};

banyan_world *ranks_open_world(int rank, int count, const banyan_unique_id *id, uint64_t timeout_ns)
{
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = count;
    options.unique_id = id;
    options.timeout_ns = timeout_ns;
    char node[16];
    const char *nodes = getenv("BANYAN_TEST_NODES");
    if (nodes) {
        snprintf(node, sizeof node, "node%d", rank * atoi(nodes) / count);
        options.node = node;
    }
    banyan_world *world = NULL;
    CHECK_OK(banyan_world_open(&options, &world));
    return world;
}

void ranks_force_user_memory(const char *path)
{
    if (path)
        setenv("BANYAN_USER_MEMORY", path, 1);
    else
        unsetenv("BANYAN_USER_MEMORY");
}

static void run_in_world(const struct world_run *run)
{
    banyan_world *world = ranks_open_world(run->rank, run->count, run->id, 0);
    run->fn(world, run->context);
    CHECK_OK(banyan_world_close(world));
}

static void run_process(int rank, int count, const banyan_unique_id *id, void *context)
{
    struct world_run run = *(struct world_run *)context;
    run.rank = rank;
    run.count = count;
    run.id = id;
    run_in_world(&run);
}

void ranks_run(int count, ranks_fn fn, void *context)
{
    struct world_run run = {.fn = fn, .context = context};
    int *statuses = calloc((size_t)count, sizeof *statuses);
    ranks_fork(count, run_process, &run, statuses);
    int failed = 0;
    for (int rank = 0; rank < count; rank++) {
        if (statuses[rank] != 0) {
            fprintf(stderr, "rank %d of %d ended with wait status %#x\n", rank, count,
                    (unsigned)statuses[rank]);
            failed++;
        }
    }
    free(statuses);
    assert_int_equal(failed, 0);
}

static void *run_thread(void *argument)
{
    run_in_world(argument);
    return NULL;
}

/* The threads live in a forked child, so that a failing rank ends all of them. */
void ranks_run_threads(int count, ranks_fn fn, void *context)
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        ranks_become_child();
        banyan_unique_id id;
        CHECK_OK(banyan_unique_id_create(&id));
        pthread_t *threads = calloc((size_t)count, sizeof *threads);
        struct world_run *runs = calloc((size_t)count, sizeof *runs);
        for (int rank = 0; rank < count; rank++) {
            runs[rank] = (struct world_run){fn, context, rank, count, &id};
            CHECK(pthread_create(&threads[rank], NULL, run_thread, &runs[rank]) == 0);
        }
        for (int rank = 0; rank < count; rank++)
            pthread_join(threads[rank], NULL);
        free(threads);
        free(runs);
        exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}
