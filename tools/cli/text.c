#include "cli/text.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <banyan/core.h>

#include "core/text/escape.h"

const char *text_bytes(uint64_t bytes, char text[TEXT_NUMBER_BYTES])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1024 && unit < 6) {
        value /= 1024;
        unit++;
    }
    int decimals = unit == 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
    snprintf(text, TEXT_NUMBER_BYTES, "%.*f %s", decimals, value, units[unit]);
    return text;
}

const char *text_count(uint64_t count, char text[TEXT_NUMBER_BYTES])
{
    char digits[TEXT_NUMBER_BYTES];
    int length = snprintf(digits, sizeof digits, "%" PRIu64, count), at = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            text[at++] = ',';
        text[at++] = digits[i];
    }
    text[at] = '\0';
    return text;
}

const char *text_seconds(double seconds, char text[TEXT_NUMBER_BYTES])
{
    if (seconds >= 0.1)
        snprintf(text, TEXT_NUMBER_BYTES, "%.3f s", seconds);
    else if (seconds >= 1e-3)
        snprintf(text, TEXT_NUMBER_BYTES, "%.2f ms", seconds * 1e3);
    else
        snprintf(text, TEXT_NUMBER_BYTES, "%.0f µs", seconds * 1e6);
    return text;
}

void text_print_error(const char *who, const char *format, va_list args)
{
    char text[4096], escaped[4096];
    vsnprintf(text, sizeof text, format, args);
    fprintf(stderr, "%s: %s\n", who, escape_controls(text, escaped, sizeof escaped));
}

int text_fail(const char *who)
{
    fprintf(stderr, "%s: %s\n", who, banyan_last_error());
    return 1;
}

int text_columns(const char *text)
{
    int columns = 0;
    for (; *text; text++)
        columns += (*text & 0xc0) != 0x80;
    return columns;
}

const char *text_right(const char *text, int columns, char padded[TEXT_NUMBER_BYTES])
{
    int wide = text_columns(text);
    int spaces = wide < columns && columns < TEXT_NUMBER_BYTES - 4 ? columns - wide : 0;
    snprintf(padded, TEXT_NUMBER_BYTES, "%*s%s", spaces, "", text);
    return padded;
}

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
