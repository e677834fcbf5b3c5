/* Memory that strided views have in common. */
#ifndef RESHARD_VERIFY_VIEWS_H
#define RESHARD_VERIFY_VIEWS_H

#include "copy/strided/strided.h"

/* Do they have a byte in common? Exact for any strides. */
bool check_views_overlap(const strided_view *a, const strided_view *b);

#endif
