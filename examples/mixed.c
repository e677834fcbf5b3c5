#include <banyan/banyan.h>
#include <stdio.h>
#include <stdlib.h>

#define OK(call) ((call) ? exit((fprintf(stderr, "%s\n", banyan_last_error()), 1)) : (void)0)

enum { ROWS = 3, HIDDEN = 1000 };

int main(void)
{
    static float input[ROWS * HIDDEN];
    banyan_world *world;
    banyan_mixed *mixed;
    OK(banyan_world_open(NULL, &world));
    banyan_mixed_options options = BANYAN_MIXED_OPTIONS_INIT;
    options.dtype = BANYAN_F32;
    options.local_tp = 2; /* the other ranks are data-parallel */
    OK(banyan_mixed_open(world, &options, &mixed));
    banyan_mixed_grid grid = banyan_mixed_describe(mixed);
    for (int i = 0; i < ROWS * HIDDEN; i++)
        input[i] = (float)(grid.dp_index * 100 + i / HIDDEN);

    /* At the end of a layer: sums over tp, gathered over dp. */
    banyan_mixed_op op = grid.dp > 1 ? BANYAN_MIXED_ALLREDUCE_ALLGATHER : BANYAN_MIXED_ALLREDUCE;
    int64_t in[] = {ROWS, HIDDEN}, out[] = {(int64_t)ROWS * grid.dp, HIDDEN};
    float *sums = calloc((size_t)out[0] * HIDDEN, sizeof *sums);
    DLTensor from = {.data = input, .device = BANYAN_HOST, .ndim = 2, .dtype = BANYAN_F32};
    DLTensor to = from;
    from.shape = in;
    to.data = sums;
    to.shape = out;
    OK(banyan_mixed_run(mixed, op, &from, &to, BANYAN_MIXED_AUTO, NULL));
    printf("rank %d: the last row is %g\n", banyan_world_rank(world),
           sums[(size_t)out[0] * HIDDEN - 1]);
    free(sums);
    OK(banyan_mixed_close(mixed));
    OK(banyan_world_close(world));
}
