/* The rendezvous: another user of the machine must not be able to take the name first. */
#include "support/test.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/deadline.h"
#include "world/bootstrap/rendezvous.h"

#define SECRET "00112233445566778899aabbccddeeff"
#define AT_ONCE_NS (5 * NS_PER_S)

enum { RANKS = 3 };

struct outcome {
    banyan_status status;
    uint64_t took_ns;
    char message[512];
};

/* In memory that the ranks share. */
struct play {
    const char *secret;
    _Atomic bool taken;
    struct outcome outcomes[RANKS];
    _Atomic int pid; /* of rank 0 */
};

static struct play *play;
static char port[16]; /* port of a missing store: part of the job's name */

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static void be_of_torchrun(int rank)
{
    set_number("RANK", rank);
    set_number("LOCAL_RANK", rank);
    set_number("WORLD_SIZE", RANKS);
    set_number("LOCAL_WORLD_SIZE", RANKS);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", port, 1);
}

/* The place of this job's ranks, as any process with the secret can compute it (NULL: none). */
static struct rendezvous_place work_out(const char *secret)
{
    struct rendezvous_place place;
    struct identity identity;
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.secret = secret;
    be_of_torchrun(0);
    CHECK_OK(identity_discover(&options, &identity));
    CHECK_OK(rendezvous_place_of_job(&identity, &place));
    CHECK(place.local);
    return place;
}

static void names_with_a_secret_cannot_be_worked_out(void **state)
{
    (void)state;
    struct rendezvous_place none = work_out(NULL), one = work_out(SECRET);
    struct rendezvous_place other = work_out("ff112233445566778899aabbccddeeff");
    struct rendezvous_place again = work_out(SECRET);
    assert_string_equal(one.name, again.name);
    assert_string_not_equal(one.name, none.name);
    assert_string_not_equal(one.name, other.name);
}

/* Another user, if this process can become one. It lives until it is killed. */
static pid_t take_the_name(void)
{
    struct rendezvous_place place = work_out(NULL);
    struct address name = address_unix(place.name);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        int fd;
        ranks_become_child();
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (geteuid() == 0)
            CHECK(setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
        CHECK_OK(address_listen(&name, &fd));
        play->taken = true;
        for (;;)
            pause();
    }
    while (!play->taken)
        usleep(1000);
    return pid;
}

static void open_and_close(int rank, int count, const banyan_unique_id *id, void *context)
{
    (void)count;
    (void)id;
    (void)context;
    struct outcome *outcome = &play->outcomes[rank];
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    options.secret = play->secret;
    options.timeout_ns = 20 * NS_PER_S;
    be_of_torchrun(rank);
    banyan_world *world;
    uint64_t began = time_now_ns();
    outcome->status = banyan_world_open(&options, &world);
    outcome->took_ns = time_now_ns() - began;
    snprintf(outcome->message, sizeof outcome->message, "%s", banyan_last_error());
    if (outcome->status == BANYAN_OK)
        CHECK_OK(banyan_world_close(world));
}

static void run_ranks(const char *secret)
{
    int statuses[RANKS];
    play->secret = secret;
    play->taken = false;
    pid_t other = take_the_name();
    ranks_fork(RANKS, open_and_close, NULL, statuses);
    kill(other, SIGKILL);
    waitpid(other, NULL, 0);
    for (int rank = 0; rank < RANKS; rank++)
        assert_int_equal(statuses[rank], 0);
}

static void a_job_with_a_secret_opens_whatever_others_have_taken(void **state)
{
    (void)state;
    run_ranks(SECRET);
    for (int rank = 0; rank < RANKS; rank++) {
        if (play->outcomes[rank].status != BANYAN_OK)
            fail_msg("rank %d: %s", rank, play->outcomes[rank].message);
    }
}

/* The job cannot prevent it, but reports it. */
static void a_job_without_a_secret_names_the_owner_of_its_name(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        printf("skipped: only root can become another user\n");
        skip();
    }
    run_ranks(NULL);
    for (int rank = 0; rank < RANKS; rank++) {
        const struct outcome *outcome = &play->outcomes[rank];
        if (outcome->status != BANYAN_ERR_REFUSED || outcome->took_ns > AT_ONCE_NS ||
            !strstr(outcome->message, "of user 65534") ||
            !strstr(outcome->message, "BANYAN_SECRET"))
            fail_msg("rank %d after %.1f s: %s: %s", rank, (double)outcome->took_ns / 1e9,
                     banyan_status_name(outcome->status), outcome->message);
    }
    printf("%s\n%s\n", play->outcomes[0].message, play->outcomes[1].message);
}

static const char *const secrets[] = {SECRET, "ff112233445566778899aabbccddeeff", NULL};
static int lines; /* log lines that name the cause */

static void check_text(const char *message)
{
    char expected[160];
    snprintf(expected, sizeof expected,
             "pid %d of user %u waits for ranks of this job with another secret: BANYAN_SECRET",
             play->pid, (unsigned)geteuid());
    CHECK(strstr(message, expected), "%s", message);
    for (size_t i = 0; i < 2; i++)
        CHECK(!strstr(message, secrets[i]), "a secret in a message");
}

static void check_line(banyan_log_level level, const char *message, void *context)
{
    (void)context;
    if (level == BANYAN_LOG_WARN && strstr(message, " has waited ")) {
        check_text(message);
        lines++;
    }
}

/* Rank 0 has the first of two secrets, rank 1 the second. */
static void open_with_own_secret(int rank, int count, const banyan_unique_id *id, void *context)
{
    const int *of = context;
    banyan_world_options options = BANYAN_WORLD_OPTIONS_INIT;
    banyan_world *world;
    (void)id;
    be_of_torchrun(rank);
    set_number("WORLD_SIZE", count);
    set_number("LOCAL_WORLD_SIZE", count);
    options.secret = secrets[of[rank]];
    options.timeout_ns = (rank == 0 ? 4 : 2) * NS_PER_S;
    if (rank == 0) {
        play->pid = getpid();
        CHECK_FAILS(banyan_world_open(&options, &world), BANYAN_ERR_TIMEOUT, "rank 1");
        return;
    }
    setenv("BANYAN_WAIT_LOG", "1", 1);
    banyan_log_set(check_line, NULL);
    usleep(500000);
    CHECK_FAILS(banyan_world_open(&options, &world), BANYAN_ERR_TIMEOUT, "for rank 0: ");
    check_text(banyan_last_error());
    CHECK(lines > 0, "no line of the log names the cause");
}

static void ranks_with_different_secrets_hear_so(void **state)
{
    (void)state;
    static const int pairs[][2] = {{0, 1}, {0, 2}, {2, 1}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        int statuses[2], of[2] = {pairs[i][0], pairs[i][1]};
        ranks_fork(2, open_with_own_secret, of, statuses);
        assert_int_equal(statuses[0], 0);
        assert_int_equal(statuses[1], 0);
    }
}

int main(void)
{
    play = mmap(NULL, sizeof *play, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (play == MAP_FAILED)
        return 1;
    snprintf(port, sizeof port, "%d", (int)getpid());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_with_a_secret_cannot_be_worked_out),
        cmocka_unit_test(a_job_with_a_secret_opens_whatever_others_have_taken),
        cmocka_unit_test(a_job_without_a_secret_names_the_owner_of_its_name),
        cmocka_unit_test(ranks_with_different_secrets_hear_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
