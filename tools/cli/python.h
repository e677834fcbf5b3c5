/* The Python that commands start. */
#ifndef TOOLS_PYTHON_H
#define TOOLS_PYTHON_H

#include <stdlib.h>

static inline const char *python_name(void)
{
    const char *name = getenv("BANYAN_PYTHON");
    return name && *name ? name : "python3";
}

#endif
