/* The one writer of --json. */
#ifndef TOOLS_JSON_PRINT_H
#define TOOLS_JSON_PRINT_H

#include <banyan/core.h>
#include <jansson.h>

/* Print an object or array on stdout and free it. NO_MEMORY if `made` is NULL, as jansson's
 * functions return it then. */
banyan_status json_print(json_t *made);

#endif
