/* Planned random worlds, and checks of all their transfers. */
#ifndef TESTS_RESHARD_PLANNED_H
#define TESTS_RESHARD_PLANNED_H

#include "reshard/plan_world.h"
#include "reshard/random_case.h"

static inline plan_world *plan_case(const random_case *planned, const int *node_of,
                                    uint64_t min_split_bytes)
{
    size_t size = (size_t)planned->world_size;
    banyan_layout **sources = calloc(size, sizeof *sources);
    banyan_layout **destinations = calloc(size, sizeof *destinations);
    for (int rank = 0; rank < planned->world_size; rank++) {
        sources[rank] = case_layout(planned, rank, false);
        destinations[rank] = case_layout(planned, rank, true);
    }
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    options.min_split_bytes = min_split_bytes;
    return plan_world_make_on(planned->world_size, node_of, sources, destinations, &options);
}

/* Row-major places of a box's elements in a tensor. */
static inline void for_each_element(const banyan_box *box, const int64_t *shape,
                                    void (*visit)(void *context, uint64_t index), void *context)
{
    uint64_t count = banyan_box_elems(box);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t rest = i, index = 0, place[BANYAN_MAX_DIMS];
        for (int d = box->ndim - 1; d >= 0; d--) {
            place[d] = (uint64_t)box->start[d] + rest % (uint64_t)box->extent[d];
            rest /= (uint64_t)box->extent[d];
        }
        for (int d = 0; d < box->ndim; d++)
            index = index * (uint64_t)shape[d] + place[d];
        visit(context, index);
    }
}

static inline void count_up(void *context, uint64_t index)
{
    ((unsigned char *)context)[index]++;
}

struct expectation {
    unsigned char *counts;
    unsigned char expected;
};

static inline void expect_count(void *context, uint64_t index)
{
    const struct expectation *expectation = context;
    CHECK(expectation->counts[index] == expectation->expected, "element %" PRIu64 ": %d times",
          index, expectation->counts[index]);
}

static inline bool holds(const banyan_layout *layout, const char *name, const banyan_box *box)
{
    for (size_t i = 0; i < banyan_layout_piece_count(layout); i++) {
        const banyan_piece *piece = banyan_layout_piece(layout, i);
        banyan_box common;
        if (strcmp(piece->name, name) == 0 &&
            (banyan_box_equal(box, &piece->box) ||
             (banyan_box_intersect(box, &piece->box, &common) && banyan_box_equal(box, &common))))
            return true;
    }
    return false;
}

/* True if the rank holds any element of the box. */
static inline bool touches(const banyan_layout *layout, const char *name, const banyan_box *box)
{
    for (size_t i = 0; i < banyan_layout_piece_count(layout); i++) {
        const banyan_piece *piece = banyan_layout_piece(layout, i);
        banyan_box common;
        if (strcmp(piece->name, name) == 0 && banyan_box_intersect(box, &piece->box, &common))
            return true;
    }
    return false;
}

/* The sender of stage 1 received the very box from another rank. */
static inline void check_passed_on(const plan_world *world, const banyan_transfer *recv)
{
    const planner_result *sender = &world->results[recv->source_rank];
    size_t found = 0;
    for (size_t i = 0; i < sender->recv_count; i++) {
        const banyan_transfer *first = &sender->recvs[i];
        found += first->stage == 0 && first->source_rank != recv->source_rank &&
                 first->turn == recv->turn && strcmp(first->name, recv->name) == 0 &&
                 banyan_box_equal(&first->box, &recv->box);
    }
    CHECK(found > 0, "%s: rank %d passes on what it does not receive", recv->name,
          recv->source_rank);
}

static inline void check_receiver(const plan_world *world, int rank)
{
    const banyan_layout *layout = world->destinations[rank];
    const planner_result *result = &world->results[rank];
    for (size_t p = 0; p < banyan_layout_piece_count(layout); p++) {
        const banyan_piece *piece = banyan_layout_piece(layout, p);
        banyan_box whole = box_whole(piece->ndim, piece->shape);
        struct expectation once = {calloc(banyan_box_elems(&whole), 1), 1};
        for (size_t i = 0; i < result->recv_count; i++) {
            const banyan_transfer *recv = &result->recvs[i];
            if (recv->destination_piece != p)
                continue;
            CHECK(strcmp(recv->name, piece->name) == 0 && recv->destination_rank == rank);
            CHECK(holds(layout, piece->name, &recv->box));
            /* A rank takes elements that it holds from itself. */
            CHECK((recv->source_rank == rank && recv->stage == 0) ||
                  !touches(world->sources[rank], recv->name, &recv->box));
            if (recv->stage == 0)
                CHECK(holds(world->sources[recv->source_rank], recv->name, &recv->box));
            else
                check_passed_on(world, recv);
            for_each_element(&recv->box, piece->shape, count_up, once.counts);
        }
        for_each_element(&piece->box, piece->shape, expect_count, &once);
        free(once.counts);
    }
}

static inline const banyan_transfer *find_id(const banyan_transfer *transfers, size_t count,
                                             int from, int to, uint64_t task_id)
{
    const banyan_transfer *found = NULL;
    for (size_t i = 0; i < count; i++) {
        if (transfers[i].source_rank != from || transfers[i].destination_rank != to ||
            transfers[i].task_id != task_id)
            continue;
        CHECK(!found, "the id %" PRIx64 " twice from %d to %d", task_id, from, to);
        found = &transfers[i];
    }
    return found;
}

static inline const banyan_piece *sending_piece(const plan_world *world,
                                                const banyan_transfer *sent)
{
    banyan_layout **layouts = sent->stage == 0 ? world->sources : world->destinations;
    return banyan_layout_piece(layouts[sent->source_rank], sent->source_piece);
}

static inline void check_both_ends(const plan_world *world, int rank)
{
    size_t from_others = 0, sent_here = 0;
    const planner_result *mine = &world->results[rank];
    for (size_t i = 0; i < mine->recv_count; i++) {
        const banyan_transfer *recv = &mine->recvs[i];
        CHECK(find_id(mine->recvs, mine->recv_count, recv->source_rank, rank, recv->task_id) ==
              recv);
        if (recv->source_rank == rank) {
            const banyan_piece *piece = sending_piece(world, recv);
            banyan_box common;
            CHECK(strcmp(piece->name, recv->name) == 0);
            CHECK(banyan_box_intersect(&piece->box, &recv->box, &common) &&
                  banyan_box_equal(&common, &recv->box));
            continue;
        }
        from_others++;
        CHECK(recv->source_piece == SIZE_MAX);
        const planner_result *theirs = &world->results[recv->source_rank];
        const banyan_transfer *send =
            find_id(theirs->sends, theirs->send_count, recv->source_rank, rank, recv->task_id);
        CHECK(send, "%s: rank %d does not send it to %d", recv->name, recv->source_rank, rank);
        CHECK(strcmp(send->name, recv->name) == 0 && banyan_box_equal(&send->box, &recv->box));
        CHECK(send->bytes == recv->bytes && send->destination_piece == SIZE_MAX);
        CHECK(banyan_dtype_equal(send->destination_dtype, recv->destination_dtype));
        CHECK(send->stage == recv->stage && send->turn == recv->turn);
        const banyan_piece *piece = sending_piece(world, send);
        banyan_box common;
        CHECK(banyan_box_intersect(&piece->box, &send->box, &common) &&
              banyan_box_equal(&common, &send->box));
    }
    for (int other = 0; other < world->size; other++)
        for (size_t i = 0; i < world->results[other].send_count; i++)
            sent_here += world->results[other].sends[i].destination_rank == rank;
    CHECK(sent_here == from_others, "%zu sent to rank %d, %zu expected", sent_here, rank,
          from_others);
}

#endif
