#include <banyan/banyan.h>
#include <stdio.h>
#include <stdlib.h>

#define OK(call) ((call) ? exit((fprintf(stderr, "%s\n", banyan_last_error()), 1)) : (void)0)

int main(void)
{
    banyan_world *world;
    banyan_layout *trainer, *engine;
    banyan_tensors *source, *destination;
    banyan_reshard_plan *plan;
    banyan_copy_service *service;
    OK(banyan_world_open(NULL, &world));
    /* The trainer shards by rows, the engine by columns. Planning reports the layouts' errors. */
    banyan_mesh mesh = {.ndim = 1, .extent = {banyan_world_size(world)}};
    banyan_placement rows = {BANYAN_SHARD, 0}, columns = {BANYAN_SHARD, 1};
    int64_t shape[] = {4096, 4096};
    int rank = banyan_world_rank(world);
    OK(banyan_layout_create(&trainer) || banyan_layout_create(&engine));
    banyan_layout_add_sharded(trainer, "weight", BANYAN_BF16, 2, shape, &mesh, &rows, rank);
    banyan_layout_add_sharded(engine, "weight", BANYAN_BF16, 2, shape, &mesh, &columns, rank);
    OK(banyan_tensors_alloc(trainer, world, &source)); /* or banyan_tensors_create: your memory */
    OK(banyan_tensors_alloc(engine, world, &destination));
    OK(banyan_reshard_plan_create(trainer, engine, world, NULL, &plan)); /* once */
    OK(banyan_copy_service_open(world, NULL, NULL, &service));
    for (int step = 0; step < 3; step++) /* after every training step */
        OK(banyan_reshard_execute(plan, source, destination, service, world, NULL, NULL));
    printf("rank %d holds version %d\n", rank, (int)banyan_tensors_version(destination));
    banyan_copy_service_close(service);
    banyan_reshard_plan_destroy(plan);
    banyan_tensors_destroy(source), banyan_tensors_destroy(destination);
    banyan_layout_destroy(trainer), banyan_layout_destroy(engine);
    OK(banyan_world_close(world));
}
