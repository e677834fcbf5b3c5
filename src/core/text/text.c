#include "core/text/text.h"

#include <stdarg.h>
#include <stdio.h>

void text_add(bytes_writer *text, const char *more)
{
    bytes_write(text, more, strlen(more));
}

void text_print(bytes_writer *text, const char *format, ...)
{
    char some[256];
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(some, sizeof some, format, arguments);
    va_end(arguments);
    if (length < (int)sizeof some) {
        text_add(text, some);
    } else if (text->failed || !array_reserve(text, (size_t)length + 1)) {
        text->failed = true;
    } else {
        vsnprintf((char *)text->data + text->count, (size_t)length + 1, format, again);
        text->count += (size_t)length;
    }
    va_end(again);
}

banyan_status text_finish(bytes_writer *text, char **finished, size_t *bytes)
{
    size_t count = text->count;
    bytes_write(text, "", 1);
    if (text->failed) {
        bytes_writer_free(text);
        return BANYAN_ERR_NO_MEMORY;
    }
    *finished = (char *)text->data;
    if (bytes)
        *bytes = count;
    *text = (bytes_writer){0};
    return BANYAN_OK;
}
