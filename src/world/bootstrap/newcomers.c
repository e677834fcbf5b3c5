#include "world/bootstrap/newcomers.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/resource.h>

#include "core/deadline.h"
#include "core/log.h"

#define LINE_NS NS_PER_S
#define SPARE_DESCRIPTORS 32

static size_t descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > INT32_MAX)
        return INT32_MAX;
    return (size_t)limit.rlim_cur;
}

static size_t at_most(size_t most, size_t part)
{
    size_t least = 4;
    return part > most ? most : part < least ? least : part;
}

size_t newcomers_most(bool far)
{
    size_t limit = descriptor_limit();
    return far ? at_most(NEWCOMERS_FAR, limit / 16) : at_most(NEWCOMERS_NEAR, limit / 4);
}

size_t newcomers_most_proving(void)
{
    return at_most(NEWCOMERS_PROVING, descriptor_limit() / 4);
}

bool newcomers_use_up(int fd)
{
    size_t limit = descriptor_limit();
    return (size_t)fd + at_most(SPARE_DESCRIPTORS, limit / 8) >= limit;
}

struct link *newcomers_oldest(const struct newcomers *newcomers)
{
    struct link *oldest = NULL, *silent = NULL;
    for (struct link *link = newcomers->first; link; link = link->next) {
        oldest = link;
        if (link->have == 0)
            silent = link;
    }
    return silent ? silent : oldest;
}

static const char *const done_to_them[STRANGER_KINDS] = {
    [STRANGER_CROWD] = "were dropped, because there were too many",
    [STRANGER_SILENT] = "were dropped, because they sent nothing",
    [STRANGER_LEFT] = "left before they had proved that they belong to the job",
    [STRANGER_BABBLE] = "were refused, because they do not follow the protocol",
    [STRANGER_SECRET] = "were refused, because they have another secret",
    [STRANGER_USER] = "were refused, because they belong to another user",
    [STRANGER_UNSEEN] = "could not be accepted",
};

enum stranger_kind stranger_kind_of(banyan_status status)
{
    switch (status) {
    case BANYAN_OK:
    case BANYAN_ERR_SYSTEM:
        return STRANGER_LEFT;
    case BANYAN_ERR_NO_MEMORY:
        return STRANGER_CROWD;
    case BANYAN_ERR_TIMEOUT:
        return STRANGER_SILENT;
    case BANYAN_ERR_REFUSED:
        return STRANGER_SECRET;
    default:
        return STRANGER_BABBLE;
    }
}

void stranger_log_line(struct stranger_log *log, enum stranger_kind kind, banyan_log_level level,
                       const char *format, ...)
{
    struct stranger_lines *lines = &log->kinds[kind];
    uint64_t now = time_now_ns();
    if (now < lines->next_ns) {
        lines->level = lines->unsaid == 0 || level < lines->level ? level : lines->level;
        lines->unsaid++;
        log->unsaid++;
        return;
    }
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    lines->next_ns = now + LINE_NS;
    log_line(level, "%s", text);
}

void stranger_log_sum_up(struct stranger_log *log, const char *name, bool at_end)
{
    uint64_t now = time_now_ns();
    for (int kind = 0; kind < STRANGER_KINDS && log->unsaid > 0; kind++) {
        struct stranger_lines *lines = &log->kinds[kind];
        if (lines->unsaid == 0 || (now < lines->next_ns && !at_end))
            continue;
        log_line(lines->level, "%s: %llu more connections %s", name,
                 (unsigned long long)lines->unsaid, done_to_them[kind]);
        log->unsaid -= lines->unsaid;
        lines->unsaid = 0;
        lines->next_ns = now + LINE_NS;
    }
}
