/* Agreement that all ranks load the same plan with the same options. */
#ifndef EXECUTE_LOAD_AGREE_H
#define EXECUTE_LOAD_AGREE_H

#include "execute/load/loaded.h"

/* Collective. MISMATCH on all ranks, with the first difference in the message. */
banyan_status load_agree(banyan_loaded_plan *loaded);

#endif
