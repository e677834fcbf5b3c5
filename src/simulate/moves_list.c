#include "simulate/moves.h"

#include <inttypes.h>

/* ---- checks ---- */

static banyan_status check_move(const moves_run *run, uint32_t number)
{
    const banyan_move *move = &run->moves[number];
    if (move->rank < 0 || move->rank >= run->ranks || move->peer < 0 || move->peer >= run->ranks)
        return error_set(BANYAN_ERR_INVALID, "move %" PRIu32 " is from rank %d to rank %d of %d",
                         number, move->rank, move->peer, run->ranks);
    /* Empty lanes would only take memory. */
    if (move->lane < 0 || (uint32_t)move->lane >= run->count)
        return error_set(BANYAN_ERR_INVALID,
                         "move %" PRIu32 " is in lane %d, and there are %" PRIu32 " moves", number,
                         move->lane, run->count);
    if (move->by != BANYAN_BY_BLOCKS && move->by != BANYAN_BY_PROXY)
        return error_set(BANYAN_ERR_INVALID, "move %" PRIu32 " is carried by %d, which is nobody",
                         number, (int)move->by);
    for (int i = 0; i < 2; i++) {
        if (move->after[i] != BANYAN_NO_MOVE && move->after[i] >= run->count)
            return error_set(BANYAN_ERR_INVALID,
                             "move %" PRIu32 " is after move %zu, and there are %" PRIu32, number,
                             move->after[i], run->count);
    }
    return BANYAN_OK;
}

/* ---- lanes ---- */

/* firsts[rank]: the rank's first lane; one more entry, behind the last rank's. */
static banyan_status moves_list_count_lanes(moves_run *run, uint32_t *firsts)
{
    uint64_t lanes = 0;
    for (uint32_t i = 0; i < run->count; i++) {
        uint32_t *most = &firsts[run->moves[i].rank];
        uint32_t needed = (uint32_t)run->moves[i].lane + 1;
        *most = needed > *most ? needed : *most;
    }
    for (int r = 0; r <= run->ranks; r++) {
        uint32_t here = r < run->ranks ? firsts[r] : 0;
        firsts[r] = (uint32_t)lanes;
        lanes += here;
        if (lanes >= NO_NUMBER)
            return error_set(BANYAN_ERR_INVALID, "ranks 0 to %d have more lanes than are simulated",
                             r);
    }
    run->lane_count = (uint32_t)lanes;
    return BANYAN_OK;
}

/* Link from the last move to the first, so that each lane's list is in order. */
static banyan_status link_lanes(moves_run *run, const uint32_t *firsts)
{
    run->lanes = calloc(run->lane_count + (size_t)1, sizeof *run->lanes);
    if (!run->lanes)
        return error_no_memory(run->lane_count * sizeof *run->lanes, "the lanes of moves");
    for (uint32_t l = 0; l < run->lane_count; l++)
        run->lanes[l] = (move_lane){.at = NO_NUMBER, .last_step = NO_STEP, .awaited_step = NO_STEP};
    for (uint32_t i = run->count; i-- > 0;) {
        uint32_t lane = firsts[run->moves[i].rank] + (uint32_t)run->moves[i].lane;
        run->states[i] =
            (move_state){.awaited_step = NO_STEP, .lane = lane, .next = run->lanes[lane].at};
        run->lanes[lane].at = i;
    }
    for (uint32_t l = 0; l < run->lane_count; l++) {
        uint32_t number = 0;
        for (uint32_t m = run->lanes[l].at; m != NO_NUMBER; m = run->states[m].next)
            run->states[m].number = number++;
    }
    return BANYAN_OK;
}

/* ---- followers ---- */

static banyan_status link_followers(moves_run *run)
{
    size_t count = 0;
    run->first_follower = calloc(run->count + (size_t)2, sizeof *run->first_follower);
    if (!run->first_follower)
        return error_no_memory(run->count * sizeof *run->first_follower, "the order of moves");
    /* Store ends first: filling from the back turns them into beginnings. */
    for (uint32_t i = 0; i < run->count; i++) {
        for (int a = 0; a < 2; a++) {
            if (run->moves[i].after[a] == BANYAN_NO_MOVE)
                continue;
            run->first_follower[run->moves[i].after[a]]++;
            run->states[i].missing++;
            count++;
        }
    }
    if (count >= NO_NUMBER)
        return error_set(BANYAN_ERR_INVALID, "%zu orders between moves are more than are simulated",
                         count);
    run->followers = calloc(count + 1, sizeof *run->followers);
    if (!run->followers)
        return error_no_memory(count * sizeof *run->followers, "the order of moves");
    uint32_t sum = 0;
    for (uint32_t i = 0; i <= run->count; i++)
        run->first_follower[i] = sum += run->first_follower[i];
    for (uint32_t i = run->count; i-- > 0;) {
        for (int a = 0; a < 2; a++) {
            if (run->moves[i].after[a] != BANYAN_NO_MOVE)
                run->followers[--run->first_follower[run->moves[i].after[a]]] = i;
        }
    }
    return BANYAN_OK;
}

banyan_status moves_list(moves_run *run)
{
    for (uint32_t i = 0; i < run->count; i++)
        RETURN_IF_FAILED(check_move(run, i));
    uint32_t *firsts = calloc((size_t)run->ranks + 1, sizeof *firsts);
    run->states = calloc(run->count + (size_t)1, sizeof *run->states);
    banyan_status status = BANYAN_OK;
    if (!firsts || !run->states)
        status = error_no_memory(run->count * sizeof *run->states, "the state of moves");
    if (status == BANYAN_OK)
        status = moves_list_count_lanes(run, firsts);
    if (status == BANYAN_OK)
        status = link_lanes(run, firsts);
    if (status == BANYAN_OK)
        status = link_followers(run);
    free(firsts);
    return status;
}

void moves_list_free(moves_run *run)
{
    free(run->states);
    free(run->lanes);
    free(run->first_follower);
    free(run->followers);
}
