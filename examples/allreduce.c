#include <banyan/banyan.h>
#include <stdio.h>
#include <stdlib.h>

#define OK(call) ((call) ? exit((fprintf(stderr, "%s\n", banyan_last_error()), 1)) : (void)0)

int main(void)
{
    banyan_world *world;
    banyan_comm *comm;
    float gradient[1000];
    OK(banyan_world_open(NULL, &world));
    OK(banyan_comm_create(world, NULL, &comm));
    int rank = banyan_world_rank(world);
    for (int i = 0; i < 1000; i++)
        gradient[i] = (float)(rank + i);
    OK(banyan_comm_allreduce(comm, gradient, gradient, 1000, BANYAN_F32, BANYAN_SUM, NULL));
    printf("rank %d: element 10 is %g\n", rank, gradient[10]);
    OK(banyan_comm_destroy(comm));
    OK(banyan_world_close(world));
}
