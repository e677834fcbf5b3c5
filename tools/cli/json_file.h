/* JSON files named by the user. */
#ifndef TOOLS_JSON_FILE_H
#define TOOLS_JSON_FILE_H

#include <jansson.h>

/* Read a regular file; anything else, a FIFO for example, is refused without waiting for it. NULL
 * with error->text on failure. */
json_t *json_file_load(const char *path, json_error_t *error);

#endif
