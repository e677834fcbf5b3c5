/* In which orders thread blocks can take from channels and semaphores that several of them give to
 * or take from, where who comes first decides who can go on.
 *
 * Of a plan that has been played this keeps what each thread block waits for and gives, as a net:
 * lanes of events, each of which needs other lanes to have come so far, and may give to or take
 * from a shared counter. The orders of takes are tried out one by one, as far as they can differ: a
 * take that leaves enough for all others, or that nobody else is after, is not put off (persistent
 * sets: Godefroid 1996), and a state is looked at once, however it was come to. */
#ifndef CHECK_ORDERS_ORDERS_H
#define CHECK_ORDERS_ORDERS_H

#include "core/containers/arena.h"
#include "core/containers/array.h"
#include "core/containers/map.h"

#define ORDER_NONE UINT32_MAX

typedef struct order_need {
    uint32_t lane, at; /* it has done so many of its events */
} order_need;

typedef struct order_event {
    uint32_t instance; /* of the operation; ORDER_NONE: a run begins */
    uint32_t first_need, need_count;
    uint32_t gives, takes; /* a shared counter, or ORDER_NONE */
    uint32_t left;         /* takes from that counter in this lane from here on */
} order_event;

typedef struct order_lane {
    ARRAY(order_event) events;
    ARRAY(order_need) needs; /* some are of the event to come */
} order_lane;

typedef struct order_net {
    order_lane *lanes;
    uint32_t lane_count, counter_count;
    uint64_t *initial; /* of the shared counters */
    uint64_t *takes;   /* all of them, of each */
} order_net;

/* A net with no events. False: no memory. */
bool order_net_make(order_net *net, uint32_t lanes, const uint64_t *initial, uint32_t counters);
void order_net_free(order_net *net);
/* Of the lane's event to come. */
bool order_net_need(order_net *net, uint32_t lane, order_need need);
bool order_net_add(order_net *net, uint32_t lane, uint32_t instance, uint32_t gives,
                   uint32_t takes);
/* The next event of the lane. */
static inline uint32_t order_net_next(const order_net *net, uint32_t lane)
{
    return (uint32_t)net->lanes[lane].events.count;
}

typedef struct order_take {
    uint32_t lane, event, counter;
    bool chosen; /* another might have come first */
} order_take;

typedef ARRAY(order_take) order_take_list;

/* What came of trying. */
typedef struct orders {
    uint64_t looks;       /* what it cost */
    bool decided;         /* all orders were tried */
    bool stuck;           /* in one of them not all events came about */
    order_take_list path; /* to that one */
    /* How far each lane can get without a give to a shared counter. */
    map give_rows; /* lane and event to where its row begins */
    ARRAY(uint32_t) reach;
    arena memory; /* of the keys */
} orders;

/* The net is complete. Gives up, not decided, when there are too many orders. False: no memory. */
bool orders_try(order_net *net, orders *made);
void orders_free(orders *old);
/* Does the take come after the give in all orders? */
bool orders_follow(const orders *all, order_need give, order_need take);

#endif
