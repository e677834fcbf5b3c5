/* The shm transport without addresses: for tests of code that must not need them. */
#ifndef TESTS_COPY_STAGED_TRANSPORT_H
#define TESTS_COPY_STAGED_TRANSPORT_H

#include "support/test.h"

static const banyan_transport_ops *staged_shm;
static int staged_puts;

static uint64_t staged_capabilities(void *state, int peer)
{
    return staged_shm->capabilities(state, peer) & ~(uint64_t)BANYAN_TRANSPORT_ADDRESS;
}

static banyan_status staged_put_with_add(void *state, const banyan_remote *destination,
                                         const void *source, size_t bytes,
                                         const banyan_remote *counter, uint64_t add)
{
    __atomic_fetch_add(&staged_puts, 1, __ATOMIC_RELAXED);
    return staged_shm->put_with_add(state, destination, source, bytes, counter, add);
}

static banyan_status staged_address(void *state, const banyan_remote *remote, void **address)
{
    (void)state;
    (void)remote;
    (void)address;
    return banyan_error_set(BANYAN_ERR_UNSUPPORTED, "transport staged has no addresses");
}

static inline banyan_transport *staged_transport_open(banyan_world *world)
{
    static banyan_transport_ops ops;
    static int ready;
    const banyan_transport_ops *shm;
    CHECK_OK(banyan_transport_find("shm", &shm));
    if (__atomic_exchange_n(&ready, 1, __ATOMIC_ACQ_REL) == 0) {
        staged_shm = shm;
        ops = *shm;
        ops.name = "staged";
        ops.capabilities = staged_capabilities;
        ops.put_with_add = staged_put_with_add;
        ops.address = staged_address;
    }
    banyan_transport *transport;
    CHECK_OK(banyan_world_barrier(world));
    CHECK_OK(banyan_transport_open_ops(world, &ops, &transport));
    return transport;
}

#endif
