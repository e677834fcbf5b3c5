#include "cli/sizes.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Parse up to the end of the size in `text`. */
static bool parse_front(const char *text, const char **end, uint64_t *bytes)
{
    static const char units[] = "KMG";
    char *behind;
    errno = 0;
    unsigned long long number = strtoull(text, &behind, 10);
    if (!isdigit((unsigned char)text[0]) || errno != 0 || number > SIZES_MOST)
        return false;
    const char *unit = *behind ? strchr(units, toupper((unsigned char)*behind)) : NULL;
    int shift = unit ? 10 * (int)(unit - units + 1) : 0;
    if (number > SIZES_MOST >> shift)
        return false;
    *bytes = (uint64_t)number << shift;
    *end = behind + (unit ? 1 : 0);
    return true;
}

bool sizes_parse(const char *text, uint64_t *bytes)
{
    const char *end;
    uint64_t parsed;
    if (!parse_front(text, &end, &parsed) || *end)
        return false;
    *bytes = parsed;
    return true;
}

bool sizes_parse_range(const char *text, uint64_t *low, uint64_t *high)
{
    const char *end;
    uint64_t from, to;
    if (!parse_front(text, &end, &from))
        return false;
    to = from;
    if (*end && (*end != ':' || !sizes_parse(end + 1, &to)))
        return false;
    if (from == 0 || from > to)
        return false;
    *low = from;
    *high = to;
    return true;
}
