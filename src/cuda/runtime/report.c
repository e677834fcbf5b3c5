#include "cuda/runtime/report.h"

void report_stop(report_words *words)
{
    __atomic_store_n(&words->stop, 1, __ATOMIC_RELEASE);
}

bool report_has_failed(const report_words *words)
{
    return __atomic_load_n(&words->failed.verdict, __ATOMIC_ACQUIRE) != DEVICE_FINE;
}

void report_read(const report_words *words, device_report *report)
{
    *report = report_has_failed(words) ? words->failed : (device_report){0};
}
