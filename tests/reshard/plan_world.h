/* A world planned in one process: every rank's planner, with the directory's own steps between. */
#ifndef TESTS_RESHARD_PLAN_WORLD_H
#define TESTS_RESHARD_PLAN_WORLD_H

#include "support/test.h"

#include "reshard/planner/rank.h"
#include "world/directory/directory.h"

typedef struct plan_world {
    int size;
    banyan_layout **sources, **destinations;
    directory_part **parts;
    planner **planners;
    planner_result *results;
    banyan_status *statuses;
    char (*errors)[1024];
} plan_world;

static inline banyan_status plan_world_put(void *part, const char *key, const void *value,
                                           size_t bytes, const banyan_rank_set *holders)
{
    return directory_part_put(part, key, value, bytes, holders);
}

static inline void plan_world_exchange(plan_world *world)
{
    for (int rank = 0; rank < world->size; rank++) {
        control_message *messages;
        size_t count;
        CHECK_OK(directory_part_take_puts(world->parts[rank], &messages, &count));
        for (size_t i = 0; i < count; i++)
            CHECK_OK(directory_part_absorb(world->parts[messages[i].rank], rank, messages[i].data,
                                           messages[i].bytes));
        control_messages_free(messages, count);
    }
}

static inline banyan_status plan_world_round(plan_world *world, int rank)
{
    size_t count, message_count;
    const char *const *keys;
    control_message *messages;
    RETURN_IF_FAILED(planner_ask(world->planners[rank], &count, &keys));
    directory_part *part = world->parts[rank];
    CHECK_OK(directory_part_ask(part, count, keys, &messages, &message_count));
    control_message *answers = calloc(message_count + 1, sizeof *answers);
    for (size_t i = 0; i < message_count; i++) {
        answers[i].rank = messages[i].rank;
        CHECK_OK(directory_part_answer(world->parts[messages[i].rank], messages[i].data,
                                       messages[i].bytes, &answers[i].data, &answers[i].bytes));
    }
    banyan_status status =
        directory_part_visit(part, answers, message_count, planner_receive, world->planners[rank]);
    control_messages_free(messages, message_count);
    control_messages_free(answers, message_count);
    return status;
}

/* Takes ownership of the layouts (NULL if a rank has none), not of the ranks' nodes. `statuses` and
 * `errors` receive each rank's result. */
static inline plan_world *plan_world_make_on(int size, const int *node_of, banyan_layout **sources,
                                             banyan_layout **destinations,
                                             const banyan_reshard_options *options)
{
    plan_world *world = calloc(1, sizeof *world);
    world->size = size;
    world->sources = sources;
    world->destinations = destinations;
    world->parts = calloc((size_t)size, sizeof *world->parts);
    world->planners = calloc((size_t)size, sizeof *world->planners);
    world->results = calloc((size_t)size, sizeof *world->results);
    world->statuses = calloc((size_t)size, sizeof *world->statuses);
    world->errors = calloc((size_t)size, sizeof *world->errors);
    for (int rank = 0; rank < size; rank++) {
        CHECK_OK(directory_part_create(rank, size, &world->parts[rank]));
        world->statuses[rank] = planner_create(rank, size, node_of, sources[rank],
                                               destinations[rank], options, &world->planners[rank]);
        if (world->statuses[rank] == BANYAN_OK)
            CHECK_OK(planner_describe(world->planners[rank], plan_world_put, world->parts[rank]));
        else
            snprintf(world->errors[rank], sizeof world->errors[rank], "%s", banyan_last_error());
    }
    plan_world_exchange(world);
    for (int rank = 0; rank < size; rank++) {
        banyan_status *status = &world->statuses[rank];
        for (int round = 0; round < PLANNER_ROUNDS && *status == BANYAN_OK; round++)
            *status = plan_world_round(world, rank);
        if (*status == BANYAN_OK)
            *status = planner_derive(world->planners[rank], &world->results[rank]);
        if (*status == BANYAN_OK)
            *status = planner_check_whole_source(world->planners[rank]);
        if (*status != BANYAN_OK && world->planners[rank])
            snprintf(world->errors[rank], sizeof world->errors[rank], "%s", banyan_last_error());
    }
    return world;
}

/* All ranks share one node. */
static inline plan_world *plan_world_make(int size, banyan_layout **sources,
                                          banyan_layout **destinations,
                                          const banyan_reshard_options *options)
{
    return plan_world_make_on(size, NULL, sources, destinations, options);
}

static inline void plan_world_free(plan_world *world)
{
    for (int rank = 0; rank < world->size; rank++) {
        banyan_layout_destroy(world->sources[rank]);
        banyan_layout_destroy(world->destinations[rank]);
        directory_part_destroy(world->parts[rank]);
        planner_destroy(world->planners[rank]);
        planner_result_free(&world->results[rank]);
    }
    free(world->sources);
    free(world->destinations);
    free(world->parts);
    free(world->planners);
    free(world->results);
    free(world->statuses);
    free(world->errors);
    free(world);
}

#endif
