/* Contexts that return their memory for a while: banyan_mixed_suspend and banyan_mixed_resume. */
#ifndef MIXED_MEMORY_SUSPEND_H
#define MIXED_MEMORY_SUSPEND_H

#include "mixed/mixed.h"

/* Call it before the context is freed. Local. */
void suspension_forget(banyan_mixed *mixed);

#endif
