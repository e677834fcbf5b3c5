#include "faults/job.h"

#include <errno.h>
#include <execinfo.h>
#include <fnmatch.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/deadline.h"
#include "core/threads/sanitizer.h"
#include "support/descriptors.h"
#include "support/folder.h"

#define MOST_RANKS 4
#define MESSAGE_BYTES 1024
/* A rank must return within BOUND_NS, and within IDLE_BOUND_NS if the time in which ranks wait for
 * a processor does not count. A wait for a missing rank would take TIMEOUT_NS. */
#define BOUND_NS (5 * NS_PER_S)
#define IDLE_BOUND_NS NS_PER_S
#define TIMEOUT_NS (120 * NS_PER_S)
/* No call needs more descriptors. */
#define MOST_DESCRIPTORS 24
/* Runs in which sites are listed: some calls depend on the order of events. */
#define ATTEMPTS 3

enum phase { PREPARING, CALLING, CALLED, AGAIN, FINISHING, DONE };
static const char *const phase_names[] = {"preparing",          "in the call", "after the call",
                                          "in the second call", "finishing",   "done"};

struct outcome {
    atomic_int phase;
    banyan_status status;
    char message[MESSAGE_BYTES];
    uint64_t took_ns, starved_ns;
    banyan_status world; /* after the call */
    char world_message[MESSAGE_BYTES];
    banyan_status again;
    char again_message[MESSAGE_BYTES];
    size_t left_open;
    size_t left_threads;
    bool has_failed; /* the call into the C library */
    uint64_t stack[INJECT_DEPTH];
};

struct job {
    const job_case *of;
    int ranks, failing;
    const inject_one *one; /* NULL: count */
    char folder[256];
    struct shared {
        atomic_int at_gate[8];
        struct outcome of_rank[MOST_RANKS];
        inject_sites sites; /* of the failing rank, in a run without a fault */
    } * shared;
};

static void pass_gate(const struct job *job, int gate)
{
    atomic_fetch_add(&job->shared->at_gate[gate], 1);
    while (atomic_load(&job->shared->at_gate[gate]) < job->ranks)
        usleep(200);
}

static size_t threads_here(void)
{
    size_t count = 0;
    DIR *folder = opendir("/proc/self/task");
    while (folder && readdir(folder))
        count++;
    if (folder)
        closedir(folder);
    return count;
}

/* Return the time for which threads of this process waited for a processor. */
static uint64_t starved_ns(void)
{
    unsigned long long ns, sum = 0;
    char path[300];
    DIR *folder = opendir("/proc/self/task");
    for (struct dirent *task; folder && (task = readdir(folder));) {
        snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", task->d_name);
        FILE *file = fopen(path, "r");
        if (file && fscanf(file, "%*u %llu", &ns) == 1)
            sum += ns;
        if (file)
            fclose(file);
    }
    if (folder)
        closedir(folder);
    return sum;
}

static banyan_status kept(banyan_status status, char message[MESSAGE_BYTES])
{
    snprintf(message, MESSAGE_BYTES, "%s", status == BANYAN_OK ? "" : banyan_last_error());
    return status;
}

static void call_with_fault(const struct job *job, job_rank *r, struct outcome *mine)
{
    bool fails = r->rank == job->failing;
    pass_gate(job, 0);
    atomic_store(&mine->phase, CALLING);
    uint64_t starved_before_ns = starved_ns(), began_ns = time_now_ns();
    if (fails)
        inject_begin(job->one, mine->stack, &job->shared->sites);
    banyan_status status = job->of->call(r);
    if (fails)
        mine->has_failed = inject_end();
    mine->took_ns = time_now_ns() - began_ns;
    uint64_t starved_after_ns = starved_ns(); /* without threads that have ended */
    if (starved_after_ns > starved_before_ns)
        mine->starved_ns = starved_after_ns - starved_before_ns;
    mine->status = kept(status, mine->message);
    atomic_store(&mine->phase, CALLED);
    pass_gate(job, 1);
}

static bool any_failed(const struct job *job, bool *all)
{
    bool any = false;
    *all = true;
    for (int i = 0; i < job->ranks; i++) {
        any |= job->shared->of_rank[i].status != BANYAN_OK;
        *all &= job->shared->of_rank[i].status != BANYAN_OK;
    }
    return any;
}

/* Return the state of the world, after the time in which all ranks learn that it has ended. */
static banyan_status world_state(const struct job *job, const job_rank *r)
{
    bool all, any = any_failed(job, &all);
    /* A read of the reactor may fail when the call has already ended well. */
    bool is_late = job->one && job->one->site.kind == INJECT_RECV;
    uint64_t deadline = deadline_after(any || is_late ? NS_PER_S / 20 : 0);
    if (!r->world)
        return BANYAN_OK;
    while (banyan_world_check(r->world) == BANYAN_OK && deadline_left_ns(deadline) > 0)
        usleep(1000);
    return banyan_world_check(r->world);
}

static void call_again(const struct job *job, job_rank *r, struct outcome *mine)
{
    mine->world = kept(world_state(job, r), mine->world_message);
    pass_gate(job, 2);
    atomic_store(&mine->phase, AGAIN);
    bool usable = true, all_failed;
    bool any = any_failed(job, &all_failed);
    for (int i = 0; i < job->ranks; i++)
        usable &= job->shared->of_rank[i].world == BANYAN_OK;
    if (mine->status == BANYAN_OK && job->of->undo && usable)
        job->of->undo(r);
    bool may_call = any ? all_failed : !job->of->opens_world;
    if (usable && !job->of->only_once && may_call) {
        mine->again = kept(job->of->call(r), mine->again_message);
        if (mine->again == BANYAN_OK && job->of->undo)
            job->of->undo(r);
    }
    pass_gate(job, 3);
}

/* Print the call stack of a crash and where the program is loaded, for addr2line. */
static void report_crash(int number)
{
    void *places[40];
    backtrace_symbols_fd(places, backtrace(places, 40), STDOUT_FILENO);
    signal(number, SIG_DFL);
    raise(number);
}

static void run_rank(const struct job *job, int rank, const banyan_unique_id *id)
{
    signal(SIGSEGV, report_crash);
    signal(SIGBUS, report_crash);
    signal(SIGABRT, report_crash);
    struct outcome *mine = &job->shared->of_rank[rank];
    job_rank r = {.rank = rank, .count = job->ranks, .id = id, .folder = job->folder};
    size_t open_before = open_descriptors();
    r.timeout_ns = TIMEOUT_NS;
    if (job->of->two_nodes)
        setenv("BANYAN_NODE", rank < job->ranks / 2 ? "first" : "second", 1);
    if (!job->of->opens_world)
        r.world = ranks_open_world(rank, job->ranks, id, TIMEOUT_NS);
    if (job->of->prepare)
        job->of->prepare(&r);
    call_with_fault(job, &r, mine);
    call_again(job, &r, mine);
    atomic_store(&mine->phase, FINISHING);
    if (job->of->finish)
        job->of->finish(&r);
    if (r.world)
        (void)banyan_world_close(r.world);
    mine->left_open = open_descriptors() - open_before;
    if (mine->left_open <= job->of->keeps_descriptors)
        mine->left_open = 0;
    /* A joined thread may still be listed for a moment. */
    for (int i = 0; i < 200 && !job->of->keeps_threads && threads_here() > 3; i++)
        usleep(1000);
    mine->left_threads = job->of->keeps_threads ? 0 : threads_here() - 3;
    atomic_store(&mine->phase, DONE);
}

static pid_t host_id(banyan_unique_id *id)
{
    int channel[2];
    CHECK(pipe2(channel, 0) == 0);
    fflush(NULL);
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

/* Wait for the ranks, and kill those that take longer than the bound. */
static void wait_for_ranks(const struct job *job, const pid_t *children, int *statuses)
{
    int left = job->ranks;
    uint64_t deadline = 0;
    for (int i = 0; i < job->ranks; i++)
        statuses[i] = -1;
    while (left > 0) {
        for (int i = 0; i < job->ranks; i++) {
            if (statuses[i] != -1 || waitpid(children[i], &statuses[i], WNOHANG) != children[i])
                continue;
            left--;
            if (statuses[i] != 0) /* the others wait for it */
                deadline = deadline_after(NS_PER_S);
        }
        if (deadline == 0 && atomic_load(&job->shared->at_gate[0]) == job->ranks)
            deadline = deadline_after(2 * BOUND_NS);
        else if (deadline != 0 && deadline_left_ns(deadline) == 0)
            break;
        usleep(300);
    }
    for (int i = 0; i < job->ranks && left > 0; i++) {
        if (statuses[i] != -1)
            continue;
        kill(children[i], SIGKILL);
        waitpid(children[i], &statuses[i], 0);
    }
}

static void run_job(struct job *job, int *statuses)
{
    banyan_unique_id id;
    pid_t children[MOST_RANKS];
    memset(job->shared, 0, sizeof *job->shared);
    pid_t host = host_id(&id);
    for (int rank = 0; rank < job->ranks; rank++) {
        children[rank] = fork();
        CHECK(children[rank] >= 0);
        if (children[rank] == 0) {
            ranks_become_child();
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            run_rank(job, rank, &id);
            fflush(NULL);
            _exit(0);
        }
    }
    wait_for_ranks(job, children, statuses);
    kill(host, SIGKILL);
    waitpid(host, NULL, 0);
}

static bool names_cause(const struct job *job, const char *message)
{
    char number[32];
    snprintf(number, sizeof number, "(errno %d)", job->one->error);
    return strstr(message, strerror(job->one->error)) || strstr(message, number) ||
           ((job->one->error == ENOMEM || job->one->site.kind <= INJECT_TEXT) &&
            strstr(message, "memory")) ||
           (job->one->error == EMFILE &&
            (strstr(message, "oo many open files") || strstr(message, "raise the limit"))) ||
           /* A driver has its own error for a lack of descriptors. */
           (job->one->site.kind == INJECT_RUN_OUT && strstr(message, "CUDA_ERROR")) ||
           (job->of->foreign && strstr(message, job->of->foreign)) ||
           (job->one->error == ENOSPC && strstr(message, "disk is full")) ||
           (job->one->error == EFAULT && strstr(message, "memory is missing"));
}

/* True for a message that names two ranks: "rank 0: rank 2: out of memory". */
static bool is_named_twice(const char *message)
{
    int rank, at = 0;
    if (sscanf(message, "rank %d%n", &rank, &at) < 1)
        return false;
    const char *rest = message + at, *end = strchr(rest, ')');
    if (strncmp(rest, " (rank ", 7) == 0 && end)
        rest = end + 1;
    return strncmp(rest, ": rank ", 7) == 0 || strncmp(rest, " (rank ", 7) == 0;
}

static bool names_rank(const struct job *job, int rank, const char *message)
{
    char name[32];
    snprintf(name, sizeof name, "rank %d", job->failing);
    return rank == job->failing || strstr(message, name);
}

static const char *problem_of_ends(const struct job *job, const int *statuses)
{
    for (int i = 0; i < job->ranks; i++) {
        const struct outcome *its = &job->shared->of_rank[i];
        if (WIFSIGNALED(statuses[i]) && WTERMSIG(statuses[i]) != SIGKILL)
            return "crash";
        if (WIFEXITED(statuses[i]) && WEXITSTATUS(statuses[i]) != 0)
            return "a check failed";
        if (statuses[i] != 0)
            return atomic_load(&its->phase) == CALLING ? "hang" : "hang later";
    }
    return NULL;
}

static uint64_t longer_ns(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t slowest_ns(const struct job *job)
{
    uint64_t most = 0;
    for (int i = 0; i < job->ranks; i++)
        most = longer_ns(most, job->shared->of_rank[i].took_ns);
    return most;
}

/* Return the time of the slowest rank, less the time in which ranks waited for a processor. */
static uint64_t idle_ns(const struct job *job)
{
    uint64_t starved = 0, slowest = slowest_ns(job);
    for (int i = 0; i < job->ranks; i++)
        starved += job->shared->of_rank[i].starved_ns;
    return slowest > starved ? slowest - starved : 0;
}

static const char *problem_of_statuses(const struct job *job, bool is_retried)
{
    bool all, any = any_failed(job, &all);
    if (slowest_ns(job) > BOUND_NS)
        return "late";
    for (int i = 0; i < job->ranks; i++) {
        const struct outcome *its = &job->shared->of_rank[i];
        bool has_world = !job->of->opens_world || its->status == BANYAN_OK;
        if (any && !all && has_world && its->world == BANYAN_OK && !job->of->may_differ &&
            !job->of->closes_world)
            return "ranks differ and go on";
        if (its->status != BANYAN_OK && is_retried)
            return "not retried";
        if (its->status != BANYAN_OK && !names_cause(job, its->message))
            return "no cause";
        if (its->status != BANYAN_OK && !names_rank(job, i, its->message))
            return "no rank";
        if (is_named_twice(its->message))
            return "two names";
        if (its->again != BANYAN_OK)
            return "not usable again";
    }
    return NULL;
}

static const char *problem_of_rest(const struct job *job)
{
    for (int i = 0; i < job->ranks; i++) {
        if (job->shared->of_rank[i].left_open != 0)
            return "descriptors left open";
        if (job->shared->of_rank[i].left_threads != 0)
            return "threads left";
    }
    return NULL;
}

/* Empty the folder; return the number of files that it had. */
static int clear_folder(const struct job *job)
{
    int entries = folder_entries(job->folder);
    char path[600];
    DIR *folder = opendir(job->folder);
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", job->folder, entry->d_name);
        nftw(path, folder_remove_one, 16, FTW_DEPTH | FTW_PHYS);
    }
    closedir(folder);
    return entries;
}

static void print_problem(const struct job *job, const char *problem)
{
    const struct outcome *failing = &job->shared->of_rank[job->failing];
    char error[64];
    printf("PROBLEM %s: %s of %d ranks, rank %d: %s %d of site %016llx fails (%s), called from",
           problem, job->of->name, job->ranks, job->failing, inject_name(job->one->site.kind),
           job->one->n, (unsigned long long)job->one->site.stack,
           strerror_r(job->one->error, error, sizeof error));
    for (int i = 0; i < INJECT_DEPTH && failing->stack[i] != 0; i++)
        printf(" %#llx", (unsigned long long)failing->stack[i]);
    printf("\n");
    for (int i = 0; i < job->ranks; i++) {
        const struct outcome *its = &job->shared->of_rank[i];
        printf("  rank %d %s, %.3f s (%.3f s without a processor), %s \"%s\", world \"%s\", again "
               "\"%s\", %zu open, %zu threads\n",
               i, phase_names[atomic_load(&its->phase)], (double)its->took_ns / 1e9,
               (double)its->starved_ns / 1e9, banyan_status_name(its->status), its->message,
               its->world_message, its->again_message, its->left_open, its->left_threads);
    }
    fflush(stdout);
}

struct totals {
    uint64_t jobs, fired, missed, tolerated, usable, problems;
    uint64_t slowest_ns, idle_ns; /* the longest of all calls */
};

static bool is_chosen(const char *variable, const char *name)
{
    const char *wanted = getenv(variable);
    return !wanted || !*wanted || fnmatch(wanted, name, 0) == 0;
}

static bool is_number_chosen(const char *variable, int number)
{
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    return is_chosen(variable, text);
}

static bool is_site_chosen(const inject_site *site)
{
    char text[20];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)site->stack);
    return is_chosen("BANYAN_FAULTS_KIND", inject_name(site->kind)) &&
           is_chosen("BANYAN_FAULTS_SITE", text);
}

static bool has_fired(const struct job *job)
{
    bool all;
    return job->shared->of_rank[job->failing].has_failed ||
           (job->one->site.kind == INJECT_RUN_OUT && any_failed(job, &all));
}

static bool is_usable(const struct job *job)
{
    bool usable = true;
    for (int i = 0; i < job->ranks; i++)
        usable &= job->shared->of_rank[i].world == BANYAN_OK;
    return usable;
}

static const char *run_and_judge(struct job *job)
{
    int statuses[MOST_RANKS];
    run_job(job, statuses);
    const char *problem = problem_of_ends(job, statuses);
    if (!problem)
        problem = problem_of_statuses(
            job, has_fired(job) && inject_must_be_retried(job->one->site.kind, job->one->error));
    if (!problem)
        problem = problem_of_rest(job);
    int files = clear_folder(job);
    if (!problem && files > 0 && job->of->leaves_no_files && is_usable(job))
        problem = "files left";
    return problem;
}

/* Run a fault; true if the call to fail was made. A slow run is repeated: it may have waited for a
 * disk that others use. */
static bool judge(struct job *job, struct totals *totals)
{
    const char *problem = run_and_judge(job);
    for (int i = 1; !problem && idle_ns(job) > IDLE_BOUND_NS; i++)
        problem = i < ATTEMPTS ? run_and_judge(job) : "long wait";
    bool all, any = any_failed(job, &all), fired = has_fired(job);
    if (problem)
        print_problem(job, problem);
    totals->slowest_ns = longer_ns(totals->slowest_ns, slowest_ns(job));
    totals->idle_ns = longer_ns(totals->idle_ns, idle_ns(job));
    totals->jobs++;
    totals->fired += fired;
    totals->tolerated += fired && !any;
    totals->usable += fired && any && is_usable(job);
    totals->problems += problem != NULL;
    return fired;
}

/* Let the first and the last call of a site fail, with each error. For INJECT_RUN_OUT, try each
 * number of remaining descriptors. */
static void enumerate_site(struct job *job, const inject_site *site, struct totals *totals)
{
    bool counts_descriptors = site->kind == INJECT_RUN_OUT;
    int step = counts_descriptors || site->count == 1 ? 1 : site->count - 1;
    for (int i = 0; inject_error(site->kind, i) != 0; i++) {
        if (!is_number_chosen("BANYAN_FAULTS_ERRNO", inject_error(site->kind, i)))
            continue;
        for (int n = 0; n < site->count; n += step) {
            inject_one one = {*site, n, inject_error(site->kind, i)};
            bool fired = false;
            if (!is_number_chosen("BANYAN_FAULTS_N", n))
                continue;
            job->one = &one;
            for (int j = 0; !fired && j < (counts_descriptors ? 1 : ATTEMPTS); j++)
                fired = judge(job, totals);
            if (!fired && counts_descriptors)
                break;
            totals->missed += !fired;
        }
    }
}

/* Check that a call without a fault is correct and leaves nothing behind. */
static void run_good_job(struct job *job)
{
    int statuses[MOST_RANKS];
    job->one = NULL;
    run_job(job, statuses);
    for (int i = 0; i < job->ranks; i++) {
        const struct outcome *its = &job->shared->of_rank[i];
        if (statuses[i] != 0 || its->status != BANYAN_OK || its->again != BANYAN_OK ||
            its->left_open != 0 || its->left_threads != 0)
            printf("%s does not work without faults: rank %d, wait status %#x, \"%s\", \"%s\", %zu "
                   "descriptors and %zu threads left\n",
                   job->of->name, i, (unsigned)statuses[i], its->message, its->again_message,
                   its->left_open, its->left_threads);
        assert_int_equal(statuses[i], 0);
        assert_int_equal(its->status, BANYAN_OK);
        assert_int_equal(its->again, BANYAN_OK);
        assert_int_equal(its->left_open, 0);
        assert_int_equal(its->left_threads, 0);
    }
    clear_folder(job);
}

static void add_site(inject_sites *sites, const inject_site *one)
{
    int i = 0;
    while (i < sites->count && (sites->at[i].kind != one->kind || sites->at[i].stack != one->stack))
        i++;
    assert_in_range(i, 0, INJECT_MOST_SITES - 1);
    if (i == sites->count)
        sites->at[sites->count++] = *one;
    else if (sites->at[i].count < one->count)
        sites->at[i].count = one->count;
}

/* List the sites of calls without a fault. */
static void list_sites(struct job *job, inject_sites *sites)
{
    static const inject_site descriptors = {INJECT_RUN_OUT, 0, MOST_DESCRIPTORS};
    sites->count = 0;
    for (int run = 0; run < ATTEMPTS; run++) {
        run_good_job(job);
        for (int i = 0; i < job->shared->sites.count; i++)
            add_site(sites, &job->shared->sites.at[i]);
    }
    add_site(sites, &descriptors);
}

static void run_all(struct job *job, const job_case *of, struct totals *totals)
{
    static const struct {
        int ranks, failing;
    } jobs[] = {{2, 0}, {2, 1}, {4, 0}, {4, 2}};
    static inject_sites sites;
    job->of = of;
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        job->ranks = jobs[i].ranks;
        job->failing = jobs[i].failing;
        if (!is_number_chosen("BANYAN_FAULTS_RANKS", job->ranks) ||
            (of->ranks != 0 && of->ranks != job->ranks))
            continue;
        struct totals before = *totals;
        list_sites(job, &sites);
        for (int j = 0; j < sites.count; j++) {
            if (is_site_chosen(&sites.at[j]))
                enumerate_site(job, &sites.at[j], totals);
        }
        printf(
            "%s, %d ranks, rank %d: %d sites, %llu faults, %llu not reached, %llu tolerated, %llu "
            "left the world usable, %llu problems\n",
            of->name, job->ranks, job->failing, sites.count,
            (unsigned long long)(totals->fired - before.fired),
            (unsigned long long)(totals->missed - before.missed),
            (unsigned long long)(totals->tolerated - before.tolerated),
            (unsigned long long)(totals->usable - before.usable),
            (unsigned long long)(totals->problems - before.problems));
        fflush(stdout);
    }
}

static void run_random(struct job *job, random_state *random, struct totals *totals)
{
    static inject_sites sites;
    list_sites(job, &sites);
    for (int i = 0; i < 12; i++) {
        const inject_site *site = &sites.at[random_between(random, 0, sites.count - 1)];
        int errors = 1;
        while (inject_error(site->kind, errors) != 0)
            errors++;
        inject_one one = {*site, (int)random_between(random, 0, site->count - 1),
                          inject_error(site->kind, (int)random_between(random, 0, errors - 1))};
        job->one = &one;
        judge(job, totals);
    }
}

static void run_some(struct job *job, const job_case *cases, size_t count, double seconds,
                     struct totals *totals)
{
    random_state random = random_from(random_seed());
    uint64_t deadline = deadline_after((uint64_t)(seconds * 1e9));
    do {
        job->of = &cases[random_between(&random, 0, (int64_t)count - 1)];
        job->ranks = job->of->ranks == 4 || random_between(&random, 0, 1) ? 4 : 2;
        job->failing = random_between(&random, 0, 1) ? job->ranks / 2 : 0;
        if (is_chosen("BANYAN_FAULTS_CASE", job->of->name))
            run_random(job, &random, totals);
    } while (deadline_left_ns(deadline) > 0);
}

/* Return the number of faults after which a rank behaved wrongly. */
static int run_cases(const job_case *cases, size_t count, double seconds)
{
    struct totals totals = {0};
    struct job job = {0};
    const char *mode = getenv("BANYAN_FAULTS"), *limit = getenv("BANYAN_FAULTS_SECONDS");
    job.shared =
        mmap(NULL, sizeof *job.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(job.shared != MAP_FAILED);
    if (mode && strcmp(mode, "list") == 0) {
        for (size_t i = 0; i < count; i++) {
            if (is_chosen("BANYAN_FAULTS_CASE", cases[i].name))
                printf("case %s\n", cases[i].name);
        }
        return 0;
    }
    setenv("BANYAN_LOG", "error", 0);
    void *folder = NULL;
    assert_int_equal(folder_setup(&folder), 0);
    snprintf(job.folder, sizeof job.folder, "%s", (char *)folder);
    if (mode && strcmp(mode, "all") == 0) {
        for (size_t i = 0; i < count; i++) {
            if (is_chosen("BANYAN_FAULTS_CASE", cases[i].name))
                run_all(&job, &cases[i], &totals);
        }
    } else {
        run_some(&job, cases, count, limit && *limit ? strtod(limit, NULL) : seconds, &totals);
    }
    printf(
        "%llu jobs, %llu faults: %llu had no effect, %llu failed on all ranks and left the world "
        "usable; %llu faults were not reached; %llu problems; the slowest call took %.3f s, and "
        "the slowest without waits for a processor %.3f s\n",
        (unsigned long long)totals.jobs, (unsigned long long)totals.fired,
        (unsigned long long)totals.tolerated, (unsigned long long)totals.usable,
        (unsigned long long)totals.missed, (unsigned long long)totals.problems,
        (double)totals.slowest_ns / 1e9, (double)totals.idle_ns / 1e9);
    assert_int_equal(folder_teardown(&folder), 0);
    munmap(job.shared, sizeof *job.shared);
    return (int)totals.problems;
}

struct program {
    const job_case *cases;
    size_t count;
    double seconds;
};

static void one_failing_call_is_reported_to_all(void **state)
{
    const struct program *program = *state;
    assert_int_equal(run_cases(program->cases, program->count, program->seconds), 0);
}

int job_main(const job_case *cases, size_t count, double seconds)
{
#if defined(SANITIZER_MEMORY) || defined(SANITIZER_THREAD)
    printf("skipped: sanitizers stand before the library themselves\n");
    return 77;
#endif
    struct program program = {cases, count, seconds};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(one_failing_call_is_reported_to_all, &program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
