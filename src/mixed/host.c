#include "mixed/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

typedef struct host_engine {
    const mixed_engine_setup *setup;
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

static void host_close(void *engine)
{
    free(engine);
}

static uint64_t host_room(const void *engine)
{
    (void)engine;
    return 0;
}

static banyan_status host_use(void *engine, char *const *parts)
{
    (void)engine;
    (void)parts;
    return BANYAN_OK;
}

static bool host_has(const void *engine, banyan_mixed_op op, banyan_mixed_mode mode, char *reason,
                     size_t reason_bytes)
{
    (void)engine;
    (void)op;
    (void)mode;
    snprintf(reason, reason_bytes, "the host has no fused modes");
    return false;
}

static banyan_status host_run(void *engine, const mixed_call *call, void *stream)
{
    (void)engine;
    (void)stream;
    return error_set(BANYAN_ERR_UNSUPPORTED, "mode %d", (int)call->mode);
}

static void host_check(void *engine, mixed_report *report)
{
    (void)engine;
    report->verdict = MIXED_FINE;
}

static banyan_status host_copy(void *engine, void *to, const void *from, uint64_t bytes,
                               void *stream)
{
    (void)engine;
    (void)stream;
    memcpy(to, from, (size_t)bytes);
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
    .copy = host_copy,
    .zero = host_zero,
};
