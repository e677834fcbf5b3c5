#include "mixed/fused/host.h"

#include <banyan/execute.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "memory/stream.h"
#include "mixed/fused/fused.h"
#include "mixed/modes.h"
#include "world/control.h"

/* Packets are faster than signals up to this many bytes of b rows. Measured. */
#define PACKETS_MOST (UINT64_C(1) << 10)
/* Programs of units are loaded for at least this size: their scratch hardly depends on it. */
#define UNITS_LEAST (UINT64_C(4) << 20)

enum { FORM_UNITS, FORM_PACKETS, FORMS };
enum { APART, IN_PLACE, PLACES };
#define FUSED_MODES (BANYAN_MIXED_TWO_SHOT_NODES - BANYAN_MIXED_ONE_SHOT + 1)

/* A program that is loaded at its first use, and again for a longer message than before. */
typedef struct fused_ready {
    banyan_loaded_plan *loaded;
    uint64_t most_bytes; /* of b rows */
} fused_ready;

typedef struct host_engine {
    const mixed_engine_setup *setup;
    banyan_executor *executor; /* NULL: the ranks are on several machines */
    fused_ready ready[BANYAN_MIXED_OPS][FUSED_MODES][FORMS][PLACES];
} host_engine;

static banyan_status host_open(const mixed_engine_setup *setup, void **engine)
{
    host_engine *made = calloc(1, sizeof *made);
    if (!made)
        return error_no_memory(sizeof *made, "mixed collectives on the host");
    made->setup = setup;
    *engine = made;
    return BANYAN_OK;
}

static void unload_all(host_engine *engine)
{
    for (int op = 0; op < BANYAN_MIXED_OPS; op++) {
        for (int mode = 0; mode < FUSED_MODES; mode++) {
            for (int i = 0; i < FORMS * PLACES; i++) {
                fused_ready *of = &engine->ready[op][mode][i / PLACES][i % PLACES];
                (void)banyan_loaded_plan_close(of->loaded);
                *of = (fused_ready){NULL, 0};
            }
        }
    }
}

static void host_close(void *given)
{
    host_engine *engine = given;
    if (!engine)
        return;
    unload_all(engine);
    banyan_executor_close(engine->executor);
    free(engine);
}

/* No memory: programs bring their own. */
static uint64_t host_room(const void *engine)
{
    (void)engine;
    return 0;
}

static bool fused_host_is_near(const host_engine *engine)
{
    return banyan_world_node_count(engine->setup->worlds[MIXED_WORLD]) == 1;
}

static banyan_status host_use(void *given, char *const *parts)
{
    host_engine *engine = given;
    (void)parts;
    if (!fused_host_is_near(engine))
        return BANYAN_OK;
    return banyan_executor_open(engine->setup->worlds[MIXED_WORLD], NULL, &engine->executor);
}

static bool host_has(const void *given, banyan_mixed_op op, banyan_mixed_mode mode, char *reason,
                     size_t reason_bytes)
{
    const host_engine *engine = given;
    (void)op;
    if (mode_is_multicast(mode))
        snprintf(reason, reason_bytes, "the host has no multicast");
    else if (!fused_host_is_near(engine))
        snprintf(reason, reason_bytes, "the host's programs are of one machine");
    else if (banyan_world_size(engine->setup->worlds[MIXED_WORLD]) > FUSED_RANKS_MOST)
        snprintf(reason, reason_bytes, "the host's programs are of up to %d ranks",
                 FUSED_RANKS_MOST);
    else
        return true;
    return false;
}

static uint64_t power_of_two(uint64_t least, uint64_t bytes)
{
    while (least < bytes)
        least *= 2;
    return least;
}

/* Return the largest input of a rank for this many bytes of b rows. */
static uint64_t message_of(const host_engine *engine, banyan_mixed_op op, uint64_t bytes)
{
    return mixed_input_elems(op, bytes, engine->setup->grid.dp);
}

static banyan_status fused_host_load(host_engine *engine, const fused_kind *kind,
                                     uint64_t most_bytes, banyan_loaded_plan **loaded)
{
    banyan_plan *plan = NULL;
    banyan_world *world = engine->setup->worlds[MIXED_WORLD];
    banyan_status status = control_agree(world, fused_compile(&engine->setup->grid, kind, &plan));
    banyan_loaded_plan_options options = BANYAN_LOADED_PLAN_OPTIONS_INIT;
    options.max_message_bytes = message_of(engine, kind->op, most_bytes);
    if (status == BANYAN_OK)
        status = banyan_loaded_plan_open(engine->executor, plan, &options, loaded);
    banyan_plan_destroy(plan);
    return status;
}

static banyan_status fused_host_prepare(host_engine *engine, const fused_kind *kind, uint64_t bytes,
                                        fused_ready *of)
{
    if (bytes <= of->most_bytes)
        return BANYAN_OK;
    uint64_t most = kind->packets ? PACKETS_MOST : power_of_two(UNITS_LEAST, bytes);
    banyan_loaded_plan *loaded, *before = of->loaded;
    RETURN_IF_FAILED(fused_host_load(engine, kind, most, &loaded));
    *of = (fused_ready){loaded, most};
    return banyan_loaded_plan_close(before);
}

/* Add the call to the executor's message, which names only the program. */
static banyan_status name_call(const mixed_call *call, banyan_status status)
{
    if (status == BANYAN_OK)
        return BANYAN_OK;
    return error_set(status, "%s; the call was %s (%s)", banyan_last_error(),
                     banyan_mixed_op_name(call->op), banyan_mixed_mode_name(call->mode));
}

static banyan_status host_run(void *given, const mixed_call *call, void *stream)
{
    host_engine *engine = given;
    uint64_t bytes = call->elems * banyan_dtype_bytes(engine->setup->dtype);
    fused_kind kind = {.op = call->op,
                       .mode = call->mode,
                       .packets = bytes <= PACKETS_MOST,
                       .in_place = call->input == call->output};
    fused_ready *of =
        &engine->ready[call->op][call->mode - BANYAN_MIXED_ONE_SHOT][kind.packets][kind.in_place];
    banyan_status status = fused_host_prepare(engine, &kind, bytes, of);
    if (status == BANYAN_OK)
        status = banyan_loaded_plan_run(of->loaded, call->input, call->output,
                                        message_of(engine, call->op, bytes), engine->setup->dtype,
                                        stream);
    return name_call(call, status);
}

/* Nothing to report: each run returns its own status. */
static void host_check(void *engine, device_report *report)
{
    (void)engine;
    *report = (device_report){.verdict = DEVICE_FINE};
}

static banyan_status fused_host_copy(void *engine, void *to, const void *from, uint64_t bytes,
                                     void *stream)
{
    (void)engine;
    (void)stream;
    stream_copy(to, from, (size_t)bytes);
    return BANYAN_OK;
}

static banyan_status host_zero(void *engine, void *to, uint64_t bytes, void *stream)
{
    (void)engine;
    (void)stream;
    memset(to, 0, (size_t)bytes);
    return BANYAN_OK;
}

const mixed_engine_ops mixed_host_ops = {
    .size = sizeof(mixed_engine_ops),
    .name = "host",
    .open = host_open,
    .close = host_close,
    .room = host_room,
    .use = host_use,
    .has = host_has,
    .run = host_run,
    .check = host_check,
    .copy = fused_host_copy,
    .zero = host_zero,
};
