/* Write an all-gather, prove it, and let a communicator use it. Every rank puts its block into the
 * output of every other rank.
 *
 *     banyan launch -n 4 -- example_algorithm
 */
#include <banyan/banyan.h>
#include <stdio.h>
#include <stdlib.h>

#define OK(call) ((call) ? exit((fprintf(stderr, "%s\n", banyan_last_error()), 1)) : (void)0)

enum { MOST_RANKS = 64, COUNT = 1000 };

static banyan_plan *write_allgather(int ranks)
{
    static banyan_program_memory_channel *to[MOST_RANKS][MOST_RANKS];
    banyan_collective allgather = {.kind = BANYAN_ALLGATHER};
    banyan_program *program;
    banyan_plan *plan;
    OK(banyan_program_create("my_allgather", &allgather, ranks, NULL, &program));
    for (int rank = 0; rank < ranks; rank++)
        for (int peer = 0; peer < ranks; peer++)
            if (peer != rank)
                to[rank][peer] = banyan_program_memory_channel_create(program, peer, rank);
    for (int rank = 0; rank < ranks; rank++) {
        uint64_t own = (uint64_t)rank;
        banyan_chunk input = banyan_program_input(program, rank, 0, 1);
        /* Allow the peer to write to this output: the last run's data there has been read. */
        for (int peer = 0; peer < ranks; peer++)
            if (peer != rank)
                banyan_program_memory_signal_relaxed(to[rank][peer], 0, BANYAN_SYNC_NONE);
        banyan_program_copy(program, rank, banyan_program_output(program, rank, own, own + 1),
                            input, BANYAN_TB(0));
        for (int i = 1; i < ranks; i++) { /* each rank begins with its next one */
            int peer = (rank + i) % ranks;
            banyan_program_memory_wait_relaxed(to[rank][peer], 0, BANYAN_SYNC_AFTER);
            banyan_program_memory_put(to[rank][peer],
                                      banyan_program_output(program, peer, own, own + 1), input,
                                      BANYAN_TB(0));
            banyan_program_memory_signal(to[rank][peer], 0, BANYAN_SYNC_BEFORE);
        }
        for (int peer = 0; peer < ranks; peer++)
            if (peer != rank)
                banyan_program_memory_wait(to[rank][peer], 0, BANYAN_SYNC_NONE);
    }
    OK(banyan_program_compile(program, &plan));
    banyan_program_destroy(program);
    return plan;
}

int main(void)
{
    banyan_world *world;
    banyan_comm *comm;
    banyan_check_report *report;
    const char *name;
    char *findings;
    OK(banyan_world_open(NULL, &world));
    int rank = banyan_world_rank(world), ranks = banyan_world_size(world);
    if (ranks > MOST_RANKS)
        exit((fprintf(stderr, "at most %d ranks\n", MOST_RANKS), 2));
    banyan_plan *plan = write_allgather(ranks);
    OK(banyan_plan_check(plan, NULL, &report));
    if (!banyan_check_report_is_sound(report)) {
        OK(banyan_check_report_print(report, "my_allgather", false, &findings));
        exit((fputs(findings, stderr), 1));
    }
    banyan_check_report_destroy(report);

    float *input = malloc(COUNT * sizeof *input);
    float *output = malloc((size_t)ranks * COUNT * sizeof *output);
    for (int i = 0; i < COUNT; i++)
        input[i] = (float)(rank * COUNT + i);
    OK(banyan_comm_create(world, NULL, &comm));
    OK(banyan_comm_add_plan(comm, plan));
    OK(banyan_comm_allgather(comm, input, output, COUNT, BANYAN_F32, NULL));
    OK(banyan_comm_choice(comm, BANYAN_ALLGATHER, COUNT * sizeof *input, BANYAN_F32, BANYAN_SUM,
                          false, false, &name));
    printf("rank %d: %s has brought %g\n", rank, name, output[(size_t)ranks * COUNT - 1]);
    OK(banyan_comm_destroy(comm));
    banyan_plan_destroy(plan);
    free(input), free(output);
    OK(banyan_world_close(world));
}
