/* The rule files of the source tree's folder rules, as texts. */
#ifndef RESHARD_RULES_FILES_H
#define RESHARD_RULES_FILES_H

#include <stddef.h>

typedef struct rules_file {
    const char *name; /* without its ending */
    const char *text;
} rules_file;

/* Up to one without a name. */
extern const rules_file rules_files[];

#endif
