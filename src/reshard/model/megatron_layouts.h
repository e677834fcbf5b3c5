/* A case's tensors as layouts. */
#ifndef RESHARD_MODEL_MEGATRON_LAYOUTS_H
#define RESHARD_MODEL_MEGATRON_LAYOUTS_H

#include <banyan/layout.h>

/* Add the rank's tensors of that side. Returns the layout's first error, if there is one. */
banyan_status case_add_layout(const banyan_megatron_case *loaded, int rank, banyan_side side,
                              banyan_layout *layout);

#endif
