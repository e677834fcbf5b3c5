/* Untrusted plans: one fault in a valid plan, and its message. */
#include "support/test.h"

#include <jansson.h>

#include "core/text/json.h"

#define GOOD BANYAN_SOURCE_DIR "/tests/fuzz/corpus/plan/every-operation"

static char *good_text;
static size_t good_bytes;

/* Return the parent of the path "gpus.0.threadblocks.1"; `*last` is its last step. */
static json_t *follow(json_t *root, char *path, char **last)
{
    char *save, *step = strtok_r(path, ".", &save);
    json_t *at = root;
    for (char *next; (next = strtok_r(NULL, ".", &save)); step = next) {
        at = json_is_array(at) ? json_array_get(at, strtoul(step, NULL, 10))
                               : json_object_get(at, step);
        CHECK(at, "there is no %s", step);
    }
    *last = step;
    return at;
}

/* Set the value at the path, or delete it: value NULL. "+" appends to a list. */
static void change(json_t *root, const char *where, const char *value)
{
    char *path = strdup(where), *last;
    json_t *parent = follow(root, path, &last);
    json_t *new = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    CHECK(!value || new, "%s is not JSON", value);
    int failed;
    if (!json_is_array(parent))
        failed = new ? json_object_set_new(parent, last, new) : json_object_del(parent, last);
    else if (last[0] == '+')
        failed = json_array_append_new(parent, new);
    else if (new)
        failed = json_array_set_new(parent, strtoul(last, NULL, 10), new);
    else
        failed = json_array_remove(parent, strtoul(last, NULL, 10));
    CHECK(failed == 0, "%s cannot be changed", where);
    free(path);
}

typedef struct wrong {
    const char *where, *value;   /* the change */
    const char *where2, *value2; /* a second one, if one is not enough */
    const char *said;
} wrong;

static banyan_status read_changed(const wrong *change_it, banyan_plan **plan)
{
    json_t *root;
    CHECK_OK(json_parse_u64("good", good_text, good_bytes, &root));
    change(root, change_it->where, change_it->value);
    if (change_it->where2)
        change(root, change_it->where2, change_it->value2);
    char *text = json_dumps(root, 0);
    CHECK(text);
    banyan_status status = banyan_plan_parse(text, strlen(text), "plan.json", plan);
    free(text);
    json_decref(root);
    return status;
}

static void check_refused(const wrong *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        banyan_plan *plan;
        banyan_status status = read_changed(&list[i], &plan);
        CHECK(status == BANYAN_ERR_FORMAT, "%s: %s was taken", list[i].where,
              list[i].value ? list[i].value : "(deleted)");
        CHECK(strncmp(banyan_last_error(), "plan.json: ", 11) == 0 &&
                  strstr(banyan_last_error(), list[i].said),
              "\"%s\" is not in: %s", list[i].said, banyan_last_error());
    }
}

#define REFUSED(...)                                                                               \
    do {                                                                                           \
        static const wrong list[] = {__VA_ARGS__};                                                 \
        check_refused(list, sizeof list / sizeof list[0]);                                         \
    } while (0)

/* Operations of rank 0's thread blocks. */
#define OP(block, op) "gpus.0.threadblocks." #block ".ops." #op
#define AT(block, op) "gpus[0].threadblocks[" #block "].ops[" #op "]"

static void the_plan_itself_is_taken(void **state)
{
    (void)state;
    banyan_plan *plan;
    CHECK_OK(banyan_plan_parse(good_text, good_bytes, "plan.json", &plan));
    banyan_plan_info info = banyan_plan_describe(plan);
    CHECK(info.ranks == 2 && info.thread_blocks == 2 && info.operations == 2 * (22 + 12 + 2));
    CHECK(info.max_message_bytes == UINT64_MAX && info.buffer_alignment == 32);
    CHECK(info.collective == BANYAN_CUSTOM && strcmp(info.collective_name, "mine") == 0);
    CHECK(strcmp(banyan_plan_tag(plan, "who"), "a \"test\"") == 0);
    CHECK(strcmp(banyan_plan_tag_key(plan, 0), "who") == 0 && !banyan_plan_tag_key(plan, 1));
    CHECK(!banyan_plan_tag(plan, "what"));
    banyan_plan_destroy(plan);
}

static void texts_that_are_not_plans_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *said;
    } list[] = {
        {"", "plan.json:1:0: "},
        {"{", "plan.json:1:1: "},
        {"[]", "the document is not an object"},
        {"{\"name\": \"a\", \"name\": \"b\"}", "duplicate"},
        {"{\"gpus\": 4}", "gpus is an integer where an array should be"},
        {"{\"gpus\": []}", "has 0 ranks"},
        {"{\"gpus\": [{}]}", "has no \"name\""},
        {"{\"gpus\": [{\"id\": 18446744073709551616}]}", "too big"},
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        banyan_plan *plan;
        CHECK_FAILS(banyan_plan_parse(list[i].text, strlen(list[i].text), "plan.json", &plan),
                    BANYAN_ERR_FORMAT, list[i].said);
    }
    banyan_plan *plan;
    CHECK_FAILS(banyan_plan_read("/nowhere/plan.json", &plan), BANYAN_ERR_NOT_FOUND,
                "/nowhere/plan.json");
}

static void deep_nesting_is_refused(void **state)
{
    (void)state;
    enum { DEEP = 1000000 };
    char *text = malloc(DEEP);
    banyan_plan *plan;
    memset(text, '[', DEEP);
    CHECK_FAILS(banyan_plan_parse(text, DEEP, "plan.json", &plan), BANYAN_ERR_FORMAT, "plan.json:");
    free(text);
}

static void a_wrong_head_is_refused(void **state)
{
    (void)state;
    REFUSED(
        {"name", NULL, .said = "has no \"name\""},
        {"name", "7", .said = "name is an integer where a string should be"},
        {"name", "\"a\\u001b[2Jb\"", .said = "a name with the control character 0x1b"},
        {"collective", "\"\"", .said = "a collective without a name"},
        {"protocol", "\"LL128\"", .said = "the protocol \"LL128\""},
        {"protocol", NULL, .said = "has no \"protocol\""},
        {"inplace", NULL, .said = "has no \"inplace\""},
        {"inplace", "1", .said = "inplace is an integer"},
        {"reuse_resources", "\"no\"", .said = "reuse_resources is a string"},
        {"num_threads_per_block", "0", .said = "num_threads_per_block is 0"},
        {"buffer_alignment", "0", .said = "a buffer alignment of 0"},
        {"buffer_alignment", "2147483648", .said = "a buffer alignment of 2147483648"},
        {"buffer_alignment", "-1", .said = "buffer_alignment is -1"},
        {"min_message_size", "5", "max_message_size", "4", "at least 5 and at most 4"},
        {"max_message_size", "1.5", .said = "max_message_size is a number"},
        {"max_message_size", "\"18446744073709551616\"", .said = "max_message_size is a string"},
        {"gpus", NULL, .said = "has no \"gpus\""}, );
}

static void a_wrong_rank_is_refused(void **state)
{
    (void)state;
    REFUSED(
        {"gpus.1.id", "0", .said = "gpus[1] has the id 0"},
        {"gpus.0.id", "1", .said = "gpus[0] has the id 1"},
        {"gpus.1", "3", .said = "gpus[1] has no \"id\""},
        {"gpus.1.id", NULL, .said = "gpus[1] has no \"id\""},
        {"gpus.0.input_chunks", "-1", .said = "gpus[0].input_chunks is -1"},
        {"gpus.0.output_chunks", NULL, .said = "gpus[0] has no \"output_chunks\""},
        {"gpus.0.scratch_chunks", "\"18446744073709551615\"", .said = "scratch_chunks"},
        {"gpus.0.threadblocks", NULL, .said = "gpus[0] has no \"threadblocks\""},
        {"gpus.0.threadblocks.1.id", "2", .said = "gpus[0].threadblocks[1] has the id 2"},
        {"gpus.0.threadblocks.1.ops", NULL, .said = "gpus[0].threadblocks[1] has no \"ops\""},
        {"gpus.0.semaphores.0", "{}", .said = "gpus[0].semaphores[0] has no \"init_value\""},
        {"gpus.0.semaphores.0.init_value", "-3", .said = "semaphores[0].init_value is -3"},
        {"gpus.0.remote_buffers.0.rank", "2", .said = "gpus[0].remote_buffers[0].rank is 2"},
        {"gpus.0.remote_buffers.0.rank", "0", .said = "gpus[0].remote_buffers[0] is rank 0's own"},
        {"gpus.0.remote_buffers.0.type", "\"x\"", .said = "remote_buffers[0].type is \"x\""},
        {"gpus.0.remote_buffers.0.access_channel_types.0", "\"none\"",
         .said = "access_channel_types[0] is none of"}, );
}

static void wrong_numbers_of_chunks_for_a_collective_are_refused(void **state)
{
    (void)state;
    REFUSED(
        {"collective", "\"allgather\"", .said = "4 input and 4 output chunks, which does not make"},
        {"collective", "\"reducescatter\"", .said = "does not make reducescatter of 2 ranks"},
        {"collective", "\"alltoall\"", "gpus.0.output_chunks", "6",
         .said = "4 input and 6 output chunks, which does not make alltoall of 2 ranks"},
        {"collective", "\"allreduce\"", "gpus.1.input_chunks", "5",
         "gpus[1] has 5 input and 4 output chunks, and rank 0 has 4 and 4"},
        {"collective", "\"allreduce\"", .said = "states the result of allreduce"}, );
}

static void wrong_channels_are_refused(void **state)
{
    (void)state;
    REFUSED({"gpus.0.channels.0.channel_type", "\"tcp\"",
             .said = "gpus[0].channels[0].channel_type is \"tcp\""},
            {"gpus.0.channels.0.channel_type", "\"none\"", .said = "of the type \"none\""},
            {"gpus.0.channels.0.connected_to.1", "2",
             .said = "gpus[0].channels[0].connected_to[1] is 2"},
            {"gpus.0.channels.0.connected_to.1", "0",
             .said = "gpus[0].channels.memory[1] leads from rank 0 to itself"},
            {"gpus.1.channels.0.connected_to.1", NULL, .said = "no channel back"},
            {"gpus.1.channels.1.connected_to.0", NULL,
             .said = AT(1, 1) ".channel_ids[0] names port channel 0 of rank 0, and rank 1 has no"},
            {"gpus.0.channels.2.buffer_type", "7", .said = "gpus[0].channels[2].buffer_type"},
            {"gpus.0.channels.2.rank_groups.0.ranks.1", "2", .said = "ranks[1] is 2"},
            {"gpus.0.channels.2.rank_groups.0.ranks.1", "0",
             .said = "gpus[0].channels.switch[0] has rank 0 twice"},
            {"gpus.0.channels.2.rank_groups.0.size", "3", .said = "has the size 3 and 2 ranks"},
            {"gpus.0.channels.2.rank_groups.0.ranks.0", NULL,
             "gpus.0.channels.2.rank_groups.0.size", "1", "which is none of its ranks"},
            {"gpus.0.channels.2.rank_groups", NULL, .said = "has no \"rank_groups\""},
            {"gpus.1.channels.2.buffer_type", "\"o\"", .said = "rank 1 has 0"},
            {"gpus.1.channels.2.rank_groups.+", "{\"size\": 2, \"ranks\": [0, 1]}",
             .said = "rank 1 has 2"}, );
}

static void wrong_numbers_of_a_thread_block_are_refused(void **state)
{
    (void)state;
    REFUSED({"gpus.0.threadblocks.0.channels.0.channel_ids.1", "2",
             .said = "gpus[0].threadblocks[0].channels.memory[1] is 2, and rank 0 has 2 memory"},
            {"gpus.0.threadblocks.0.channels.0.channel_ids.1", "4294967296",
             .said = "channel_ids[1] is 4294967296"},
            {"gpus.0.threadblocks.0.channels.0.channel_type", "\"none\"",
             .said = "channels.none[0] is 1, and rank 0 has 0"},
            {"gpus.0.threadblocks.0.remote_buffer_refs.0.remote_buffer_ids.1", "3",
             .said = "remote_buffer_refs.memory[1] is 3, and rank 0 has 3 remote buffers"},
            {"gpus.0.threadblocks.0.remote_buffer_refs.0.remote_buffer_ids.1", "2",
             .said = "remote buffer 2 is not for memory channels"},
            {"gpus.0.threadblocks.0.remote_buffer_refs.0.remote_buffer_ids", "7",
             .said = "remote_buffer_refs[0].remote_buffer_ids is an integer"}, );
}

static void wrong_operands_are_refused(void **state)
{
    (void)state;
    REFUSED(
        {OP(0, 1) ".src_buff.0.index", "4",
         .said = AT(0, 1) ".src_buff[0].index is 4, and rank 0's input has 4 chunks"},
        {OP(0, 1) ".src_buff.0.index", "3",
         .said = AT(0, 1) ".src_buff[0].size is 2, and rank 0's input has 1 chunks from 3 on"},
        {OP(0, 1) ".src_buff.0.index", "9223372036854775807", .said = "is 9223372036854775807"},
        {OP(0, 1) ".src_buff.0.size", "9223372036854775807", .said = "is 9223372036854775807"},
        {OP(0, 1) ".src_buff.0.size", "0", .said = AT(0, 1) ".src_buff[0] has no chunks"},
        {OP(0, 1) ".src_buff.0.size", "1", .said = AT(0, 1) " has operands of 1 and of 2 chunks"},
        {OP(0, 1) ".src_buff.0.type", "\"x\"", .said = "src_buff[0].type is \"x\""},
        {OP(0, 1) ".src_buff.0.type", NULL, .said = "src_buff[0] has to have one of"},
        {OP(0, 1) ".src_buff.0.rank", "1", .said = "src_buff[0] is of rank 1"},
        {OP(0, 1) ".src_buff", "[]", .said = AT(0, 1) ".src_buff does not fit copy, which takes 1"},
        {OP(0, 1) ".dst_buff", NULL, .said = AT(0, 1) ".dst_buff does not fit copy"},
        {OP(0, 1) ".src_buff.0", "{\"buffer_id\": 0, \"index\": 0, \"size\": 2}",
         .said = "src_buff does not fit copy"},
        {OP(0, 0) ".src_buff", "[{\"type\": \"i\", \"index\": 0, \"size\": 1}]",
         .said = AT(0, 0) ".src_buff does not fit nop, which takes none"},
        {OP(0, 2) ".src_buff", "[{\"type\": \"i\", \"index\": 0, \"size\": 1}]",
         .said = "2 or more local"},
        {OP(0, 3) ".dst_buff.0.type", "\"o\"", .said = "packets in the output"},
        {OP(0, 6) ".src_buff.1.type", "\"i\"", .said = "src_buff[1] is packets in the input"},
        {"buffer_alignment", "42",
         .said = "has packets, which carry 4 bytes each: buffer_alignment is 42"},
        {OP(0, 10) ".src_buff.0.buffer_id", "2",
         .said = AT(0, 10) ".src_buff[0].buffer_id is 2, and thread block 0 of rank 0 has 2"},
        {OP(0, 10) ".src_buff.0.index", "4", .said = "is 4, and rank 1's input has 4 chunks"},
        {OP(0, 11) ".dst_buff.1.index", "6", .said = "is 3, and rank 1's scratch has 2 chunks"},
        {OP(0, 11) ".src_buff.1", NULL, .said = AT(0, 11) " has 1 sources and 2 destinations"},
        {OP(0, 16) ".src_buff.0", "{\"buffer_id\": 0, \"index\": 0, \"size\": 1}",
         .said = "1 local, then 1 or more remote"},
        {OP(1, 6) ".dst_buff.0.switch_channel_id", "2",
         .said = AT(1, 6) ".dst_buff[0].switch_channel_id is 2"},
        {OP(1, 6) ".dst_buff.0.index", "4", .said = "is 4, and rank 0's input has 4 chunks"},
        {"gpus.1.input_chunks", "3", OP(1, 6) ".dst_buff.0.index", "3",
         "is 3, and rank 1's input has 3 chunks"},
        {OP(1, 7) ".dst_buff.0.switch_channel_id", "0", .said = "is packets in the input"},
        {OP(1, 6) ".dst_buff", "[]", .said = "which takes 1 of a switch channel"},
        {OP(1, 6) ".dst_buff.0", "{\"type\": \"i\", \"index\": 0, \"size\": 1}",
         .said = "which takes 1 of a switch channel"}, );
}

static void wrong_operations_are_refused(void **state)
{
    (void)state;
    REFUSED(
        {OP(0, 0) ".name", "\"frobnicate\"",
         .said = AT(0, 0) ".name is \"frobnicate\", which is no"},
        {OP(0, 0) ".name", NULL, .said = AT(0, 0) " has no \"name\""},
        {OP(0, 0), "[]", .said = AT(0, 0) " has no \"name\""},
        {OP(0, 2) ".reduce_op", "\"avg\"", .said = AT(0, 2) ".reduce_op is \"avg\""},
        {OP(0, 1) ".tbg_info.tb_id", "2", .said = "is thread block 2 of a group of 2"},
        {OP(0, 1) ".tbg_info.tbg_size", "0", .said = "a group of no thread blocks"},
        {OP(0, 1) ".tbg_info.tbg_size", NULL, .said = "tbg_info has no \"tbg_size\""},
        {OP(0, 0) ".tbg_info", "{\"tb_id\": 0, \"tbg_size\": 2}", .said = "nop moves no data"},
        {OP(0, 8) ".channel_ids.1", "2",
         .said = AT(0, 8) ".channel_ids[1] is 2, and thread block 0 of rank 0 has 2 memory"},
        {OP(0, 8) ".channel_ids", "[]", .said = AT(0, 8) ".channel_ids is empty"},
        {OP(0, 8) ".channel_ids", NULL, .said = AT(0, 8) ".channel_ids is empty"},
        {OP(0, 8) ".channel_type", "\"port\"", .said = "is \"port\", which rlxsignal cannot use"},
        {OP(0, 8) ".channel_type", NULL, .said = AT(0, 8) " has no \"channel_type\""},
        {OP(1, 1) ".channel_ids", NULL, .said = "channel_ids has 0 entries for 1 destinations"},
        {OP(1, 4) ".channel_type", "\"memory\"", .said = "which flush cannot use"},
        {OP(0, 20) ".num_threadblocks", "3", .said = "num_threadblocks is 2, and thread block 0"},
        {OP(0, 20) ".num_threadblocks", "3", OP(1, 0) ".num_threadblocks", "3",
         AT(0, 20) ".num_threadblocks is 3, and barrier 7 is in 2 of rank 0's blocks"},
        {OP(0, 20) ".barrier_id", "8", .said = "barrier 8 is in 1 of rank 0's blocks"},
        {OP(0, 20) ".barrier_id", NULL, .said = AT(0, 20) " has no \"barrier_id\""},
        {OP(0, 21) ".semaphore_ids.0", "2",
         .said = AT(0, 21) ".semaphore_ids[0] is 2, and rank 0 has 2 semaphores"},
        {OP(0, 21) ".semaphore_ids", NULL, .said = AT(0, 21) ".semaphore_ids is empty"},
        {OP(1, 10) ".iter_context", NULL, .said = AT(1, 10) " has no \"iter_context\""},
        {OP(1, 10) ".iter_context.unit_size", "0", .said = "in units of 0 bytes"},
        {OP(1, 10) ".iter_context.num_chunks", "0", .said = "a loop over 0 chunks"},
        {OP(1, 10) ".iter_context.num_chunks", "1",
         .said = AT(1, 10) ".ops[0] moves 2 chunks in a loop over 1"},
        {OP(1, 10) ".ops.1", "{\"name\": \"pipeline\"}", .said = "pipelines do not nest"},
        {OP(1, 10) ".tbg_info", "{\"tb_id\": 0, \"tbg_size\": 2}",
         .said = "pipeline moves no data"},
        {OP(1, 10) ".src_buff", "[{\"type\": \"i\", \"index\": 0, \"size\": 1}]",
         .said = AT(1, 10) ".src_buff does not fit pipeline, which takes none"},
        {OP(1, 10) ".ops.0.src_buff.0.index", "3", .said = AT(1, 10) ".ops[0].src_buff[0].size"},
        {OP(1, 10) ".ops", NULL, .said = AT(1, 10) " has no \"ops\""}, );
}

static void a_channel_to_another_rank_than_the_destination_is_refused(void **state)
{
    (void)state;
    banyan_plan *plan;
    static const char text[] =
        "{\"name\": \"three\", \"collective\": \"mine\", \"protocol\": \"Simple\","
        " \"inplace\": false, \"gpus\": ["
        "{\"id\": 0, \"input_chunks\": 1, \"output_chunks\": 1, \"scratch_chunks\": 0,"
        " \"threadblocks\": [{\"id\": 0, \"ops\": [{\"name\": \"put\", \"src_buff\":"
        "  [{\"type\": \"i\", \"index\": 0, \"size\": 1}], \"dst_buff\":"
        "  [{\"buffer_id\": 0, \"index\": 0, \"size\": 1}], \"channel_ids\": [0],"
        "  \"channel_type\": \"port\"}],"
        "  \"channels\": [{\"channel_type\": \"port\", \"channel_ids\": [0]}],"
        "  \"remote_buffer_refs\": [{\"access_channel_type\": \"port\", \"remote_buffer_ids\": "
        "[0]}]}],"
        " \"channels\": [{\"channel_type\": \"port\", \"connected_to\": [1]}],"
        " \"remote_buffers\": [{\"rank\": 2, \"type\": \"o\", \"access_channel_types\": "
        "[\"port\"]}]},"
        "{\"id\": 1, \"input_chunks\": 1, \"output_chunks\": 1, \"scratch_chunks\": 0,"
        " \"threadblocks\": []},"
        "{\"id\": 2, \"input_chunks\": 1, \"output_chunks\": 1, \"scratch_chunks\": 0,"
        " \"threadblocks\": []}]}";
    CHECK_FAILS(banyan_plan_parse(text, sizeof text - 1, "plan.json", &plan), BANYAN_ERR_FORMAT,
                "names a channel to rank 1, and the destination is rank 2's");
}

static void wrong_additions_are_refused(void **state)
{
    (void)state;
    REFUSED(
        {"banyan", "[]", .said = "banyan is an array where an object should be"},
        {"banyan.root", "2", .said = "banyan.root is 2"},
        {"banyan.shift", "2", .said = "banyan.shift is 2"},
        {"banyan.reduce_op", "\"avg\"", .said = "banyan.reduce_op is \"avg\""},
        {"banyan.tags.who", "5", .said = "banyan.tags.who is an integer"},
        {"banyan.expected", "[]", .said = "banyan.expected has 0 entries, and the plan has 2"},
        {"banyan.expected.1", "[]", .said = "banyan.expected[1] has to be null or a list of the 4"},
        {"gpus.1.output_chunks", "4611686018427387904", .said = "banyan.expected[1] has to be"},
        {"banyan.expected.1.0", "3", .said = "banyan.expected[1][0] has to be null"},
        {"banyan.expected.1.0.1", "[0]", .said = "banyan.expected[1][0][1] has to be a rank and"},
        {"banyan.expected.1.0.1.0", "2", .said = "banyan.expected[1][0][1] is 2"},
        {"banyan.expected.1.0.1.1", "4",
         .said = "input chunk 4 of rank 1 in output chunk 0 of rank 1"}, );
}

/* A minimal plan: omitted fields have the format's defaults. */
static void missing_keys_have_the_formats_defaults(void **state)
{
    (void)state;
    static const char text[] =
        "{\"name\": \"little\", \"collective\": \"sendrecv\", \"protocol\": \"Simple\","
        " \"inplace\": false, \"unknown\": [1], \"gpus\": ["
        "{\"id\": 0, \"input_chunks\": 1, \"output_chunks\": 1, \"scratch_chunks\": 0,"
        " \"threadblocks\": [{\"id\": 0, \"ops\": [{\"name\": \"nop\", \"why\": null}]}]},"
        "{\"id\": 1, \"input_chunks\": 1, \"output_chunks\": 1, \"scratch_chunks\": 0,"
        " \"threadblocks\": []}]}";
    banyan_plan *plan;
    CHECK_OK(banyan_plan_parse(text, sizeof text - 1, "plan.json", &plan));
    banyan_plan_info info = banyan_plan_describe(plan);
    CHECK(info.collective == BANYAN_SENDRECV && info.shift == 1 && info.root == 0);
    CHECK(!info.reuse_resources && !info.double_scratch && info.threads_per_block == 1024);
    CHECK(info.buffer_alignment == 16 && info.min_message_bytes == 0 &&
          info.max_message_bytes == UINT64_MAX);
    banyan_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plan_itself_is_taken),
        cmocka_unit_test(texts_that_are_not_plans_are_refused),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(a_wrong_head_is_refused),
        cmocka_unit_test(a_wrong_rank_is_refused),
        cmocka_unit_test(wrong_numbers_of_chunks_for_a_collective_are_refused),
        cmocka_unit_test(wrong_channels_are_refused),
        cmocka_unit_test(wrong_numbers_of_a_thread_block_are_refused),
        cmocka_unit_test(wrong_operands_are_refused),
        cmocka_unit_test(wrong_operations_are_refused),
        cmocka_unit_test(a_channel_to_another_rank_than_the_destination_is_refused),
        cmocka_unit_test(wrong_additions_are_refused),
        cmocka_unit_test(missing_keys_have_the_formats_defaults),
    };
    CHECK_OK(file_read(GOOD, SIZE_MAX / 2, &good_text, &good_bytes));
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(good_text);
    return failed;
}
