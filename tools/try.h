/* Give a failing call's status to the caller at once. */
#ifndef TOOLS_TRY_H
#define TOOLS_TRY_H

#include <banyan/core.h>

#define TRY(call)                                                                                  \
    do {                                                                                           \
        banyan_status try_status_ = (call);                                                        \
        if (try_status_ != BANYAN_OK)                                                              \
            return try_status_;                                                                    \
    } while (0)

#endif
