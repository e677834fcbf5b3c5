/* State of simulated moves: in a lane they follow each other, and wait for moves of other lanes. */
#ifndef SIMULATE_MOVES_H
#define SIMULATE_MOVES_H

#include "simulate/engine/record.h"
#include "simulate/engine/sharing.h"
#include "simulate/topology/routes.h"

#define NO_NUMBER UINT32_MAX

/* State of a move. */
typedef struct move_state {
    uint64_t ready_ps;     /* earliest start */
    uint32_t awaited_step; /* the step that makes it ready; NO_STEP */
    uint32_t missing;      /* number of moves in `after` that are not done */
    uint32_t lane, next;   /* in the lane; NO_NUMBER */
    uint32_t number;       /* among the lane's */
} move_state;

typedef enum lane_stage {
    LANE_WAITS,  /* waits for other moves, or has none left */
    LANE_BEGINS, /* in the agenda, until its move is ready and its fixed time is over */
    LANE_FLOWS
} lane_stage;

typedef struct move_lane {
    uint32_t at; /* its current move; NO_NUMBER after the last */
    lane_stage stage;
    uint64_t free_ps; /* when its last move was done */
    uint32_t last_step;
    uint64_t began_ps;
    uint32_t awaited_step;
} move_lane;

typedef struct moves_run {
    const banyan_move *moves;
    uint32_t count;
    int ranks;
    const banyan_topology *topology;
    uint64_t grain_ps;
    move_state *states;
    move_lane *lanes;
    uint32_t lane_count;
    uint32_t *first_follower, *followers; /* for each move, the moves that have it in `after` */
    agenda agenda;
    sharing sharing;
    routes routes;
    route way;
    record record;
    uint64_t now_ps;
    uint64_t *ends_ps; /* of each rank */
    uint64_t settled_ps;
    bool ended, began; /* a flow ended or began since rates were computed */
} moves_run;

/* Build lanes and dependencies (moves_list.c). INVALID, NO_MEMORY. */
banyan_status moves_list(moves_run *run);
void moves_list_free(moves_run *run);

#endif
