/* Features of rule files, by the elements of the layouts made with them. */
#include "reshard/elements.h"
#include "reshard/standin.h"
#include "support/text_file.h"

#include "reshard/layout/layout.h"
#include "reshard/model/facts.h"
#include "reshard/rules/expr.h"

static banyan_rules *rules_of(const char *text)
{
    text_file file = text_file_of(text);
    banyan_rules *rules;
    CHECK_OK(banyan_rules_load(file.path, &rules));
    text_file_remove(&file);
    return rules;
}

static banyan_layout *layout_of(const banyan_model *model, const char *rule_text,
                                const char *spec_text, int rank)
{
    banyan_rules *rules = rules_of(rule_text);
    banyan_spec spec;
    banyan_layout *layout;
    CHECK_OK(banyan_spec_parse(spec_text, &spec));
    CHECK_OK(banyan_layout_create(&layout));
    banyan_layout_add_model(layout, model, rules, &spec, rank, 0);
    banyan_rules_destroy(rules);
    return layout;
}

/* A local tensor's elements, in order, are these of the global tensor; -1 is padding. */
static void expect_elements(const banyan_model *model, const char *rule_text, const char *spec_text,
                            int rank, const char *name, size_t count, const int64_t *expected)
{
    banyan_layout *layout = layout_of(model, rule_text, spec_text, rank);
    CHECK_OK(banyan_layout_check_as(layout, BANYAN_DESTINATION));
    int found = layout_find_tensor(layout, name);
    CHECK(found >= 0, "%s, rank %d: no %s", spec_text, rank, name);
    const banyan_local_tensor *local = banyan_layout_tensor(layout, (size_t)found);
    CHECK(shape_elems(local->ndim, local->shape) == (int64_t)count, "%s", name);
    const banyan_piece **by;
    int64_t *held = layout_elements(layout, (size_t)found, &by);
    for (size_t i = 0; i < count; i++) {
        if (expected[i] < 0)
            CHECK(held[i] == ELEMENT_PADDING, "element %zu of %s, rank %d", i, name, rank);
        else
            CHECK(held[i] == expected[i], "element %zu of %s, rank %d: %lld", i, name, rank,
                  (long long)held[i]);
    }
    free(held);
    free(by);
    banyan_layout_destroy(layout);
}

#define EXPECT(model, rules, spec, rank, name, ...)                                                \
    do {                                                                                           \
        const int64_t expected_[] = {__VA_ARGS__};                                                 \
        expect_elements(model, rules, spec, rank, name, sizeof expected_ / sizeof *expected_,      \
                        expected_);                                                                \
    } while (0)

static void expect_refused(const banyan_model *model, const char *rule_text, const char *spec_text,
                           const char *part)
{
    banyan_layout *layout = layout_of(model, rule_text, spec_text, 0);
    CHECK_FAILS(banyan_layout_check(layout), BANYAN_ERR_INVALID, part);
    banyan_layout_destroy(layout);
}

/* One tensor and a config.json; NULL: none. */
static banyan_model *model_of(int64_t rows, int64_t columns, const char *config)
{
    standin made = standin_begin();
    standin_add(&made, "BF16", rows, columns, "w");
    if (config)
        standin_config(&made, config);
    return standin_load(&made);
}

static void parts_of_a_fused_tensor_are_each_cut_by_itself(void **state)
{
    (void)state;
    /* 4 heads of queries, 2 of keys, 2 of values, of 2 elements. */
    const char *rules =
        "packing p\npacking g\nw\n shard 0\n part q*h heads h\n part k*h heads h shared\n"
        " part k*h heads h shared\n in p f block 0\n in g f group 0\n";
    banyan_model *model = model_of(16, 0, "{\"q\": 4, \"k\": 2, \"h\": 2}");
    EXPECT(model, rules, "tp=2", 1, "w", 4, 5, 6, 7, 10, 11, 14, 15);
    EXPECT(model, rules, "tp=2,packing=p", 0, "f", 0, 1, 2, 3, 8, 9, 12, 13);
    EXPECT(model, rules, "tp=4,packing=p", 3, "f", 6, 7, 10, 11, 14, 15);
    EXPECT(model, rules, "tp=1,packing=g", 0, "f", 0, 1, 2, 3, 8, 9, 12, 13, 4, 5, 6, 7, 10, 11, 14,
           15);
    banyan_model_destroy(model);
    model = model_of(16, 0, "{\"q\": 4, \"k\": 1, \"h\": 2}");
    expect_refused(model, rules, "tp=2", "its parts do not add up to its 16 elements");
    banyan_model_destroy(model);
    model = model_of(16, 0, NULL);
    EXPECT(model, rules, "tp=1,packing=p", 0, "f", 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,
           15);
    expect_refused(model, rules, "tp=2", "\"q\" is needed and unknown: give a config.json");
    expect_refused(model, rules, "packing=g", "\"q\" is needed and unknown");
    banyan_model_destroy(model);
}

static void a_whole_part_is_held_by_every_rank(void **state)
{
    (void)state;
    banyan_model *model = model_of(6, 0, NULL);
    const char *rules = "w\n shard 0\n part size-2\n part 2 whole\n";
    EXPECT(model, rules, "tp=2", 0, "w", 0, 1, 4, 5);
    EXPECT(model, rules, "tp=2", 1, "w", 2, 3, 4, 5);
    expect_refused(model, "w\n shard 0\n part size/4\n part 2\n", "tp=2",
                   "size/4: 6 / 4 is not an integer");
    banyan_model_destroy(model);
}

static void stacked_experts_are_distributed_cut_and_transposed(void **state)
{
    (void)state;
    standin made = standin_begin();
    fputs("\n\"e\": {\"shape\": [2, 2, 4], \"dtype\": \"BF16\"}", made.file);
    made.tensors = made.entries = 1;
    banyan_model *model = standin_load(&made);
    const char *rules = "packing p\ne\n experts 0\n shard 2\n part size/2\n part size/2\n"
                        " in p w13 block 0 stack transpose\n";
    EXPECT(model, rules, "tp=2,packing=p", 1, "w13", 1, 5, 3, 7, 9, 13, 11, 15);
    EXPECT(model, rules, "dp=2,ep=2,packing=p", 1, "w13", 8, 12, 9, 13, 10, 14, 11, 15);
    EXPECT(model, rules, "dp=2,ep=2", 0, "e", 0, 1, 2, 3, 4, 5, 6, 7);
    banyan_model_destroy(model);
}

static void stacked_experts_become_tensors_of_their_own(void **state)
{
    (void)state;
    standin made = standin_begin();
    fputs("\n\"e\": {\"shape\": [2, 2, 4], \"dtype\": \"BF16\"}", made.file);
    made.tensors = made.entries = 1;
    banyan_model *model = standin_load(&made);
    const char *rules =
        "packing p strict\npacking r like p\ne\n experts 0\n shard 2\n part size/2\n"
        " part size/2\n in p fc1.{local_expert} block 0 transpose\n";
    EXPECT(model, rules, "tp=2,packing=p", 1, "fc1.0", 1, 5, 3, 7);
    EXPECT(model, rules, "tp=2,packing=p", 1, "fc1.1", 9, 13, 11, 15);
    EXPECT(model, rules, "dp=2,ep=2,packing=p", 1, "fc1.0", 8, 12, 9, 13, 10, 14, 11, 15);
    const char *straight = "packing p\ne\n experts 0\n in p {expert}.fc1\n";
    EXPECT(model, straight, "dp=2,ep=2,packing=p", 1, "1.fc1", 8, 9, 10, 11, 12, 13, 14, 15);
    const char *rows = "packing p\ne\n experts 0\n shard 1\n in p fc2.{expert} block 0\n";
    EXPECT(model, rows, "fsdp=2,packing=p", 1, "fc2.1", 12, 13, 14, 15);
    const char *pairs = "packing p\ne\n experts 0\n shard 2\n part size\n"
                        " in p fc1.{expert} transpose halves\n";
    EXPECT(model, pairs, "packing=p", 0, "fc1.1", 8, 12, 10, 14, 9, 13, 11, 15);
    EXPECT(model, pairs, "tp=2,packing=p", 1, "fc1.0", 2, 6, 3, 7);
    expect_refused(model, pairs, "tp=4,packing=p", "heads of 1 elements of \"e\" have no halves");
    const char *none = "packing p strict\npacking r like p\ne\n experts 0\n in p {expert}.fc1\n"
                       " in r none\n";
    EXPECT(model, none, "packing=p", 0, "0.fc1", 0, 1, 2, 3, 4, 5, 6, 7);
    expect_refused(model, none, "packing=r", "the rules have no place for it in the packing \"r\"");
    none = "packing p strict\npacking r like p\ne\n experts 0\n"
           " in p none with x because of nothing\n in p none because it is large: use q\n";
    expect_refused(model, none, "packing=r", "the packing \"r\": it is large: use q");
    banyan_model_destroy(model);
}

static void halves_and_once(void **state)
{
    (void)state;
    banyan_model *model = model_of(8, 1, NULL);
    const char *rules = "packing p\nw\n shard 0\n heads 4\n in p w halves\n";
    EXPECT(model, rules, "packing=p", 0, "w", 0, 2, 1, 3, 4, 6, 5, 7);
    EXPECT(model, rules, "tp=2,packing=p", 1, "w", 4, 6, 5, 7);
    rules = "packing p\nw\n in p w once\n";
    EXPECT(model, rules, "tp=2,packing=p", 0, "w", 0, 1, 2, 3, 4, 5, 6, 7);
    EXPECT(model, rules, "tp=2,packing=p", 1, "w", -1, -1, -1, -1, -1, -1, -1, -1);
    expect_refused(model, "packing p\nw\n in p v computed\n", "packing=p",
                   "the packing \"p\" computes other values from it, for \"v\"");
    banyan_model_destroy(model);
}

static void a_computed_tensor_is_left_alone_once_its_source_is_left_out(void **state)
{
    (void)state;
    banyan_model *model = model_of(8, 0, NULL);
    const char *rules = "packing p\nw\n shard 0\n in p v computed dtype F32\n";
    size_t count;
    CHECK_FAILS(banyan_model_skip(model, "{rank}", &count), BANYAN_ERR_INVALID, "{rank}");
    CHECK_OK(banyan_model_skip(model, "x*", &count));
    assert_int_equal(count, 0);
    CHECK_OK(banyan_model_skip(model, "w*", &count));
    assert_int_equal(count, 1);
    banyan_layout *layout = layout_of(model, rules, "tp=2,packing=p", 1);
    CHECK_OK(banyan_layout_check_as(layout, BANYAN_DESTINATION));
    assert_int_equal(banyan_layout_tensor_count(layout), 1);
    assert_int_equal(banyan_layout_piece_count(layout), 0);
    assert_int_equal(banyan_layout_left_alone_count(layout), 1);
    const banyan_local_tensor *local = banyan_layout_tensor(layout, 0);
    assert_string_equal(local->name, "v");
    assert_true(banyan_dtype_equal(local->dtype, BANYAN_F32) && local->shape[0] == 4);
    assert_true(layout_skips(layout, "w"));
    banyan_layout_destroy(layout);
    layout = layout_of(model, rules, "tp=2", 1);
    CHECK_OK(banyan_layout_check(layout));
    assert_int_equal(banyan_layout_tensor_count(layout), 0);
    banyan_layout_destroy(layout);
    banyan_model_destroy(model);
}

static void a_fused_tensor_lacks_no_part(void **state)
{
    (void)state;
    standin made = standin_begin();
    standin_add(&made, "BF16", 2, 0, "q");
    standin_add(&made, "BF16", 2, 0, "k");
    banyan_model *model = standin_load(&made);
    const char *rules = "packing p\nq\n in p f block 0\nk\n in p f block 1\nv\n in p f block 2\n";
    expect_refused(model, rules, "packing=p",
                   "it is fused of \"k\" and others, and the model has no tensor for its part 2, "
                   "such as the rule \"v\"");
    rules = "packing p\nq\n in p f block 0 with v\nk\n in p f block 1 with v\nv\n in p f block 2\n";
    EXPECT(model, rules, "packing=p", 0, "q", 0, 1);
    EXPECT(model, rules, "packing=p", 0, "k", 0, 1);
    rules = "q\n without k\n shard 0\nq\n with k\nk\n";
    EXPECT(model, rules, "tp=2", 0, "q", 0, 1);
    banyan_model_destroy(model);
}

static void skips_and_renames_are_of_one_packing(void **state)
{
    (void)state;
    standin made = standin_begin();
    standin_add(&made, "BF16", 2, 0, "l.0.a");
    standin_add(&made, "BF16", 2, 0, "l.1.a");
    standin_add(&made, "BF16", 2, 0, "l.1.mark");
    banyan_model *model = standin_load(&made);
    const char *rules = "packing p\npacking d like p\nkeep d l.{layer}.* with l.{layer}.mark\n"
                        "skip d **\nskip p l.{layer}.* with l.{layer}.mark\n"
                        "rename d l.{layer}.a l.{layer}.draft.a\nl.{layer}.*\n";
    banyan_layout *layout = layout_of(model, rules, "packing=p", 0);
    CHECK_OK(banyan_layout_check(layout));
    assert_int_equal(banyan_layout_tensor_count(layout), 1);
    assert_true(layout_skips(layout, "l.1.a") && layout_skips(layout, "l.1.mark"));
    assert_false(layout_skips(layout, "l.0.a"));
    banyan_layout_destroy(layout);
    layout = layout_of(model, rules, "packing=d", 0);
    CHECK_OK(banyan_layout_check(layout));
    assert_int_equal(banyan_layout_tensor_count(layout), 2);
    assert_true(layout_find_tensor(layout, "l.1.draft.a") >= 0);
    assert_true(layout_find_tensor(layout, "l.1.mark") >= 0);
    banyan_layout_destroy(layout);
    layout = layout_of(model, rules, "", 0);
    assert_int_equal(banyan_layout_tensor_count(layout), 3);
    banyan_layout_destroy(layout);
    banyan_model_destroy(model);
}

static void layers_behind_all_others_are_on_the_last_stage(void **state)
{
    (void)state;
    standin made = standin_begin();
    standin_add(&made, "BF16", 2, 0, "embed");
    standin_add(&made, "BF16", 2, 0, "head");
    for (int layer = 0; layer < 4; layer++)
        standin_add(&made, "BF16", 4, 0, "l.%d.a", layer);
    standin_add(&made, "BF16", 2, 0, "l.3.mark");
    standin_add(&made, "BF16", 2, 0, "l.3.embed");
    banyan_model *model = standin_load(&made);
    const char *rules = "packing p\npacking q like p\nbehind p l.{layer}.mark needs embed\n"
                        "rename p d.{layer}.* further.{layer}.t.* behind\n"
                        "skip p l.{layer}.embed\n"
                        "embed\n stage first\n tie head\nhead\n stage last\n"
                        "l.{layer}.embed\n fallback embed\n"
                        "l.{layer}.mark\n shard 0\n in p further.{local_layer}.mark whole\n"
                        "l.{layer}.*\n shard 0\n in p d.{local_layer}.*\n";
    /* Stage 0 has layers 0 and 1, stage 1 layer 2 and the tensors after it. */
    banyan_layout *layout = layout_of(model, rules, "pp=2,packing=q", 0);
    CHECK_OK(banyan_layout_check(layout));
    assert_int_equal(banyan_layout_tensor_count(layout), 3);
    assert_true(layout_find_tensor(layout, "d.0.a") >= 0);
    assert_true(layout_find_tensor(layout, "d.1.a") >= 0);
    const banyan_piece *embed = banyan_layout_piece(layout, 0);
    assert_string_equal(embed->name, "embed");
    assert_int_equal(banyan_rank_set_size(&embed->replicas), 2);
    assert_int_equal(banyan_rank_set_find(&embed->replicas, 1), 1);
    banyan_layout_destroy(layout);
    layout = layout_of(model, rules, "pp=2,packing=q", 1);
    CHECK_OK(banyan_layout_check(layout));
    static const char *const held[] = {"embed", "head", "d.0.a", "further.0.t.a", "further.0.mark"};
    assert_int_equal(banyan_layout_tensor_count(layout), 5);
    for (size_t i = 0; i < 5; i++)
        CHECK(layout_find_tensor(layout, held[i]) >= 0, "%s", held[i]);
    banyan_layout_destroy(layout);
    EXPECT(model, rules, "tp=2,packing=p", 1, "further.0.t.a", 2, 3);
    EXPECT(model, rules, "tp=2,packing=p", 1, "further.0.mark", 0, 1);
    EXPECT(model, rules, "tp=2", 1, "l.3.mark", 1);
    layout = layout_of(model, rules, "", 0);
    for (size_t i = 0; i < banyan_layout_piece_count(layout); i++) {
        const banyan_piece *piece = banyan_layout_piece(layout, i);
        if (strcmp(piece->name, "l.3.embed") == 0)
            assert_string_equal(piece->fallback_name, "embed");
        else
            assert_null(piece->fallback_name);
    }
    banyan_layout_destroy(layout);
    banyan_model_destroy(model);
}

static void layers_behind_all_others_are_no_guess(void **state)
{
    (void)state;
    const char *rules = "packing p\nbehind p l.{layer}.mark needs embed\n"
                        "embed\n stage first\n tie head\nl.{layer}.*\n";
    standin made = standin_begin();
    standin_add(&made, "BF16", 2, 0, "l.0.mark");
    standin_add(&made, "BF16", 2, 0, "l.1.a");
    banyan_model *model = standin_load(&made);
    expect_refused(
        model, rules, "packing=p",
        "of the 2 layers from 0 on, 1 have a tensor \"l.{layer}.mark\", which none or all "
        "of them must have");
    banyan_model_destroy(model);
    made = standin_begin();
    standin_add(&made, "BF16", 2, 0, "embed");
    standin_add(&made, "BF16", 2, 0, "l.0.a");
    standin_add(&made, "BF16", 2, 0, "l.1.mark");
    model = standin_load(&made);
    expect_refused(model, rules, "pp=2,packing=p", "the last stage is to have it twice");
    banyan_model_destroy(model);
}

static void prefixes_are_taken_off_and_put_on(void **state)
{
    (void)state;
    standin made = standin_begin();
    standin_add(&made, "BF16", 2, 0, "model.text.a");
    standin_add(&made, "BF16", 2, 0, "model.text.b");
    banyan_model *model = standin_load(&made);
    const char *rules = "packing p\npacking q\nprefix model.text. is model. in p text.model.\n"
                        "model.a\n with model.b\n in p model.f block 0\n"
                        "model.b\n in p model.f block 1\n";
    EXPECT(model, rules, "packing=p", 0, "text.model.f", 0, 1, 0, 1);
    EXPECT(model, rules, "", 0, "model.text.a", 0, 1);
    EXPECT(model, rules, "packing=q", 0, "model.a", 0, 1);
    banyan_model_destroy(model);
}

static void facts_that_are_used_are_kept(void **state)
{
    (void)state;
    banyan_model *model = model_of(8, 1, "{\"hidden_size\": 8, \"num_attention_heads\": 4}");
    const char *rules =
        "default head_dim 99 when hidden_size = 9\n"
        "default head_dim hidden_size/num_attention_heads\nw\n shard 0\n heads head_dim\n";
    banyan_layout *layout = layout_of(model, rules, "tp=2", 0);
    CHECK_OK(banyan_layout_check(layout));
    assert_string_equal(facts_find(layout_facts(layout), "hidden_size"), "8");
    assert_null(facts_find(layout_facts(layout), "head_dim"));
    banyan_layout_destroy(layout);
    expect_refused(model, rules, "tp=2,head=4",
                   "heads have 4 elements by the spec's head=4, and 2 by config.json");
    banyan_model_destroy(model);
    model = model_of(8, 1, NULL);
    layout = layout_of(model, rules, "tp=2,head=4", 0);
    CHECK_OK(banyan_layout_check(layout));
    assert_string_equal(facts_find(layout_facts(layout), "head_dim"), "4");
    banyan_layout_destroy(layout);
    expect_refused(model, "packing p strict\nw\n", "packing=p",
                   "the rules have no place for it in the packing \"p\"");
    expect_refused(model, "w\n when model_type = x\n**\n", "",
                   "depends on the model's config.json (when model_type = x), and there is none");
    banyan_model_destroy(model);
    model = model_of(8, 1, "{\"model_type\": \"y\", \"head_dim\": \"x\"}");
    expect_refused(model, rules, "tp=2", "head_dim is \"x\" in config.json");
    EXPECT(model, "w\n unless model_type = x y\n shard 0\n**\n", "tp=2", 0, "w", 0, 1, 2, 3, 4, 5,
           6, 7);
    banyan_model_destroy(model);
}

static expr_result find_two(void *context, const char *name, int64_t *value, char *problem)
{
    (void)context;
    snprintf(problem, EXPR_PROBLEM_BYTES, "%s", name);
    *value = 2;
    return strcmp(name, "two") == 0 ? EXPR_OK : EXPR_UNKNOWN;
}

static void expressions(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        expr_result result;
        int64_t value;
        const char *problem;
    } cases[] = {
        {"7", EXPR_OK, 7, ""},
        {"two*3+4", EXPR_OK, 10, ""},
        {"3+two*4", EXPR_OK, 11, ""},
        {"(3+two)*4/10-2", EXPR_OK, 0, ""},
        {"3-two-1", EXPR_OK, 0, ""},
        {"three+two", EXPR_UNKNOWN, 0, "three"},
        {"7/two", EXPR_WRONG, 0, "7 / 2 is not an integer"},
        {"7/0", EXPR_WRONG, 0, "7 / 0 is not an integer"},
        {"two-3", EXPR_WRONG, 0, "2 - 3 is negative"},
        {"2147483647*2147483647*2", EXPR_WRONG, 0, "is too large"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char problem[EXPR_PROBLEM_BYTES];
        int64_t value = 0;
        assert_null(expr_check(cases[i].text));
        CHECK(expr_evaluate(cases[i].text, find_two, NULL, &value, problem) == cases[i].result,
              "%s", cases[i].text);
        CHECK(value == cases[i].value && strstr(problem, cases[i].problem), "%s: %s", cases[i].text,
              problem);
    }
    static const char *const wrong[] = {
        "",   "+",    "2+", "2 + 3", "(2",         "2)",
        "a(", "2**3", "#",  "-1",    "2147483648", "((((((((((((((((((1))))))))))))))))))"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK(expr_check(wrong[i]), "%s", wrong[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_a_fused_tensor_are_each_cut_by_itself),
        cmocka_unit_test(a_whole_part_is_held_by_every_rank),
        cmocka_unit_test(stacked_experts_are_distributed_cut_and_transposed),
        cmocka_unit_test(stacked_experts_become_tensors_of_their_own),
        cmocka_unit_test(halves_and_once),
        cmocka_unit_test(a_computed_tensor_is_left_alone_once_its_source_is_left_out),
        cmocka_unit_test(a_fused_tensor_lacks_no_part),
        cmocka_unit_test(skips_and_renames_are_of_one_packing),
        cmocka_unit_test(layers_behind_all_others_are_on_the_last_stage),
        cmocka_unit_test(layers_behind_all_others_are_no_guess),
        cmocka_unit_test(prefixes_are_taken_off_and_put_on),
        cmocka_unit_test(facts_that_are_used_are_kept),
        cmocka_unit_test(expressions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
