/* Move a model from the ranks that train it to the ranks that serve it, step after step. The first
 * four ranks train (tp=2, pp=2, Megatron-Core's tensors), the next four serve (tp=4, vLLM's).
 *
 *     banyan launch -n 8 -- example_weights examples/models/qwen3-0.6b.json
 */
#include <banyan/banyan.h>
#include <stdio.h>
#include <stdlib.h>

#define OK(call) ((call) ? exit((fprintf(stderr, "%s\n", banyan_last_error()), 1)) : (void)0)

/* Bind the program's own memory to every tensor of a layout. */
static banyan_tensors *bind(const banyan_layout *layout)
{
    size_t count = banyan_layout_tensor_count(layout);
    DLTensor *tensors = calloc(count + 1, sizeof *tensors);
    banyan_tensors *set;
    for (size_t i = 0; i < count; i++) {
        const banyan_local_tensor *local = banyan_layout_tensor(layout, i);
        size_t bytes = banyan_dtype_bytes(local->dtype);
        for (int d = 0; d < local->ndim; d++)
            bytes *= (size_t)local->shape[d];
        tensors[i] = (DLTensor){.data = calloc(1, bytes), /* or the parameter's data pointer */
                                .device = BANYAN_HOST,
                                .ndim = local->ndim,
                                .dtype = local->dtype,
                                .shape = (int64_t *)local->shape};
    }
    OK(banyan_tensors_create(layout, tensors, count, &set));
    free(tensors);
    return set;
}

int main(int argc, char **argv)
{
    banyan_world *world;
    banyan_model *model;
    banyan_rules *rules;
    banyan_spec trainer, engine;
    banyan_layout *has, *wants;
    banyan_reshard_plan *plan;
    banyan_copy_service *service;
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    OK(banyan_world_open(NULL, &world));
    OK(banyan_model_load(argc > 1 ? argv[1] : "examples/models/qwen3-0.6b.json", &model));
    OK(banyan_rules_load(NULL, &rules)); /* the built-in ones */
    OK(banyan_spec_parse("tp=2,pp=2,packing=megatron", &trainer));
    OK(banyan_spec_parse("tp=4,packing=vllm", &engine));
    int rank = banyan_world_rank(world), trainers = banyan_spec_world_size(&trainer);
    int engines = banyan_spec_world_size(&engine);
    if (banyan_world_size(world) != trainers + engines)
        exit((fprintf(stderr, "start %d ranks\n", trainers + engines), 2));

    /* A trainer has no destination and an engine no source: an empty layout. */
    OK(banyan_layout_create(&has) || banyan_layout_create(&wants));
    if (rank < trainers)
        banyan_layout_add_model(has, model, rules, &trainer, rank, 0);
    else
        banyan_layout_add_model(wants, model, rules, &engine, rank - trainers, trainers);
    OK(banyan_layout_check(has) || banyan_layout_check_as(wants, BANYAN_DESTINATION));
    banyan_tensors *source = bind(has), *destination = bind(wants);

    options.require_whole_source = true; /* an error if a weight of the trainer arrives nowhere */
    OK(banyan_reshard_plan_create(has, wants, world, &options, &plan)); /* once */
    OK(banyan_copy_service_open(world, NULL, NULL, &service));
    for (int step = 0; step < 3; step++) { /* after every training step */
        OK(banyan_reshard_execute(plan, source, destination, service, world, NULL, NULL));
        if (rank == trainers)
            printf("the engine holds version %d\n", (int)banyan_tensors_version(destination));
    }

    banyan_copy_service_close(service);
    banyan_reshard_plan_destroy(plan);
    banyan_tensors_destroy(source), banyan_tensors_destroy(destination);
    banyan_layout_destroy(has), banyan_layout_destroy(wants);
    banyan_rules_destroy(rules), banyan_model_destroy(model);
    OK(banyan_world_close(world));
}
