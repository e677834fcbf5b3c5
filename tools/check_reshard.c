#include "check_reshard.h"

#include <stdio.h>
#include <sys/mman.h>

#include <banyan/banyan.h>

#include "failure.h"
#include "launch.h"
#include "options.h"
#include "text.h"
#include "try.h"

/* What a rank moves; in memory that the ranks share. */
struct moved {
    uint64_t transfers, elems;
};

struct job {
    const banyan_megatron_case *loaded;
    failure *failed;
    struct moved *moved;
};

struct planned {
    banyan_world *world;
    banyan_layout *sides[2];
    banyan_reshard_plan *plan;
};

static banyan_status add_side(const struct job *job, int rank, banyan_side side,
                              banyan_layout **layout)
{
    size_t count;
    const banyan_megatron_tensor *tensors =
        banyan_megatron_case_tensors(job->loaded, rank, side, &count);
    TRY(banyan_layout_create(layout));
    for (size_t i = 0; i < count; i++)
        banyan_layout_add_megatron(*layout, &tensors[i], rank, 0);
    return banyan_layout_check(*layout);
}

static banyan_status plan_and_prove(const struct job *job, int rank, struct planned *made)
{
    TRY(banyan_world_open(NULL, &made->world));
    TRY(add_side(job, rank, BANYAN_SOURCE, &made->sides[0]));
    TRY(add_side(job, rank, BANYAN_DESTINATION, &made->sides[1]));
    TRY(banyan_reshard_plan_create(made->sides[0], made->sides[1], made->world, NULL, &made->plan));
    TRY(banyan_reshard_plan_prove(made->plan));
    size_t count = banyan_reshard_plan_recv_count(made->plan);
    for (size_t i = 0; i < count; i++)
        job->moved[rank].elems += banyan_box_elems(&banyan_reshard_plan_recv(made->plan, i)->box);
    job->moved[rank].transfers = count;
    return banyan_world_barrier(made->world);
}

static int prove_rank(int rank, void *context)
{
    const struct job *job = context;
    struct planned made = {0};
    banyan_status status = plan_and_prove(job, rank, &made);
    if (status != BANYAN_OK)
        failure_note(job->failed, rank, status);
    banyan_reshard_plan_destroy(made.plan);
    banyan_layout_destroy(made.sides[0]);
    banyan_layout_destroy(made.sides[1]);
    if (status == BANYAN_OK && (status = banyan_world_close(made.world)) != BANYAN_OK)
        failure_note(job->failed, rank, status);
    return status == BANYAN_OK ? 0 : 1;
}

static void print_sound(const struct job *job, const char *path, int ranks)
{
    char transfers[TEXT_NUMBER_BYTES], elems[TEXT_NUMBER_BYTES];
    struct moved all = {0, 0};
    for (int rank = 0; rank < ranks; rank++) {
        all.transfers += job->moved[rank].transfers;
        all.elems += job->moved[rank].elems;
    }
    printf("%s: sound, %d ranks, %s transfers give %s elements, each once\n", path, ranks,
           text_count(all.transfers, transfers), text_count(all.elems, elems));
}

static int prove_case(const char *who, const char *path, struct job *job, int ranks)
{
    char text[FAILURE_TEXT_BYTES];
    launch_job launched = {
        .who = who, .count = ranks, .rank_main = prove_rank, .context = job, .ranks_explain = true};
    int code = launch_run(&launched);
    const char *why = failure_sentence(job->failed, text);
    if (code == 0 && !why) {
        print_sound(job, path, ranks);
        return 0;
    }
    printf("%s: not sound: %s\n", path, why ? why : "a rank ended without a word");
    return 1;
}

int check_reshard(const char *who, const char *path)
{
    banyan_megatron_case *loaded;
    if (banyan_megatron_case_load(path, &loaded) != BANYAN_OK) {
        fprintf(stderr, "%s: %s\n", who, banyan_last_error());
        return EXIT_USAGE;
    }
    int ranks = banyan_megatron_case_world_size(loaded), code = EXIT_USAGE;
    size_t bytes = (size_t)ranks * sizeof(struct moved);
    void *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct job job = {loaded, failure_create(), shared};
    if (shared == MAP_FAILED || !job.failed)
        fprintf(stderr, "%s: out of memory for %d ranks\n", who, ranks);
    else if (ranks > LAUNCH_MAX_RANKS)
        fprintf(stderr, "%s: %s has %d ranks, more than the %d that one machine is given\n", who,
                path, ranks, LAUNCH_MAX_RANKS);
    else
        code = prove_case(who, path, &job, ranks);
    failure_destroy(job.failed);
    if (shared != MAP_FAILED)
        munmap(shared, bytes);
    banyan_megatron_case_destroy(loaded);
    return code;
}
