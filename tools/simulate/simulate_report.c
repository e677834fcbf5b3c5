#include "simulate/simulate_report.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/files.h"
#include "cli/text.h"

/* Rows of a table; JSON has them all. */
#define ROWS_MOST 12

void simulate_report_begin(simulate_report *report)
{
    banyan_plan_info info = banyan_plan_describe(report->plan);
    banyan_topology_info machine = banyan_topology_describe(report->topology);
    char cell[TEXT_NUMBER_BYTES];
    if (report->json) {
        report->sizes = json_array();
        return;
    }
    printf("%s: %s of %d ranks on %s\n\n", info.name, info.collective_name, info.ranks,
           machine.name);
    printf("%16s%12s%10s%10s\n", "bytes", "time", "algbw", "busbw");
    printf("%16s%s%10s%10s\n", "", text_right("µs", 12, cell), "GB/s", "GB/s");
}

void simulate_report_size(simulate_report *report, const message *size,
                          const banyan_simulation *simulation, int instances)
{
    banyan_plan_info info = banyan_plan_describe(report->plan);
    double seconds = banyan_simulation_seconds(simulation);
    double algbw = seconds > 0 ? (double)size->bytes / seconds / 1e9 : 0;
    double busbw = algbw * message_bus_factor(&info);
    char text[TEXT_NUMBER_BYTES];
    if (report->json) {
        json_t *entry = json_pack(
            "{s:I, s:I, s:b, s:f, s:f, s:f}", "bytes", (json_int_t)size->bytes, "message_bytes",
            (json_int_t)size->message_bytes, "in_bounds", (int)size->in_bounds, "seconds", seconds,
            "algorithm_gb_per_s", algbw, "bus_gb_per_s", busbw);
        if (instances > 0)
            json_object_set_new(entry, "instances", json_integer(instances));
        json_array_append_new(report->sizes, entry);
        return;
    }
    printf("%c%15s%12.2f%10.3f%10.3f", size->in_bounds ? ' ' : '~', text_count(size->bytes, text),
           seconds * 1e6, algbw, busbw);
    if (instances > 0)
        printf("  %d instance%s", instances, instances == 1 ? "" : "s");
    printf("\n");
    fflush(stdout);
}

static int compare_uses(const void *a, const void *b)
{
    const banyan_link_use *first = a, *second = b;
    if (first->full != second->full)
        return first->full > second->full ? -1 : 1;
    if (first->busy != second->busy)
        return first->busy > second->busy ? -1 : 1;
    return first->source < second->source ? -1 : first->source > second->source;
}

/* Those that carried something, the fullest first. To be freed. */
static banyan_link_use *collect_uses(const banyan_simulation *of, size_t *count)
{
    size_t all = 0, kept = 0;
    banyan_link_use use;
    while (banyan_simulation_link(of, all, &use))
        all++;
    banyan_link_use *uses = malloc((all + 1) * sizeof *uses);
    for (size_t i = 0; uses && i < all; i++) {
        banyan_simulation_link(of, i, &uses[kept]);
        kept += uses[kept].bytes > 0;
    }
    if (uses)
        qsort(uses, kept, sizeof *uses, compare_uses);
    *count = uses ? kept : 0;
    return uses;
}

void simulate_report_links(const banyan_simulation *of)
{
    size_t count;
    banyan_link_use *uses = collect_uses(of, &count);
    printf("\n%-40s%12s%8s%8s\n", "links and memories", "bytes", "busy", "full");
    for (size_t i = 0; i < count && i < ROWS_MOST; i++) {
        char name[128], text[TEXT_NUMBER_BYTES], cell[TEXT_NUMBER_BYTES];
        if (uses[i].destination)
            snprintf(name, sizeof name, "%s -> %s", uses[i].source, uses[i].destination);
        else
            snprintf(name, sizeof name, "memory of %s", uses[i].source);
        printf("%-40s%s%7.1f%%%7.1f%%\n", name,
               text_right(text_bytes(uses[i].bytes, text), 12, cell), 100 * uses[i].busy,
               100 * uses[i].full);
    }
    if (count > ROWS_MOST)
        printf("and %zu less used ones\n", count - ROWS_MOST);
    free(uses);
}

json_t *simulate_report_links_json(const banyan_simulation *of)
{
    size_t count;
    banyan_link_use *uses = collect_uses(of, &count);
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list,
                              json_pack("{s:s, s:s?, s:I, s:f, s:f}", "from", uses[i].source, "to",
                                        uses[i].destination, "bytes", (json_int_t)uses[i].bytes,
                                        "busy", uses[i].busy, "full", uses[i].full));
    free(uses);
    return list;
}

/* Steps of one kind of operation. */
typedef struct share {
    const char *what;
    bool proxy;
    size_t steps;
    double seconds;
} share;

/* Kinds of operations are few. */
#define SHARES_MOST 128

static int compare_shares(const void *a, const void *b)
{
    const share *first = a, *second = b;
    if (first->seconds != second->seconds)
        return first->seconds > second->seconds ? -1 : 1;
    return strcmp(first->what, second->what);
}

static size_t collect_shares(const banyan_simulation *of, share shares[SHARES_MOST])
{
    size_t count = 0;
    banyan_simulation_step step;
    for (size_t i = 0; banyan_simulation_path(of, i, &step); i++) {
        size_t at = 0;
        while (at < count &&
               (shares[at].proxy != step.proxy || strcmp(shares[at].what, step.what) != 0))
            at++;
        if (at == SHARES_MOST)
            continue;
        if (at == count)
            shares[count++] = (share){.what = step.what, .proxy = step.proxy};
        shares[at].steps++;
        shares[at].seconds += step.ended_s - step.began_s;
    }
    qsort(shares, count, sizeof *shares, compare_shares);
    return count;
}

void simulate_report_path(const banyan_simulation *of)
{
    share shares[SHARES_MOST];
    char cell[TEXT_NUMBER_BYTES];
    size_t count = collect_shares(of, shares);
    double seconds = banyan_simulation_seconds(of);
    if (count == 0)
        return;
    printf("\n%-24s%8s%s%8s\n", "critical path", "steps", text_right("µs", 12, cell), "share");
    for (size_t i = 0; i < count; i++)
        printf("%-24s%8zu%12.2f%7.1f%%\n", shares[i].what, shares[i].steps, shares[i].seconds * 1e6,
               seconds > 0 ? 100 * shares[i].seconds / seconds : 0);
}

json_t *simulate_report_path_json(const banyan_simulation *of)
{
    json_t *list = json_array();
    banyan_simulation_step step;
    for (size_t i = 0; banyan_simulation_path(of, i, &step); i++)
        json_array_append_new(
            list, json_pack("{s:i, s:i, s:i, s:i, s:I, s:b, s:s, s:f, s:f}", "rank", step.rank,
                            "thread_block", step.thread_block, "operation", step.operation,
                            "loop_operation", step.loop_operation, "iteration",
                            (json_int_t)step.iteration, "proxy", (int)step.proxy, "what", step.what,
                            "began_s", step.began_s, "ended_s", step.ended_s));
    return list;
}

static void simulate_report_print_json(const simulate_report *report)
{
    banyan_plan_info info = banyan_plan_describe(report->plan);
    json_t *object = json_pack("{s:s, s:s, s:i, s:s, s:O, s:o, s:o}", "name", info.name,
                               "collective", info.collective_name, "ranks", info.ranks, "topology",
                               banyan_topology_describe(report->topology).name, "sizes",
                               report->sizes, "links", simulate_report_links_json(report->last),
                               "critical_path", simulate_report_path_json(report->last));
    if (json_print(object) != BANYAN_OK)
        fprintf(stderr, "banyan simulate: %s\n", banyan_last_error());
}

void simulate_report_end(const simulate_report *report)
{
    if (report->json) {
        simulate_report_print_json(report);
        return;
    }
    simulate_report_links(report->last);
    simulate_report_path(report->last);
}

void simulate_report_free(simulate_report *report)
{
    json_decref(report->sizes);
    banyan_simulation_destroy(report->last);
}
