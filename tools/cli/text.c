#include "cli/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

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

const char *text_right(const char *text, int columns, char padded[TEXT_NUMBER_BYTES])
{
    int wide = 0;
    for (const char *at = text; *at; at++)
        wide += (*at & 0xc0) != 0x80;
    int spaces = wide < columns && columns < TEXT_NUMBER_BYTES - 4 ? columns - wide : 0;
    snprintf(padded, TEXT_NUMBER_BYTES, "%*s%s", spaces, "", text);
    return padded;
}
