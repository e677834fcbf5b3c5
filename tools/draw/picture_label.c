#include "draw/picture_label.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "draw/picture_op.h"
#include "draw/svg_draw.h"

/* "i0", "s4-7@2": shorter than elsewhere, for blocks that are narrow. */
static void print_chunks(FILE *to, const picture_step *step, const picture_operand *operand)
{
    fprintf(to, "%c%" PRIu64, operand->buffer, operand->index);
    if (operand->size > 1)
        fprintf(to, "–%" PRIu64, operand->index + operand->size - 1);
    if (operand->ranks)
        fputs("@*", to);
    else if (operand->rank != step->rank)
        fprintf(to, "@%d", operand->rank);
}

static void print_side(FILE *to, const picture *of, const picture_step *step, bool sources)
{
    size_t count = picture_operand_count(picture_op_of(of, step), sources);
    picture_operand before = {0};
    for (size_t i = 0; i < count; i++) {
        picture_operand operand = picture_operand_at(of, step, sources, i);
        bool again = i > 0 && operand.rank == before.rank && operand.ranks == before.ranks &&
                     operand.buffer == before.buffer && operand.index == before.index &&
                     operand.size == before.size;
        before = operand;
        if (again)
            continue;
        fputs(i > 0 ? "," : "", to);
        print_chunks(to, step, &operand);
    }
}

static void print_peers(FILE *to, const picture *of, const picture_step *step)
{
    const json_t *op = picture_op_of(of, step);
    const char *type = json_string_value(json_object_get(op, "channel_type"));
    size_t count = json_array_size(json_object_get(op, "channel_ids"));
    bool waits = strstr(picture_op_name(of, step), "wait") != NULL;
    for (size_t i = 0; type && i < count; i++)
        fprintf(to, "%s%d",
                i > 0   ? ","
                : waits ? "← "
                        : "→ ",
                picture_channel_peer(of, step->rank, type, picture_channel_of(of, step, i)));
}

char *picture_label_detail(const picture *of, const picture_step *step, double room,
                           double font_size)
{
    const json_t *op = picture_op_of(of, step);
    for (int shorter = 0; shorter < 2; shorter++) {
        char *text = NULL;
        size_t bytes;
        FILE *to = open_memstream(&text, &bytes);
        if (!to)
            return NULL;
        if (picture_operand_count(op, true) == 0) {
            print_peers(to, of, step);
        } else {
            if (shorter == 0)
                print_side(to, of, step, true);
            fputs("→", to);
            print_side(to, of, step, false);
        }
        fclose(to);
        if (text && svg_text_width(text, font_size) <= room)
            return text;
        free(text);
    }
    return NULL;
}
