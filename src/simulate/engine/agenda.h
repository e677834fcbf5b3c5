/* What happens next: every lane has at most one time at which it goes on. */
#ifndef SIMULATE_ENGINE_AGENDA_H
#define SIMULATE_ENGINE_AGENDA_H

#include "core/error.h"

/* Lanes in a heap, the earliest first, lower numbers first among equals. */
typedef struct agenda {
    uint64_t *times;  /* of each lane */
    uint32_t *places; /* of each lane in the heap; AGENDA_NOWHERE */
    uint32_t *heap;
    uint32_t count, lanes;
} agenda;

#define AGENDA_NOWHERE UINT32_MAX
#define AGENDA_NEVER UINT64_MAX

banyan_status agenda_make(uint32_t lanes, agenda *made);
void agenda_free(agenda *old);

/* Instead of the time that the lane has; AGENDA_NEVER takes it out. */
void agenda_set(agenda *all, uint32_t lane, uint64_t time_ps);
/* AGENDA_NEVER when nothing will happen any more. */
uint64_t agenda_next(const agenda *all);
/* The lane whose time that is; it is taken out. */
uint32_t agenda_take(agenda *all);

#endif
