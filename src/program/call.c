/* Builder calls keep the first error, with the place of its call. */
#include "program/builder.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"

/* Places recorded for calls that have not begun yet. A call's place is recorded before its
 * arguments are evaluated, which may contain calls. Deeper nesting drops the outermost place. */
enum { MOST_PLACES = 16 };

static _Thread_local struct {
    plan_line places[MOST_PLACES];
    int count;
} noted;

void banyan_program_here(const char *file, int line)
{
    if (noted.count == MOST_PLACES)
        memmove(noted.places, noted.places + 1, --noted.count * sizeof noted.places[0]);
    noted.places[noted.count++] = (plan_line){file, line};
}

bool program_call_begin(banyan_program *program, program_call call)
{
    call.place = noted.count > 0 ? noted.places[--noted.count] : (plan_line){NULL, 0};
    if (!program || program->failed != BANYAN_OK)
        return false;
    program->call = call;
    return true;
}

static void call_print_ranks(FILE *to, const banyan_program_switch_channel *group)
{
    fprintf(to, " on the switch channel of ranks");
    for (int i = 0; i < group->count; i++)
        fprintf(to, "%s %d", i ? "," : "", group->ranks[i]);
}

static void print_call(FILE *to, const program_call *call)
{
    fprintf(to, "%s", call->operation);
    if (call->channel)
        fprintf(to, " on %s channel %" PRIu32 " from rank %d to rank %d",
                plan_channel_name(call->channel->type), call->channel->number,
                call->channel->source, call->channel->destination);
    else if (call->rank >= 0)
        fprintf(to, " at rank %d", call->rank);
    if (call->group)
        call_print_ranks(to, call->group);
    fprintf(to, ": ");
}

void program_fail(banyan_program *program, const char *format, ...)
{
    size_t bytes = 0;
    FILE *to = open_memstream(&program->error, &bytes);
    program->failed = BANYAN_ERR_INVALID;
    if (!to) {
        program->failed = BANYAN_ERR_NO_MEMORY;
        return;
    }
    const plan_line *place = &program->call.place;
    if (place->file)
        fprintf(to, "%s:%d: ", place->file, place->line);
    print_call(to, &program->call);
    va_list arguments;
    va_start(arguments, format);
    vfprintf(to, format, arguments);
    va_end(arguments);
    if (fclose(to) != 0)
        program->failed = BANYAN_ERR_NO_MEMORY;
}

void program_fail_memory(banyan_program *program)
{
    program->failed = BANYAN_ERR_NO_MEMORY;
    program->error = strdup(banyan_last_error());
}

banyan_status banyan_program_status(const banyan_program *program)
{
    if (program->failed == BANYAN_OK)
        return BANYAN_OK;
    return error_set(program->failed, "program \"%s\": %s", program->name,
                     program->error ? program->error : "out of memory");
}

void *program_take(banyan_program *program, size_t count, size_t bytes)
{
    size_t total;
    if (__builtin_mul_overflow(count, bytes, &total)) {
        error_no_memory(SIZE_MAX, "a program");
        program_fail_memory(program);
        return NULL;
    }
    void *taken = arena_take(&program->memory, total);
    if (!taken) {
        program_fail_memory(program);
        return NULL;
    }
    return memset(taken, 0, total);
}

char *program_take_text(banyan_program *program, const char *text)
{
    size_t bytes = strlen(text ? text : "") + 1;
    char *copy = program_take(program, bytes, 1);
    return copy ? memcpy(copy, text ? text : "", bytes) : NULL;
}
