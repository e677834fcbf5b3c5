/* Flows that share links and memories.
 *
 * A flow carries bytes over several resources at once, at one rate: its own limit, or less where a
 * resource is full. Full resources are shared max-min fairly: no flow can have more without taking
 * from one that has no more than it. Rates change only when a flow begins or ends, and only those
 * of flows that full resources tie to it. */
#ifndef SIMULATE_ENGINE_SHARING_H
#define SIMULATE_ENGINE_SHARING_H

#include "core/containers.h"
#include "simulate/engine/agenda.h"

typedef struct flow_use {
    uint32_t resource;
    uint32_t place; /* in the resource's list of flows */
    double bytes;   /* that it carries there in total */
    double room;    /* room that they take there */
    double weight;  /* room for each byte of the flow */
} flow_use;

typedef struct flow {
    ARRAY(flow_use) uses;
    double limit, rate, left; /* bytes per second, and bytes */
    uint64_t since_ps;        /* time at which `left` was computed */
    bool flows, settled;
    uint64_t seen;
} flow;

typedef struct resource_user {
    uint32_t flow, use;
    double weight; /* of the use; a copy here, so that summing does not visit every flow */
} resource_user;

typedef struct resource {
    double bytes_per_s;
    double wanted; /* rate of all its flows at their limits */
    ARRAY(resource_user) users;
    uint64_t busy_since_ps, busy_ps;
    double carried; /* bytes */
    double room,
        weight; /* while rates are computed: remaining room, and weight of the remaining flows */
    uint64_t seen, stamp;
    uint32_t stamped_use;
    bool changed;
} resource;

/* A resource's remaining room per flow without a rate. */
typedef struct resource_share {
    double each;
    uint32_t resource;
} resource_share;

typedef struct sharing {
    agenda *ends; /* lane i belongs to flow i */
    resource *resources;
    flow *flows;
    uint32_t resource_count, flow_count;
    ARRAY(uint32_t) changed; /* resources whose flows may change rates */
    ARRAY(uint32_t) tied_flows, tied_resources;
    ARRAY(resource_share) shares; /* of tied resources: a heap, the scarcest first */
    uint64_t searches, stamps;
} sharing;

banyan_status sharing_make(agenda *ends, uint32_t flow_count, uint32_t resource_count,
                           sharing *made);
void sharing_free(sharing *old);

/* Build a flow: begin, then its bytes over each resource, then go. */
void flow_begin(sharing *all, uint32_t number);
/* Add bytes over the resource `of`. False, as below, when memory ran out. */
bool flow_add(sharing *all, uint32_t number, uint32_t of, double bytes);
/* Add bytes that take `overhead` times their room there, for headers. */
bool flow_add_framed(sharing *all, uint32_t number, uint32_t of, double bytes, double overhead);
/* Start a flow of `amount` bytes, at most `limit` a second, over all that was added. It flows from
 * sharing_settle on. */
bool flow_go(sharing *all, uint32_t number, double amount, double limit, uint64_t now_ps);
/* Remove a flow that is complete according to the agenda. */
bool flow_end(sharing *all, uint32_t number, uint64_t now_ps);

/* After all events of this time: compute the rates, and the times at which flows end. */
banyan_status sharing_settle(sharing *all, uint64_t now_ps);

#endif
