#include "simulate/engine/record.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/files/new_file.h"

/* Some 600 MB of them. */
#define STEPS_MOST ((size_t)1 << 23)

bool record_add(record *to, const step_record *step, uint32_t *number)
{
    *number = NO_STEP;
    if (!to->wanted || to->too_long)
        return true;
    if (to->steps.count == STEPS_MOST) {
        to->too_long = true;
        array_free(&to->steps);
        return true;
    }
    *number = (uint32_t)to->steps.count;
    return array_push(&to->steps, *step);
}

banyan_status record_path(const record *of, uint32_t **path, size_t *count)
{
    const step_record *steps = of->steps.data;
    uint32_t last = 0;
    size_t length = 0, at;
    for (size_t i = 0; i < of->steps.count; i++) {
        if (steps[i].end_ps > steps[last].end_ps)
            last = (uint32_t)i;
    }
    if (of->steps.count == 0)
        last = NO_STEP;
    for (uint32_t s = last; s != NO_STEP; s = steps[s].after)
        length++;
    uint32_t *chain = malloc((length + 1) * sizeof *chain);
    if (!chain)
        return error_no_memory(length * sizeof *chain, "the critical path");
    at = length;
    for (uint32_t s = last; s != NO_STEP; s = steps[s].after)
        chain[--at] = s;
    *path = chain;
    *count = length;
    return BANYAN_OK;
}

/* Proxies have lanes behind those of the thread blocks. */
#define PROXY_LANE 100000

static void sim_record_write_step(FILE *file, const step_record *step)
{
    fprintf(file,
            ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%" PRIu32 ",\"ts\":%.6f,\"dur\":%.6f,"
            "\"name\":\"%s\"",
            step->rank, step->thread_block + (step->proxy ? PROXY_LANE : 0),
            (double)step->began_ps / 1e6, (double)(step->end_ps - step->began_ps) / 1e6,
            step->what);
    if (step->at != STEP_LAUNCH) {
        fprintf(file, ",\"args\":{\"operation\":%" PRIu32, step->at);
        if (step->inner != STEP_NOT_IN_LOOP)
            fprintf(file, ",\"loop_operation\":%" PRIu32 ",\"iteration\":%" PRIu64, step->inner,
                    step->iteration);
        fprintf(file, ",\"waited_us\":%.6f}", (double)step->waited_ps / 1e6);
    }
    fprintf(file, "}");
}

static void sim_record_write_all(const record *of, FILE *file)
{
    int ranks = 0;
    fprintf(file, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
    for (size_t i = 0; i < of->steps.count; i++) {
        if (of->steps.data[i].rank >= ranks)
            ranks = of->steps.data[i].rank + 1;
    }
    for (int r = 0; r < ranks; r++)
        fprintf(file,
                "%s\n{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\","
                "\"args\":{\"name\":\"rank %d\"}}",
                r > 0 ? "," : "", r, r);
    for (size_t i = 0; i < of->steps.count; i++) {
        const step_record *step = &of->steps.data[i];
        if (step->proxy || step->end_ps > step->began_ps)
            sim_record_write_step(file, step);
    }
    fprintf(file, "\n]}\n");
}

static banyan_status sim_record_write_stream(const record *of, const new_file *to, const char *path)
{
    FILE *file = new_file_stream(to);
    if (!file)
        return error_set_errno("cannot write the trace %s", path);
    sim_record_write_all(of, file);
    bool written = ferror(file) == 0;
    written &= fclose(file) == 0;
    return written ? BANYAN_OK : error_set_errno("cannot write the trace %s", path);
}

banyan_status record_write(const record *of, const char *path)
{
    new_file file;
    RETURN_IF_FAILED(new_file_open_for(path, &file));
    banyan_status status = sim_record_write_stream(of, &file, path);
    if (status == BANYAN_OK)
        status = new_file_publish(&file, path);
    new_file_close(&file);
    return status;
}
