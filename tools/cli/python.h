/* The Python that commands start. */
#ifndef TOOLS_PYTHON_H
#define TOOLS_PYTHON_H

#include <stdlib.h>

/* Words that python_become passes at most. */
#define PYTHON_MAX_WORDS 32

static inline const char *python_name(void)
{
    const char *name = getenv("BANYAN_PYTHON");
    return name && *name ? name : "python3";
}

/* Become `main(words)` of a module of the Python package, for the command `who`. `words` ends with
 * NULL. Return the exit code if Python does not start. Python reports it if the package is missing.
 */
int python_become(const char *who, const char *module, const char *const *words);

#endif
