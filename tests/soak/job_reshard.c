/* Jobs that move tensors between layouts, and save them. */
#include "reshard/filled.h"
#include "reshard/random_case.h"
#include "soak/job.h"
#include "support/folder.h"

#include <banyan/checkpoint.h>
#include <banyan/reshard.h>

/* One rank's part of a random case. */
typedef struct side {
    banyan_layout *layout;
    banyan_tensors *tensors;
} side;

static void side_end(side *of)
{
    banyan_tensors_destroy(of->tensors);
    banyan_layout_destroy(of->layout);
}

static random_case *any_case(job *of)
{
    case_options options = {.world_size = banyan_world_size(of->world), .max_elems = 4000};
    if (options.world_size > 1 && random_next(&of->random) % 3 == 0)
        options.first_destination_rank =
            (int)random_between(&of->random, 1, options.world_size - 1);
    return case_make(random_next(&of->random), &options);
}

static banyan_status move(job *of, banyan_copy_service *service, banyan_reshard_plan *plan,
                          const side *source, const side *destination)
{
    bool more = true;
    banyan_status status = BANYAN_OK;
    for (int pass = 0; pass < 3 && status == BANYAN_OK && more; pass++) {
        filled_make(source->layout, source->tensors, pass);
        filled_poison(destination->tensors);
        status = banyan_reshard_execute(plan, source->tensors, destination->tensors, service,
                                        of->world, NULL, NULL);
        banyan_tensors_state state = banyan_tensors_get_state(destination->tensors);
        CHECK((state == BANYAN_TENSORS_WHOLE) == (status == BANYAN_OK), "state %d after %s", state,
              banyan_status_name(status));
        if (status == BANYAN_OK) {
            filled_check(destination->layout, destination->tensors, pass, false);
            status = job_next(of, &more);
        }
    }
    return status;
}

static banyan_status plan_and_move(job *of, const random_case *made, banyan_copy_service *service,
                                   bool symmetric)
{
    int rank = banyan_world_rank(of->world);
    banyan_world *memory = symmetric ? of->world : NULL;
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    banyan_reshard_plan *plan = NULL;
    side source = {case_layout(made, rank, false), NULL};
    side destination = {case_layout(made, rank, true), NULL};
    options.checksums = made->seed % 2;
    options.min_split_bytes = 256;
    banyan_status status =
        banyan_reshard_plan_create(source.layout, destination.layout, of->world, &options, &plan);
    if (status == BANYAN_OK)
        status = banyan_tensors_alloc(source.layout, memory, &source.tensors);
    if (status == BANYAN_OK)
        status = banyan_tensors_alloc_planned(plan, memory, &destination.tensors);
    if (status == BANYAN_OK)
        status = move(of, service, plan, &source, &destination);
    banyan_reshard_plan_destroy(plan);
    side_end(&destination);
    side_end(&source);
    return status;
}

banyan_status job_reshard(job *of)
{
    const char *backend = random_next(&of->random) % 2 ? "direct" : "pipeline";
    bool symmetric = random_next(&of->random) % 2, more = true;
    banyan_copy_service *service = NULL;
    banyan_status status = banyan_copy_service_open(of->world, backend, NULL, &service);
    while (status == BANYAN_OK && more) {
        random_case *made = any_case(of);
        status = plan_and_move(of, made, service, symmetric);
        free(made);
        if (status == BANYAN_OK)
            status = job_next(of, &more);
    }
    banyan_copy_service_close(service);
    return status;
}

static void read_back(const char *folder, const side *saved)
{
    banyan_checkpoint *checkpoint;
    banyan_tensors *tensors;
    CHECK_OK(banyan_checkpoint_open(folder, &checkpoint));
    CHECK_OK(banyan_tensors_alloc(saved->layout, NULL, &tensors));
    filled_poison(tensors);
    CHECK_OK(banyan_checkpoint_load(checkpoint, saved->layout, tensors, NULL));
    filled_each(saved->layout, tensors, filled_compare, &(struct filled_expectation){0});
    banyan_tensors_destroy(tensors);
    banyan_checkpoint_close(checkpoint);
}

banyan_status job_save(job *of)
{
    int rank = banyan_world_rank(of->world);
    bool more = true;
    banyan_status status = BANYAN_OK;
    while (status == BANYAN_OK && more) {
        char *folder;
        CHECK(asprintf(&folder, "%s/saved-%d", of->folder, of->rounds) > 0);
        random_case *made = any_case(of);
        side source = {case_layout(made, rank, false), NULL};
        CHECK_OK(banyan_tensors_alloc(source.layout, NULL, &source.tensors));
        filled_make(source.layout, source.tensors, 0);
        status = banyan_checkpoint_save(folder, source.layout, source.tensors, of->world, NULL);
        if (status == BANYAN_OK)
            read_back(folder, &source);
        side_end(&source);
        free(made);
        free(folder);
        if (status == BANYAN_OK)
            status = job_next(of, &more);
    }
    return status;
}
