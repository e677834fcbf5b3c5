#include "cli/failure.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

failure *failure_create(void)
{
    void *shared =
        mmap(NULL, sizeof(failure), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return shared == MAP_FAILED ? NULL : shared;
}

void failure_destroy(failure *shared)
{
    if (shared)
        munmap(shared, sizeof *shared);
}

void failure_note(failure *shared, int rank, banyan_status status)
{
    bool follows = status == BANYAN_ERR_PEER_LOST || status == BANYAN_ERR_ABORTED;
    failure_slot *slot = follows ? &shared->consequence : &shared->cause;
    if (atomic_exchange(&slot->taken, true))
        return;
    slot->rank = rank;
    snprintf(slot->sentence, sizeof slot->sentence, "%s", banyan_last_error());
}

/* Return the message. One that all ranks agreed on names its rank already. */
const char *failure_sentence(const failure *shared, char text[FAILURE_TEXT_BYTES])
{
    const failure_slot *slot =
        atomic_load(&shared->cause.taken) ? &shared->cause : &shared->consequence;
    if (!atomic_load(&slot->taken))
        return NULL;
    if (strncmp(slot->sentence, "rank ", 5) == 0)
        return slot->sentence;
    snprintf(text, FAILURE_TEXT_BYTES, "rank %d: %s", slot->rank, slot->sentence);
    return text;
}
