/* Rule files as text. */
#ifndef RESHARD_RULES_PARSE_H
#define RESHARD_RULES_PARSE_H

#include "reshard/rules.h"

/* Add what the text says; FORMAT names file and line. `text` is cut into words in place. */
banyan_status rules_parse(banyan_rules *rules, const char *file, char *text);

#endif
