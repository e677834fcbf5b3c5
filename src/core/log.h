/* Log lines, to stderr or the user's function. */
#ifndef CORE_LOG_H
#define CORE_LOG_H

#include <banyan/core.h>

void log_line(banyan_log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Return the time between two log lines of one wait (BANYAN_WAIT_LOG). Adding it to a clock time
 * does not overflow. */
uint64_t log_wait_period_ns(void);

#define log_error(...) log_line(BANYAN_LOG_ERROR, __VA_ARGS__)
#define log_warn(...) log_line(BANYAN_LOG_WARN, __VA_ARGS__)
#define log_info(...) log_line(BANYAN_LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(BANYAN_LOG_DEBUG, __VA_ARGS__)

#endif
