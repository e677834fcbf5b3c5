/* Contexts whose memory is given back for a while: banyan_mixed_suspend and banyan_mixed_resume. */
#ifndef MIXED_MEMORY_SUSPEND_H
#define MIXED_MEMORY_SUSPEND_H

#include "mixed/mixed.h"

/* The context is about to be freed. Local. */
void suspension_forget(banyan_mixed *mixed);

#endif
