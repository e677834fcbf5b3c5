/* Search the orders in which thread blocks can take from channels and semaphores that several of
 * them give to or take from, where the first taker decides who can continue.
 *
 * The replayed plan is kept as a net of each thread block's waits and gives: lanes of events. An
 * event needs other lanes to have reached some point, and may give to or take from a shared
 * counter. The search tries the orders of takes one by one, as far as they can differ. It never
 * delays a take that leaves enough for all others, or that no other lane competes for (persistent
 * sets: Godefroid 1996), and visits each state once, whatever path led to it. */
#ifndef CHECK_ORDERS_ORDERS_H
#define CHECK_ORDERS_ORDERS_H

#include "core/containers.h"

#define ORDER_NONE UINT32_MAX

typedef struct order_need {
    uint32_t lane, at; /* the lane has completed this many of its events */
} order_need;

typedef struct order_event {
    uint32_t instance; /* of the operation; ORDER_NONE: start of a run */
    uint32_t first_need, need_count;
    uint32_t gives, takes; /* a shared counter, or ORDER_NONE */
    uint32_t left;         /* takes from that counter in this lane from here on */
} order_event;

typedef struct order_lane {
    ARRAY(order_event) events;
    ARRAY(order_need) needs; /* the last of them belong to the lane's next event */
} order_lane;

typedef struct order_net {
    order_lane *lanes;
    uint32_t lane_count, counter_count;
    uint64_t *initial; /* of the shared counters */
    uint64_t *takes;   /* total takes of each */
} order_net;

/* Make a net without events. False when memory ran out. */
bool order_net_make(order_net *net, uint32_t lanes, const uint64_t *initial, uint32_t counters);
void order_net_free(order_net *net);
/* Add a need of the lane's next event. */
bool order_net_need(order_net *net, uint32_t lane, order_need need);
bool order_net_add(order_net *net, uint32_t lane, uint32_t instance, uint32_t gives,
                   uint32_t takes);
/* Return the lane's next event. */
static inline uint32_t order_net_next(const order_net *net, uint32_t lane)
{
    return (uint32_t)net->lanes[lane].events.count;
}

typedef struct order_take {
    uint32_t lane, event, counter;
    bool chosen; /* another one could have come first */
} order_take;

typedef ARRAY(order_take) order_take_list;

/* The result of the search. */
typedef struct orders {
    uint64_t looks;       /* its cost */
    bool decided;         /* all orders were tried */
    bool stuck;           /* in one order not all events happen */
    order_take_list path; /* leads to that order */
    /* Last event that each lane reaches without a give to a shared counter. */
    hash_map give_rows; /* from lane and event to the start of its row */
    ARRAY(uint32_t) reach;
    arena memory; /* of the keys */
} orders;

/* Search a complete net. Gives up, undecided, when there are too many orders. False when memory ran
 * out. */
bool orders_try(order_net *net, orders *made);
void orders_free(orders *old);
/* True if the take happens after the give in all orders. */
bool orders_follow(const orders *all, order_need give, order_need take);

#endif
