#include "launch/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/clock.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/text.h"
#include "launch/cleanup.h"
#include "launch/tagged.h"

#define EXIT_TIMEOUT 124
#define EXIT_CANNOT_RUN 126
#define EXIT_NOT_FOUND 127

/* Time to wait for a rank's output after its end, while processes that it started still write. */
#define DRAIN_SECONDS 1.0
/* Time after a rank's failure in which the death of another may prove to be its cause. */
#define SUSPECT_SECONDS 0.1

/* Signals that ask a program to end. */
static const int end_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
static const int other_signals[] = {SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP, SIGCONT};

struct rank {
    pid_t pid;
    bool running;
    bool own_group; /* processes that it starts can be ended with it */
};

struct launch {
    const launch_job *job;
    pid_t pid;
    sigset_t mask_before;
    int signals;
    helper guard;
    char job_name[33], secret[33];
    struct rank *ranks;
    tagged_stream *streams; /* two a rank, when lines are tagged */
    int running;
    int exit_code;
    int suspect; /* the rank that failed first, as far as known; -1: none */
    bool suspect_killed;
    int suspect_status; /* exit code, or signal */
    double conclude_at;
    bool ending, asked_to_end;
    double kill_at, timeout_at;
};

static void launch_print_error(const struct launch *launch, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    text_print_error(launch->job->who, format, args);
    va_end(args);
}

static bool random_hex(char text[33])
{
    unsigned char bytes[16];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return false;
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    return true;
}

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static void launch_set_environment(const struct launch *launch, int rank)
{
    set_number("BANYAN_RANK", rank);
    set_number("BANYAN_WORLD_SIZE", launch->job->count);
    set_number("BANYAN_LOCAL_RANK", rank);
    set_number("BANYAN_LOCAL_SIZE", launch->job->count);
    setenv("BANYAN_JOB", launch->job_name, 1);
    setenv("BANYAN_SECRET", launch->secret, 1);
}

static void launch_redirect(int rank, const int output[2])
{
    if (rank != 0) {
        int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
        dup2(nothing, STDIN_FILENO);
        close(nothing);
    }
    for (int i = 0; i < 2; i++) {
        if (output[i] >= 0)
            dup2(output[i], i == 0 ? STDOUT_FILENO : STDERR_FILENO);
    }
}

/* Close descriptors of the launcher that a program would not inherit. */
static void close_inherited(const struct launch *launch)
{
    close(launch->signals);
    close(launch->guard.socket);
    for (int i = 0; launch->streams && i < 2 * launch->job->count; i++) {
        if (launch->streams[i].from >= 0)
            close(launch->streams[i].from);
    }
}

static void be_rank(const struct launch *launch, int rank, const int output[2], int failure)
    __attribute__((noreturn));
static void be_rank(const struct launch *launch, int rank, const int output[2], int failure)
{
    const launch_job *job = launch->job;
    if (launch->ranks[rank].own_group)
        setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launch->pid)
        _exit(1);
    sigprocmask(SIG_SETMASK, &launch->mask_before, NULL);
    launch_set_environment(launch, rank);
    launch_redirect(rank, output);
    if (!job->program) {
        close_inherited(launch);
        close(failure);
        int code = job->rank_main(rank, job->context);
        fflush(NULL);
        _exit(code);
    }
    execvp(job->program[0], job->program);
    int error = errno;
    if (write(failure, &error, sizeof error) < 0)
        _exit(1);
    _exit(EXIT_NOT_FOUND);
}

/* Return the result of the child's exec: 0, or its errno. The pipe closes on success. */
static int exec_error(int pipe)
{
    int error = 0;
    ssize_t got;
    do
        got = read(pipe, &error, sizeof error);
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)sizeof error ? error : 0;
}

static bool open_output(struct launch *launch, int rank, int write_ends[2])
{
    for (int i = 0; i < 2; i++) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) != 0)
            return false;
        tagged_stream *stream = &launch->streams[2 * rank + i];
        *stream = (tagged_stream){.from = ends[0], .to = i == 0 ? STDOUT_FILENO : STDERR_FILENO};
        snprintf(stream->tag, sizeof stream->tag, "[%d] ", rank);
        write_ends[i] = ends[1];
    }
    return true;
}

static bool cannot_start(struct launch *launch, int rank, int error)
{
    launch_print_error(launch, "cannot start rank %d of %d: %s", rank, launch->job->count,
                       strerror(error));
    launch->exit_code = 1;
    return false;
}

/* Look up a name without a slash as a shell does: not in this folder. */
static bool cannot_run(struct launch *launch, int error)
{
    const char *program = launch->job->program[0];
    launch->exit_code = error == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN;
    if (error != ENOENT || strchr(program, '/'))
        launch_print_error(launch, "cannot run %s: %s", program, strerror(error));
    else if (access(program, F_OK) != 0)
        launch_print_error(launch, "cannot run %s: %s in the folders of PATH", program,
                           strerror(error));
    else
        launch_print_error(launch, "cannot run %s: %s in the folders of PATH; there is ./%s",
                           program, strerror(error), program);
    return false;
}

static bool start_rank(struct launch *launch, int rank)
{
    int output[2] = {-1, -1}, failure[2] = {-1, -1}, error = 0;
    pid_t pid = -1;
    if ((launch->streams && !open_output(launch, rank, output)) || pipe2(failure, O_CLOEXEC) != 0) {
        error = errno;
        goto close_ends;
    }
    launch->ranks[rank].own_group = rank != 0 || !isatty(STDIN_FILENO);
    fflush(NULL);
    pid = fork();
    if (pid == 0)
        be_rank(launch, rank, output, failure[1]);
    error = pid < 0 ? errno : 0;
close_ends:
    for (int i = 0; i < 2; i++) {
        if (output[i] >= 0)
            close(output[i]);
    }
    if (failure[1] >= 0)
        close(failure[1]);
    if (pid > 0) {
        launch->ranks[rank].pid = pid;
        launch->ranks[rank].running = true;
        launch->running++;
        if (launch->ranks[rank].own_group) {
            setpgid(pid, pid);
            guard_add(&launch->guard, pid);
        }
        error = exec_error(failure[0]);
    }
    if (failure[0] >= 0)
        close(failure[0]);
    if (pid > 0 && error != 0)
        return cannot_run(launch, error);
    return error == 0 || cannot_start(launch, rank, error);
}

static void signal_rank(const struct rank *rank, int number)
{
    if (rank->running)
        kill(rank->own_group ? -rank->pid : rank->pid, number);
}

static void signal_ranks(const struct launch *launch, int number)
{
    for (int rank = 0; rank < launch->job->count; rank++)
        signal_rank(&launch->ranks[rank], number);
}

static void begin_ending(struct launch *launch)
{
    if (launch->ending)
        return;
    launch->ending = true;
    double grace = launch->job->grace_s > 0 ? launch->job->grace_s : LAUNCH_GRACE_SECONDS;
    launch->kill_at = clock_now_s() + grace;
    signal_ranks(launch, SIGTERM);
    signal_ranks(launch, SIGCONT);
}

/* Record the first failure. An exit code is often a consequence of another rank's death by a
 * signal, which may become visible a moment later: for that moment a killed rank replaces one that
 * exited. */
static void launch_suspect(struct launch *launch, int rank, const siginfo_t *how)
{
    bool killed = how->si_code != CLD_EXITED;
    if (launch->ending || (launch->suspect >= 0 && (!killed || launch->suspect_killed)))
        return;
    launch->suspect = rank;
    launch->suspect_killed = killed;
    launch->suspect_status = how->si_status;
    launch->conclude_at = clock_now_s() + (killed ? 0 : SUSPECT_SECONDS);
}

static void launch_conclude(struct launch *launch)
{
    int rank = launch->suspect, status = launch->suspect_status;
    bool killed = launch->suspect_killed;
    launch->exit_code = killed ? LAUNCH_SIGNALLED + status : status;
    char what[128], others[64] = "";
    if (killed)
        snprintf(what, sizeof what, "was killed by signal %d (%s)", status, strsignal(status));
    else
        snprintf(what, sizeof what, "exited with code %d", status);
    if (launch->running > 0)
        snprintf(others, sizeof others, "; ending the other %d", launch->running);
    if (killed || !launch->job->ranks_explain)
        launch_print_error(launch, "rank %d (process %d) %s%s", rank, launch->ranks[rank].pid, what,
                           others);
    begin_ending(launch);
}

/* End the processes that a failed or ended rank has started. Its process group number cannot be
 * reused yet: the rank is waited for afterwards. */
static void launch_reap(struct launch *launch, int rank, bool failed)
{
    struct rank *reaped = &launch->ranks[rank];
    if ((failed || launch->ending) && reaped->own_group)
        kill(-reaped->pid, SIGKILL);
    if (reaped->own_group)
        guard_remove(&launch->guard, reaped->pid);
    while (waitpid(reaped->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    reaped->running = false;
    launch->running--;
}

static void reap_ranks(struct launch *launch)
{
    for (int rank = 0; rank < launch->job->count; rank++) {
        siginfo_t how = {0};
        if (!launch->ranks[rank].running ||
            waitid(P_PID, (id_t)launch->ranks[rank].pid, &how, WEXITED | WNOHANG | WNOWAIT) != 0 ||
            how.si_pid == 0)
            continue;
        bool failed = how.si_code != CLD_EXITED || how.si_status != 0;
        if (failed)
            launch_suspect(launch, rank, &how);
        launch_reap(launch, rank, failed);
    }
}

/* Report the loss of the helper: without it, a killed launcher would leave processes that ranks
 * have started. */
static void look_at_guard(struct launch *launch)
{
    siginfo_t how;
    if (launch->ending || launch->suspect >= 0 || launch->running == 0 ||
        !helper_ended(&launch->guard, &how))
        return;
    char what[64];
    if (how.si_code == CLD_EXITED)
        snprintf(what, sizeof what, "exited with code %d", how.si_status);
    else
        snprintf(what, sizeof what, "was killed by signal %d (%s)", how.si_status,
                 strsignal(how.si_status));
    launch_print_error(
        launch, "the helper that cleans up after this process (process %d) %s; ending the %d ranks",
        (int)launch->guard.pid, what, launch->running);
    launch->exit_code = 1;
    begin_ending(launch);
}

static bool is_end_signal(int number)
{
    for (size_t i = 0; i < sizeof(end_signals) / sizeof(end_signals[0]); i++) {
        if (end_signals[i] == number)
            return true;
    }
    return false;
}

/* Forward a signal. Signals of a terminal have reached ranks in the launcher's own group already.
 */
static void launch_forward(struct launch *launch, const struct signalfd_siginfo *info)
{
    int number = (int)info->ssi_signo;
    for (int rank = 0; rank < launch->job->count; rank++) {
        if (info->ssi_code != SI_KERNEL || launch->ranks[rank].own_group)
            signal_rank(&launch->ranks[rank], number);
    }
    if (number == SIGTSTP)
        raise(SIGSTOP);
    if (!is_end_signal(number))
        return;
    if (launch->asked_to_end && !launch->ending) {
        launch->exit_code = LAUNCH_SIGNALLED + number;
        begin_ending(launch);
    }
    launch->asked_to_end = true;
}

static void take_signals(struct launch *launch)
{
    struct signalfd_siginfo info;
    while (read(launch->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD) {
            reap_ranks(launch);
            look_at_guard(launch);
        } else {
            launch_forward(launch, &info);
        }
    }
}

static void look_at_clock(struct launch *launch)
{
    double now = clock_now_s();
    if (!launch->ending && launch->suspect >= 0 &&
        (launch->running == 0 || now >= launch->conclude_at))
        launch_conclude(launch);
    if (!launch->ending && now >= launch->timeout_at) {
        launch_print_error(launch, "the job still runs after %g s; ending its %d ranks",
                           launch->job->timeout_s, launch->running);
        launch->exit_code = EXIT_TIMEOUT;
        begin_ending(launch);
    }
    if (launch->ending && now >= launch->kill_at) {
        signal_ranks(launch, SIGKILL);
        launch->kill_at = INFINITY;
    }
}

static int poll_timeout_ms(const struct launch *launch)
{
    double until = launch->ending ? launch->kill_at : launch->timeout_at;
    if (!launch->ending && launch->suspect >= 0)
        until = fmin(until, launch->conclude_at);
    double left_ms = (until - clock_now_s()) * 1000 + 1;
    return left_ms > 60000 ? 60000 : left_ms < 0 ? 0 : (int)left_ms;
}

/* Wait for a signal, output or a timeout, and handle all three. */
static void watch_once(struct launch *launch, struct pollfd *polled)
{
    int streams = launch->streams ? 2 * launch->job->count : 0;
    for (int i = 0; i < streams; i++)
        polled[i] = (struct pollfd){.fd = launch->streams[i].from, .events = POLLIN};
    polled[streams] = (struct pollfd){.fd = launch->signals, .events = POLLIN};
    if (poll(polled, (nfds_t)streams + 1, poll_timeout_ms(launch)) < 0)
        return;
    for (int i = 0; i < streams; i++) {
        if (polled[i].revents)
            tagged_stream_pump(&launch->streams[i]);
    }
    if (polled[streams].revents)
        take_signals(launch);
    look_at_clock(launch);
}

static void drain_output(struct launch *launch)
{
    double until = clock_now_s() + DRAIN_SECONDS;
    for (int i = 0; launch->streams && i < 2 * launch->job->count; i++) {
        struct pollfd polled = {.fd = launch->streams[i].from, .events = POLLIN};
        while (polled.fd >= 0 && poll(&polled, 1, 0) > 0 && clock_now_s() < until) {
            if (!tagged_stream_pump(&launch->streams[i]))
                break;
        }
        if (launch->streams[i].from >= 0)
            tagged_stream_close(&launch->streams[i]);
    }
}

static bool block_signals(struct launch *launch)
{
    sigset_t taken;
    sigemptyset(&taken);
    sigaddset(&taken, SIGCHLD);
    for (size_t i = 0; i < sizeof(end_signals) / sizeof(end_signals[0]); i++)
        sigaddset(&taken, end_signals[i]);
    for (size_t i = 0; i < sizeof(other_signals) / sizeof(other_signals[0]); i++)
        sigaddset(&taken, other_signals[i]);
    sigprocmask(SIG_BLOCK, &taken, &launch->mask_before);
    launch->signals = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
    return launch->signals >= 0;
}

/* Name the job. A given secret is kept, and a malformed one is refused instead of silently
 * replaced. The message does not show it. */
static bool make_names(struct launch *launch)
{
    if (!random_hex(launch->job_name) || !random_hex(launch->secret)) {
        launch_print_error(launch, "no random bytes for the job's secret: %s", strerror(errno));
        return false;
    }
    const char *given = getenv("BANYAN_SECRET");
    if (!given)
        return true;
    size_t digits = strspn(given, "0123456789abcdefABCDEF"), wanted = sizeof launch->secret - 1;
    if (digits != wanted || given[digits]) {
        launch_print_error(
            launch,
            "BANYAN_SECRET has %zu characters, the first %zu of them hexadecimal digits, "
            "not %zu digits",
            strlen(given), digits, wanted);
        return false;
    }
    memcpy(launch->secret, given, sizeof launch->secret);
    return true;
}

static void launch_run_job(struct launch *launch, struct pollfd *polled)
{
    bool started = true;
    for (int rank = 0; rank < launch->job->count && started; rank++)
        started = start_rank(launch, rank);
    if (!started)
        begin_ending(launch);
    while (launch->running > 0)
        watch_once(launch, polled);
    drain_output(launch);
}

int launch_run(const launch_job *job)
{
    struct launch launch = {.job = job, .pid = getpid(), .exit_code = 1, .suspect = -1};
    launch.timeout_at = job->timeout_s > 0 ? clock_now_s() + job->timeout_s : INFINITY;
    size_t streams = job->tag_output ? 2 * (size_t)job->count : 0;
    launch.ranks = calloc((size_t)job->count, sizeof *launch.ranks);
    launch.streams = job->tag_output ? calloc(streams, sizeof *launch.streams) : NULL;
    struct pollfd *polled = calloc(streams + 1, sizeof *polled);
    if (!launch.ranks || !polled || (job->tag_output && !launch.streams)) {
        launch_print_error(&launch, "out of memory for %d ranks", job->count);
        goto free_ranks;
    }
    for (size_t i = 0; i < streams; i++)
        launch.streams[i].from = -1;
    if (!make_names(&launch))
        goto free_ranks;
    if (!block_signals(&launch)) {
        launch_print_error(&launch, "cannot set up the job: %s", strerror(errno));
        goto free_ranks;
    }
    if (!guard_start(&launch.guard)) {
        launch_print_error(&launch, "cannot start a process: %s", strerror(errno));
        goto close_signals;
    }
    launch.exit_code = 0;
    launch_run_job(&launch, polled);
    helper_stop(&launch.guard);
close_signals:
    close(launch.signals);
    sigprocmask(SIG_SETMASK, &launch.mask_before, NULL);
free_ranks:
    free(polled);
    free(launch.streams);
    free(launch.ranks);
    return launch.exit_code;
}

int launch_command(int argc, char **argv)
{
    launch_job job = {.who = "banyan launch"};
    const option_entry entries[] = {
        {"ranks", 'n', OPTION_COUNT, &job.count, "N", "number of ranks to start", 1,
         LAUNCH_MAX_RANKS},
        {"tag-output", '\0', OPTION_FLAG, &job.tag_output, NULL,
         "begin every line with \"[rank] \"", 0, 0},
        {"timeout", '\0', OPTION_SECONDS, &job.timeout_s, "SECONDS",
         "end the job after this time (exit code 124)", 0, 0},
        {"grace", '\0', OPTION_SECONDS, &job.grace_s, "SECONDS",
         "time from SIGTERM to SIGKILL when ranks are ended (5)", 0, 0},
    };
    const option_table table = {
        "banyan launch", "-n N [options] [--] program [arguments]",
        "Start N ranks of a program on this machine. When a rank fails, the others are ended,\n"
        "and the exit code is that of the rank, or 128 + signal if a signal killed it. SIGINT,\n"
        "SIGTERM and similar signals are passed to the ranks; a second one ends them. Rank 0\n"
        "has stdin.\n",
        entries, sizeof(entries) / sizeof(entries[0])};
    int rest;
    options_result result = options_parse(&table, argc, argv, &rest);
    if (result != OPTIONS_OK)
        return result == OPTIONS_HELP ? 0 : EXIT_USAGE;
    if (job.count == 0)
        return options_refuse(&table, "give the number of ranks: -n N");
    if (rest == argc)
        return options_refuse(&table, "give the program to run, after the options");
    job.program = argv + rest;
    return launch_run(&job);
}
