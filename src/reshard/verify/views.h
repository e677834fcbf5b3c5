/* Memory that strided views share. */
#ifndef RESHARD_VERIFY_VIEWS_H
#define RESHARD_VERIFY_VIEWS_H

#include "copy/strided/strided.h"

/* True if the views share a byte. Exact for any strides. */
bool check_views_overlap(const strided_view *a, const strided_view *b);

#endif
