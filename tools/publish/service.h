/* Commands that run until they are asked to end, and print a line for each event. */
#ifndef TOOLS_SERVICE_H
#define TOOLS_SERVICE_H

#include <stdbool.h>

#include <banyan/core.h>
#include <jansson.h>

/* Catch SIGINT and SIGTERM from now on. A second signal ends the process. */
void service_catch_signals(void);

/* True after a signal. */
bool service_ends(void);

/* Print one line on stdout, and flush it: JSON, or `text` if `json` is NULL. Frees `json`. SYSTEM
 * if stdout cannot be written. */
banyan_status service_print(json_t *json, const char *text);

/* Return the secret of both sides, from BANYAN_SECRET. NULL, after a message on stderr behind
 * `who`, if there is none. */
const char *service_secret(const char *who);

#endif
