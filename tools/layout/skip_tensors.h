/* The option --skip. */
#ifndef TOOLS_SKIP_TENSORS_H
#define TOOLS_SKIP_TENSORS_H

#include <banyan/layout.h>

/* Leave out the tensors that fit one of the patterns, which commas separate. INVALID for a pattern
 * that no tensor fits: it is probably misspelt. */
banyan_status skip_tensors(banyan_model *model, const char *patterns);

#endif
