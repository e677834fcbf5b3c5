/* The event queue: every lane has at most one time at which it continues. */
#ifndef SIMULATE_ENGINE_AGENDA_H
#define SIMULATE_ENGINE_AGENDA_H

#include "core/error.h"

/* Lanes in a heap, the earliest first, lower numbers first among equals. */
typedef struct agenda {
    uint64_t *times;  /* for each lane */
    uint32_t *places; /* index of each lane in the heap; AGENDA_NOWHERE */
    uint32_t *heap;
    uint32_t count, lanes;
} agenda;

#define AGENDA_NOWHERE UINT32_MAX
#define AGENDA_NEVER UINT64_MAX

banyan_status agenda_make(uint32_t lanes, agenda *made);
void agenda_free(agenda *old);

/* Replace the lane's time; AGENDA_NEVER removes it. */
void agenda_set(agenda *all, uint32_t lane, uint64_t time_ps);
/* Return the next time, or AGENDA_NEVER when no event is left. */
uint64_t agenda_next(const agenda *all);
/* Remove and return the lane of that time. */
uint32_t agenda_take(agenda *all);

#endif
