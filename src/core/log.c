#include "core/log.h"

#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/text/escape.h"

#define LINE_BYTES 2048

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t level_once = PTHREAD_ONCE_INIT;
static banyan_log_level level_wanted = BANYAN_LOG_WARN;
static banyan_log_fn user_fn;
static void *user_context;

static const char *const level_names[] = {"error", "warn", "info", "debug"};

static void core_log_emit(banyan_log_level level, const char *text)
{
    pthread_mutex_lock(&log_lock);
    if (user_fn)
        user_fn(level, text, user_context);
    else
        fprintf(stderr, "banyan: %s: %s\n", level_names[level], text);
    pthread_mutex_unlock(&log_lock);
}

static void core_log_read_level(void)
{
    const char *wanted = getenv("BANYAN_LOG");
    if (!wanted || wanted[0] == '\0')
        return;
    for (int i = BANYAN_LOG_ERROR; i <= BANYAN_LOG_DEBUG; i++) {
        if (strcmp(wanted, level_names[i]) == 0) {
            level_wanted = (banyan_log_level)i;
            return;
        }
    }
    char text[512], name[401];
    snprintf(text, sizeof text, "BANYAN_LOG=%s is not a level: use error, warn, info or debug",
             escape_controls(wanted, name, sizeof name));
    core_log_emit(BANYAN_LOG_WARN, text);
}

void banyan_log_set(banyan_log_fn fn, void *context)
{
    pthread_mutex_lock(&log_lock);
    user_fn = fn;
    user_context = context;
    pthread_mutex_unlock(&log_lock);
}

void log_line(banyan_log_level level, const char *format, ...)
{
    pthread_once(&level_once, core_log_read_level);
    if (level > level_wanted)
        return;
    char text[LINE_BYTES], line[LINE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    core_log_emit(level, escape_controls(text, line, sizeof line));
}

#define WAIT_PERIOD_S 10

static pthread_once_t period_once = PTHREAD_ONCE_INIT;
static uint64_t period_ns;

static void read_period(void)
{
    const char *text = getenv("BANYAN_WAIT_LOG");
    char *end = NULL;
    double seconds = text && *text ? strtod(text, &end) : WAIT_PERIOD_S;
    if (end && (end == text || *end != '\0' || !isfinite(seconds) || seconds < 0)) {
        log_warn("BANYAN_WAIT_LOG is \"%.100s\", not a number of seconds: it is %d", text,
                 WAIT_PERIOD_S);
        seconds = WAIT_PERIOD_S;
    }
    bool never = seconds == 0 || seconds > 1e9;
    period_ns = never ? UINT64_MAX / 2 : (uint64_t)(seconds * 1e9) + 1;
}

uint64_t log_wait_period_ns(void)
{
    pthread_once(&period_once, read_period);
    return period_ns;
}
