#include "draw/picture.h"

#include <stdlib.h>
#include <string.h>

#include "core/status.h"

static banyan_status picture_out_of_memory(void)
{
    return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory: a picture of a plan");
}

banyan_status picture_begin(picture *of, const banyan_plan *plan)
{
    char *text;
    size_t bytes;
    json_error_t error;
    of->ranks = banyan_plan_describe(plan).ranks;
    RETURN_IF_FAILED(banyan_plan_print(plan, &text, &bytes));
    /* Bounds of messages may be more than jansson's integers hold. */
    of->root = json_loadb(text, bytes, JSON_DECODE_INT_AS_REAL, &error);
    free(text);
    return of->root ? BANYAN_OK : picture_out_of_memory();
}

void picture_free(picture *of)
{
    json_decref(of->root);
    free(of->steps);
    free(of->lanes);
    free(of->arrows);
    *of = (picture){0};
}

banyan_status picture_grow(void **list, size_t *room, size_t count, size_t elem_bytes)
{
    if (count < *room)
        return BANYAN_OK;
    size_t wanted = 2 * *room + 256;
    void *grown = realloc(*list, wanted * elem_bytes);
    if (!grown)
        return picture_out_of_memory();
    *list = grown;
    *room = wanted;
    return BANYAN_OK;
}

banyan_status picture_add_step(picture *of, const picture_step *step)
{
    if (of->step_count == PICTURE_STEPS_MOST)
        return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                                "there are more than %d steps: a picture has one to that many",
                                PICTURE_STEPS_MOST);
    RETURN_IF_FAILED(
        picture_grow((void **)&of->steps, &of->step_room, of->step_count, sizeof *of->steps));
    of->has_proxies |= step->proxy;
    of->steps[of->step_count++] = *step;
    return BANYAN_OK;
}

banyan_status picture_take_simulation(picture *of, const banyan_simulation *simulation)
{
    banyan_simulation_step step;
    for (size_t i = 0; banyan_simulation_step_at(simulation, i, &step); i++) {
        picture_step taken = {.rank = step.rank,
                              .thread_block = step.thread_block,
                              .operation = step.operation,
                              .loop_operation = step.loop_operation,
                              .iteration = step.iteration,
                              .proxy = step.proxy,
                              .began_s = step.began_s,
                              .ended_s = step.ended_s,
                              .after = step.after};
        RETURN_IF_FAILED(picture_add_step(of, &taken));
    }
    return BANYAN_OK;
}

static banyan_status picture_take_block(picture *of, int rank, int number, const json_t *block)
{
    size_t at = 0, i;
    json_t *op;
    json_array_foreach(json_object_get(block, "ops"), i, op)
    {
        size_t inside = json_array_size(json_object_get(op, "ops"));
        for (size_t k = 0; k < (inside > 0 ? inside : 1); k++, at++) {
            picture_step step = {.rank = rank,
                                 .thread_block = number,
                                 .operation = (int)i,
                                 .loop_operation = inside > 0 ? (int)k : -1,
                                 .began_s = (double)at * 1e-9,
                                 .ended_s = (double)(at + 1) * 1e-9,
                                 .after = PICTURE_NONE};
            RETURN_IF_FAILED(picture_add_step(of, &step));
        }
    }
    return BANYAN_OK;
}

banyan_status picture_take_order(picture *of)
{
    size_t r, b;
    json_t *rank, *block;
    of->timeless = true;
    json_array_foreach(json_object_get(of->root, "gpus"), r, rank)
    {
        json_array_foreach(json_object_get(rank, "threadblocks"), b, block)
            RETURN_IF_FAILED(picture_take_block(of, (int)r, (int)b, block));
    }
    return BANYAN_OK;
}

uint64_t picture_number(const json_t *value)
{
    double number = json_number_value(value);
    return number > 0 && number < 0x1p53 ? (uint64_t)number : 0;
}

static size_t block_count(const picture *of, int rank)
{
    const json_t *entry = json_array_get(json_object_get(of->root, "gpus"), (size_t)rank);
    return json_array_size(json_object_get(entry, "threadblocks"));
}

static void picture_add_lane(picture *of, picture_lane_kind kind, int rank, int block)
{
    of->lanes[of->lane_count++] = (picture_lane){.kind = kind, .rank = rank, .thread_block = block};
}

/* Steps of a rank go to the lane of their thread block, or that of its proxy. `lane_of` is
 * [proxy × most + thread block], PICTURE_NONE without one. */
static void picture_add_lanes(picture *of, int rank, size_t most, size_t *lane_of)
{
    size_t blocks = block_count(of, rank);
    picture_add_lane(of, PICTURE_RANK, rank, -1);
    for (size_t b = 0; b < blocks; b++) {
        lane_of[b] = of->lane_count;
        picture_add_lane(of, PICTURE_BLOCK, rank, (int)b);
    }
    for (size_t b = 0; b < blocks; b++) {
        if (lane_of[most + b] == PICTURE_NONE)
            continue;
        lane_of[most + b] = of->lane_count;
        picture_add_lane(of, PICTURE_PROXY, rank, (int)b);
    }
    picture_add_lane(of, PICTURE_BUFFERS, rank, -1);
}

static banyan_status picture_make_lanes(picture *of)
{
    size_t most = 1, all = 0;
    for (int r = 0; r < of->ranks; r++) {
        size_t blocks = block_count(of, r);
        most = blocks > most ? blocks : most;
        all += 2 + 2 * blocks;
    }
    size_t row = 2 * most, *lane_of = calloc((size_t)of->ranks * row, sizeof *lane_of);
    of->lanes = calloc(all, sizeof *of->lanes);
    if (!lane_of || !of->lanes) {
        free(lane_of);
        return picture_out_of_memory();
    }
    for (size_t i = 0; i < (size_t)of->ranks * row; i++)
        lane_of[i] = PICTURE_NONE;
    for (size_t i = 0; i < of->step_count; i++) {
        const picture_step *step = &of->steps[i];
        if (step->proxy)
            lane_of[(size_t)step->rank * row + most + (size_t)step->thread_block] = 0;
    }
    for (int r = 0; r < of->ranks; r++)
        picture_add_lanes(of, r, most, lane_of + (size_t)r * row);
    for (size_t i = 0; i < of->step_count; i++) {
        picture_step *step = &of->steps[i];
        step->lane = lane_of[(size_t)step->rank * row + (step->proxy ? most : 0) +
                             (size_t)step->thread_block];
    }
    free(lane_of);
    return BANYAN_OK;
}

banyan_status picture_finish(picture *of)
{
    if (of->step_count == 0)
        return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                                "the plan makes no steps: there is nothing to draw");
    RETURN_IF_FAILED(picture_make_lanes(of));
    return picture_add_arrows(of);
}
