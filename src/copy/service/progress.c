#include "copy/service/progress.h"

#include "core/deadline.h"

#define REPORT_NS UINT64_C(100000000)

void copy_progress_open(copy_progress *progress, const banyan_copy_options *options)
{
    progress->report = options->progress;
    progress->context = options->context;
}

void copy_progress_begin(copy_progress *progress, uint64_t total)
{
    progress->done = 0;
    progress->total = total;
    progress->is_reported = false;
    progress->next_ns = progress->report ? time_now_ns() + REPORT_NS : 0;
}

void copy_progress_add(copy_progress *progress, uint64_t bytes)
{
    progress->done += bytes;
    if (!progress->report || progress->done >= progress->total)
        return; /* the end is reported when partners are done, too */
    uint64_t now = time_now_ns();
    if (now < progress->next_ns)
        return;
    progress->next_ns = now + REPORT_NS;
    progress->is_reported = true;
    progress->report(progress->context, progress->done, progress->total);
}

void copy_progress_end(copy_progress *progress)
{
    if (progress->is_reported)
        progress->report(progress->context, progress->total, progress->total);
}
