/* Print this rank and its peers. Start it with any of
 *
 *     banyan launch -n 4 -- example_hello
 *     torchrun --no-python --nproc-per-node 4 example_hello
 *     mpirun -n 4 example_hello
 *     example_hello
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <banyan/world.h>

static void check(banyan_status status)
{
    if (status == BANYAN_OK)
        return;
    fprintf(stderr, "hello: %s\n", banyan_last_error());
    exit(1);
}

int main(void)
{
    banyan_world *world;
    check(banyan_world_open(NULL, &world));
    int rank = banyan_world_rank(world), size = banyan_world_size(world);

    int *processes = calloc((size_t)size, sizeof *processes);
    int process = getpid();
    if (!processes)
        return 1;
    check(banyan_world_allgather(world, &process, sizeof process, processes));

    printf("rank %d of %d, node %d of %d, the next rank is process %d\n", rank, size,
           banyan_world_node_of(world, rank), banyan_world_node_count(world),
           processes[(rank + 1) % size]);
    free(processes);

    check(banyan_world_barrier(world));
    check(banyan_world_close(world));
    return 0;
}
