#include "core/text/escape.h"

#include <stdio.h>
#include <string.h>

/* Return the length of the control character at the start of the text; 0 when it starts with
 * another character. Characters 0x80 to 0x9f take two bytes in UTF-8. */
static size_t control_bytes(const unsigned char *text)
{
    if (text[0] < 0x20 || text[0] == 0x7f)
        return 1;
    return text[0] == 0xc2 && text[1] >= 0x80 && text[1] <= 0x9f ? 2 : 0;
}

const char *escape_controls(const char *text, char *escaped, size_t bytes)
{
    size_t used = 0;
    for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
        size_t controls = control_bytes(at);
        if (used + (controls > 0 ? controls * ESCAPE_GROWTH : 1) >= bytes)
            break;
        if (controls == 0)
            escaped[used++] = (char)*at;
        for (size_t i = 0; i < controls; i++)
            used += (size_t)snprintf(escaped + used, bytes - used, "\\x%02x", at[i]);
        at += controls == 2;
    }
    if (bytes > 0)
        escaped[used] = '\0';
    return escaped;
}
