/* Flows that share links and memories.
 *
 * A flow carries bytes over several resources at once, at one rate: what it is limited to itself,
 * or less where a resource is full. Full resources are shared max-min fairly: no flow can have more
 * without taking from one that has no more than it. Rates change only when a flow begins or ends,
 * and only those of flows that are tied to it by resources that are full. */
#ifndef SIMULATE_ENGINE_SHARING_H
#define SIMULATE_ENGINE_SHARING_H

#include "core/containers/array.h"
#include "simulate/engine/agenda.h"

typedef struct flow_use {
    uint32_t resource;
    uint32_t place; /* in the resource's list of flows */
    double bytes;   /* that it carries there, in all */
    double room;    /* that they take there */
    double weight;  /* room for each byte of the flow */
} flow_use;

typedef struct flow {
    ARRAY(flow_use) uses;
    double limit, rate, left; /* bytes a second, and bytes */
    uint64_t since_ps;        /* `left` is of then */
    bool flows, settled;
    uint64_t seen;
} flow;

typedef struct resource_user {
    uint32_t flow, use;
    double weight; /* of the use: here so that adding them up does not go to every flow */
} resource_user;

typedef struct resource {
    double bytes_per_s;
    double wanted; /* by all its flows, if each had its limit */
    ARRAY(resource_user) users;
    uint64_t busy_since_ps, busy_ps;
    double carried;      /* bytes */
    double room, weight; /* while rates are found: what is left, and for whom */
    uint64_t seen, stamp;
    uint32_t stamped_use;
    bool changed;
} resource;

/* Of what a resource has left, for each flow that has no rate yet. */
typedef struct resource_share {
    double each;
    uint32_t resource;
} resource_share;

typedef struct sharing {
    agenda *ends; /* flow i is lane i there */
    resource *resources;
    flow *flows;
    uint32_t resource_count, flow_count;
    ARRAY(uint32_t) changed; /* resources whose flows may get another rate */
    ARRAY(uint32_t) tied_flows, tied_resources;
    ARRAY(resource_share) shares; /* of tied resources: a heap, the scarcest first */
    uint64_t searches, stamps;
} sharing;

banyan_status sharing_make(agenda *ends, uint32_t flow_count, uint32_t resource_count,
                           sharing *made);
void sharing_free(sharing *old);

/* A flow is put together: begin, then what it carries over each resource, then go. */
void flow_begin(sharing *all, uint32_t number);
/* Bytes over the resource `of`. False, as below, when memory ran out. */
bool flow_add(sharing *all, uint32_t number, uint32_t of, double bytes);
/* Bytes that take `overhead` times their room there: of headers, say. */
bool flow_add_framed(sharing *all, uint32_t number, uint32_t of, double bytes, double overhead);
/* `amount` bytes, at most `limit` a second; what was added belongs to all of it. It flows from
 * sharing_settle on. */
bool flow_go(sharing *all, uint32_t number, double amount, double limit, uint64_t now_ps);
/* When the agenda says that it is through. */
bool flow_end(sharing *all, uint32_t number, uint64_t now_ps);

/* After all that happened at this time: find the rates, and when flows will be through. */
banyan_status sharing_settle(sharing *all, uint64_t now_ps);

#endif
