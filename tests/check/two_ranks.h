/* Small plans between two ranks as text, and the findings of a check. */
#ifndef TESTS_CHECK_TWO_RANKS_H
#define TESTS_CHECK_TWO_RANKS_H

#include "support/test.h"

/* A custom collective of two ranks with one input, output and two scratch chunks each. Every thread
 * block has the memory channel 0 and the port channel 0 to the other rank, and its input (0),
 * output (1) and scratch (2) as remote buffers; there are two semaphores, at 0 and 9. */
typedef struct two_ranks {
    const char *ops[2][3]; /* of each rank's thread blocks; NULL: none */
    const char *expected;  /* JSON of the output chunks, or NULL */
    bool in_place, double_scratch;
} two_ranks;

#define NOP "{\"name\":\"nop\"}"
#define LOCAL_CHUNK(buffer, index) "{\"type\":\"" buffer "\",\"index\":" #index ",\"size\":1}"
#define REMOTE_CHUNK(id, index) "{\"buffer_id\":" #id ",\"index\":" #index ",\"size\":1}"
#define MOVE(name, source, destination)                                                            \
    "{\"name\":\"" name "\",\"src_buff\":[" source "],\"dst_buff\":[" destination "]}"
#define MOVE_BY(name, type, source, destination)                                                   \
    "{\"name\":\"" name "\",\"channel_type\":\"" type                                              \
    "\",\"channel_ids\":[0],\"src_buff\":[" source "],\"dst_buff\":[" destination "]}"
#define ON(name, type) "{\"name\":\"" name "\",\"channel_type\":\"" type "\",\"channel_ids\":[0]}"
#define SEMAPHORE(name, index) "{\"name\":\"" name "\",\"semaphore_ids\":[" #index "]}"
#define BARRIER "{\"name\":\"barrier\",\"barrier_id\":0,\"num_threadblocks\":2}"
#define PUT(source, destination) MOVE_BY("put", "memory", source, destination)
#define SIGNAL ON("signal", "memory")
#define WAIT ON("wait", "memory")
#define RELAXED_SIGNAL ON("rlxsignal", "memory")
#define RELAXED_WAIT ON("rlxwait", "memory")
/* Both ranks have finished their earlier work. */
#define EXCHANGE NOP "," SIGNAL "," WAIT "," NOP
#define EXCHANGE_RELAXED NOP "," RELAXED_SIGNAL "," RELAXED_WAIT "," NOP

static inline void print_blocks(char *text, size_t bytes, const two_ranks *made, int rank)
{
    size_t used = 0;
    for (int b = 0; b < 3 && made->ops[rank][b]; b++)
        used += (size_t)snprintf(
            text + used, bytes - used,
            "%s{\"id\":%d,\"ops\":[%s],\"channels\":[{\"channel_type\":\"memory\","
            "\"channel_ids\":[0]},{\"channel_type\":\"port\",\"channel_ids\":[0]}],"
            "\"remote_buffer_refs\":[{\"access_channel_type\":\"memory\",\"remote_buffer_ids\":"
            "[0,1,2]},{\"access_channel_type\":\"port\",\"remote_buffer_ids\":[0,1,2]}]}",
            b > 0 ? "," : "", b, made->ops[rank][b]);
}

/* The report's limits when `expected` is NULL. */
#define OUTPUTS_UNCHECKED                                                                          \
    "Outputs were not checked: the collective \"small\" does not say what they must hold."

static inline banyan_plan *plan_of(const two_ranks *made)
{
    static char text[65536], blocks[16384];
    size_t used = (size_t)snprintf(
        text, sizeof text,
        "{\"name\":\"small\",\"collective\":\"small\",\"protocol\":\"Simple\",\"inplace\":%s,"
        "\"reuse_resources\":false,\"use_double_scratch_buffer\":%s,\"banyan\":{%s%s},\"gpus\":[",
        made->in_place ? "true" : "false", made->double_scratch ? "true" : "false",
        made->expected ? "\"expected\":" : "", made->expected ? made->expected : "");
    for (int r = 0; r < 2; r++) {
        blocks[0] = 0;
        print_blocks(blocks, sizeof blocks, made, r);
        used += (size_t)snprintf(
            text + used, sizeof text - used,
            "%s{\"id\":%d,\"input_chunks\":1,\"output_chunks\":1,\"scratch_chunks\":2,"
            "\"channels\":[{\"channel_type\":\"memory\",\"connected_to\":[%d]},"
            "{\"channel_type\":\"port\",\"connected_to\":[%d]}],\"remote_buffers\":["
            "{\"rank\":%d,\"type\":\"i\",\"access_channel_types\":[\"memory\",\"port\"]},"
            "{\"rank\":%d,\"type\":\"o\",\"access_channel_types\":[\"memory\",\"port\"]},"
            "{\"rank\":%d,\"type\":\"s\",\"access_channel_types\":[\"memory\",\"port\"]}],"
            "\"semaphores\":[{\"init_value\":0},{\"init_value\":9}],\"threadblocks\":[%s]}",
            r > 0 ? "," : "", r, 1 - r, 1 - r, 1 - r, 1 - r, 1 - r, blocks);
    }
    snprintf(text + used, sizeof text - used, "]}");
    banyan_plan *plan;
    CHECK(banyan_plan_parse(text, strlen(text), "small", &plan) == BANYAN_OK, "%s\n%s",
          banyan_last_error(), text);
    return plan;
}

static inline banyan_check_report *report_of(const two_ranks *made)
{
    banyan_plan *plan = plan_of(made);
    banyan_check_report *report;
    CHECK_OK(banyan_plan_check(plan, NULL, &report));
    banyan_plan_destroy(plan);
    return report;
}

/* Return the first finding of the rule; it must exist. */
static inline const banyan_check_finding *finding_of(const banyan_check_report *report,
                                                     banyan_check_rule rule)
{
    for (size_t i = 0; i < banyan_check_report_count(report); i++) {
        const banyan_check_finding *one = banyan_check_report_finding(report, i);
        if (one->rule == rule)
            return one;
    }
    char *text;
    CHECK_OK(banyan_check_report_print(report, "small", false, &text));
    CHECK(false, "no %s is found: %s", banyan_check_rule_name(rule), text);
    return NULL;
}

static inline void must_be_sound(const two_ranks *made)
{
    banyan_check_report *report = report_of(made);
    char *text;
    CHECK_OK(banyan_check_report_print(report, "small", false, &text));
    CHECK(banyan_check_report_is_sound(report), "%s", text);
    free(text);
    banyan_check_report_destroy(report);
}

/* Only this rule is broken. */
static inline void must_break(const two_ranks *made, banyan_check_rule rule)
{
    banyan_check_report *report = report_of(made);
    char *text;
    CHECK_OK(banyan_check_report_print(report, "small", false, &text));
    CHECK(!banyan_check_report_is_sound(report), "%s", text);
    for (size_t i = 0; i < banyan_check_report_count(report); i++) {
        const banyan_check_finding *one = banyan_check_report_finding(report, i);
        CHECK(one->rule == rule || banyan_check_rule_is_warning(one->rule), "%s", text);
    }
    free(text);
    banyan_check_report_destroy(report);
}

#endif
