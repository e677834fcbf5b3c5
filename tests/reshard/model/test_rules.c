/* Rule files: patterns match and clauses apply as documented, and mistakes are reported with their
 * line. */
#include "reshard/standin.h"
#include "support/text_file.h"

#include "reshard/model/model.h"
#include "reshard/rules/expr.h"
#include "reshard/rules/rules.h"

static banyan_status load_text(const char *text, banyan_rules **rules)
{
    text_file file = text_file_of(text);
    banyan_status status = banyan_rules_load(file.path, rules);
    text_file_remove(&file);
    return status;
}

/* Match a name in a model that has `other`, and its config.json. */
static bool match_beside(const banyan_rules *rules, const char *name, const char *other,
                         const char *config, rule_match *match)
{
    standin made = standin_begin();
    standin_add(&made, "BF16", 4, 4, "%s", other);
    if (config)
        standin_config(&made, config);
    banyan_model *model = standin_load(&made);
    const rule_subject subject = {.model = model};
    bool found = rules_match(rules, &subject, name, match);
    banyan_model_destroy(model);
    return found;
}

static bool match_alone(const banyan_rules *rules, const char *name, rule_match *match)
{
    return match_beside(rules, name, "x", NULL, match);
}

static bool matches(const char *pattern, const char *name, glob_captures *captures)
{
    glob compiled;
    assert_null(glob_compile(pattern, &compiled));
    return glob_match(&compiled, name, strlen(name), captures);
}

static void patterns_match_names(void **state)
{
    (void)state;
    glob_captures found;
    assert_true(matches("lm_head.weight", "lm_head.weight", &found));
    assert_int_equal(found.layer, -1);
    assert_int_equal(found.expert, -1);
    assert_false(matches("lm_head.weight", "lm_head.weight2", &found));
    assert_false(matches("lm_head.weight", "lm_head", &found));
    assert_false(matches("lm_head.weight", "", &found));

    assert_true(matches("l.{layer}.e{expert}.w", "l.12.e7.w", &found));
    assert_int_equal(found.layer, 12);
    assert_int_equal(found.expert, 7);
    assert_false(matches("l.{layer}.w", "l..w", &found));
    assert_false(matches("l.{layer}.w", "l.x.w", &found));
    assert_false(matches("l.{layer}.w", "l.1234567890.w", &found));

    assert_true(matches("a.*.w", "a.q_proj.w", &found));
    assert_int_equal(found.star_count, 1);
    assert_int_equal(found.star_bytes[0], 6);
    assert_memory_equal(found.stars[0], "q_proj", 6);
    assert_false(matches("a.*.w", "a.b.c.w", &found));
    assert_true(matches("a.**.w", "a.b.c.w", &found));
    assert_true(matches("**", "anything.at.all", &found));
    assert_true(matches("*_proj.*", "q_b_proj.bias", &found));
    assert_int_equal(found.star_bytes[0], 3);
    assert_int_equal(found.star_bytes[1], 4);
    /* A star gives characters back if the rest of the pattern needs them. */
    assert_true(matches("*b.w", "abb.w", &found));
    assert_int_equal(found.star_bytes[0], 2);
    assert_int_equal(found.star_count, 1);
}

static void templates_are_filled_in(void **state)
{
    (void)state;
    glob compiled;
    glob_captures found;
    const glob_local local = {2, 3};
    char name[64];
    const char *pattern = "l.{layer}.e.{expert}.*.*";
    assert_null(glob_compile(pattern, &compiled));
    assert_true(glob_match(&compiled, "l.12.e.40.up.weight", 19, &found));
    const char *text = "d.{local_layer}.{layer}.x{local_expert}.{expert}.*-*";
    assert_null(glob_check_template(text, &compiled, false));
    assert_true(glob_expand(text, &found, &local, name, sizeof name));
    assert_string_equal(name, "d.2.12.x3.40.up-weight");
    assert_false(glob_expand(text, &found, &local, name, 22));
    assert_true(glob_expand(text, &found, &local, name, 23));
    assert_false(glob_expand(text, &found, &local, name, 3));
    assert_non_null(glob_check_template("*.*.*", &compiled, false));
    assert_non_null(glob_check_template("{rank}", &compiled, false));
    assert_null(glob_compile("l.{layer}", &compiled));
    assert_non_null(glob_check_template("{expert}", &compiled, false));
    assert_null(glob_check_template("{local_expert}", &compiled, true));
    assert_non_null(glob_check_template("*", &compiled, false));
}

static void clauses_belong_to_all_patterns_above_them(void **state)
{
    (void)state;
    banyan_rules *rules;
    CHECK_OK(load_text("# comment\n"
                       "packing mine vocab 32 per_tp\n"
                       "packing yours like mine\n"
                       "a.{layer}.*   # another\n"
                       "b.{layer}.*\n"
                       "\tshard 0\r\n"
                       "    heads 64 from n.{layer} shared\n"
                       "    scale _scale 16\n"
                       "    in mine c.{layer}.* group 1 transpose\n"
                       "\n"
                       "    stage last\n"
                       "**\n"
                       "    buffer\n",
                       &rules));
    assert_int_equal(rules->rules.count, 3);
    for (int i = 0; i < 2; i++) {
        const model_rule *rule = &rules->rules.data[i];
        assert_int_equal(rule->line, 4 + i);
        assert_int_equal(rule->shard_dim, 0);
        assert_string_equal(rule->heads, "64");
        assert_string_equal(rule->head_source, "n.{layer}");
        assert_true(rule->heads_shared);
        assert_int_equal(rule->stage, STAGE_LAST);
        const rule_match match = {.rule = rule};
        const rule_packed *packed = NULL;
        assert_int_equal(rule_find_packed(rules, NULL, &match, "yours", &packed, NULL), RULE_YES);
        assert_int_equal(packed->slot, 1);
        assert_true(packed->by_group && packed->transposed && !packed->stacked);
        assert_int_equal(rule_find_packed(rules, NULL, &match, "hf", &packed, NULL), RULE_NO);
    }
    rule_match match;
    assert_true(match_alone(rules, "b.3.w_scale", &match));
    assert_true(match.is_scale);
    assert_int_equal(match.captures.layer, 3);
    assert_int_equal(match.captures.star_bytes[0], 1);
    assert_true(match_alone(rules, "b.3.w", &match));
    assert_false(match.is_scale);
    assert_true(match_alone(rules, "c", &match));
    assert_true(match.rule->is_buffer);
    assert_int_equal(match.rule->shard_dim, -1);

    rule_packing packing;
    CHECK_OK(rules_find_packing(rules, "yours", &packing));
    assert_int_equal(packing.vocab_multiple, 32);
    assert_true(packing.vocab_per_tp);
    CHECK_OK(rules_find_packing(rules, "hf", &packing));
    assert_int_equal(packing.vocab_multiple, 0);
    CHECK_FAILS(rules_find_packing(rules, "his", &packing), BANYAN_ERR_INVALID,
                "no packing \"his\": there are hf, mine, yours");
    banyan_rules_destroy(rules);
    banyan_rules_destroy(NULL);
}

static void expect_refused(const char *text, const char *part)
{
    banyan_rules *rules = NULL;
    CHECK_FAILS(load_text(text, &rules), BANYAN_ERR_FORMAT, part);
    CHECK(strstr(banyan_last_error(), "/tmp/banyan_text_"), "%s", banyan_last_error());
    assert_null(rules);
}

static void mistakes_are_reported_with_their_line(void **state)
{
    (void)state;
    expect_refused("  shard 0\n", ":1: \"shard\" is a clause without a pattern");
    expect_refused("a\n\n  cut 0\n", ":3: \"cut\" is not a clause");
    expect_refused("a b\n", ":1: \"b\" is not expected here");
    expect_refused("a{rank}\n", "has a brace that is neither {layer} nor {expert}");
    expect_refused("a{layer}{layer}\n", "twice");
    expect_refused("*.*.*.*.*\n", "too many stars");
    expect_refused("*x*x*x*x{layer}x{expert}xxx*\n", "too many");
    expect_refused("a\n shard\n", ":2: \"shard\" should be followed by a number");
    expect_refused("a\n shard x\n", ":2: \"x\" is not a number from 0 to 7");
    expect_refused("a\n shard 8\n", ":2: \"8\" is not a number from 0 to 7");
    expect_refused("a\n shard -1\n", ":2: \"-1\" is not a number");
    expect_refused("a\n shard 0 1\n", ":2: \"1\" is not expected here");
    expect_refused("a\n shard 0\n heads 4+\n", ":3: \"4+\" is not an expression");
    expect_refused("a\n shard 0\n heads (4\n", ":3: \"(4\" lacks a closing parenthesis");
    expect_refused("a\n shard 0\n heads 4 wide 5\n", ":3: \"wide\" is none of count, from, shared");
    expect_refused("a\n shard 0\n heads\n", ":3: \"heads\" should be followed by a size");
    expect_refused("a\n shard 0\n heads 4 from b.{layer}\n",
                   "has a {layer} or {expert} that the pattern has not");
    expect_refused("a\n heads 4\n", ":1: the rule \"a\" has vocab, heads or parts, but no shard");
    expect_refused("a\n shard 0\n vocab\n heads 4\n", "has vocab, and heads, parts or a scale");
    expect_refused("a\n shard 0\n heads 4\n part 8\n", "has parts, and heads of its own");
    expect_refused("a\n stage middle\n", ":2: \"middle\" should be stage all, first or last");
    expect_refused("a\n stage\n", ":2: \"stage\" should be stage");
    expect_refused("a\n scale x\n", ":2: \"x\" should be followed by a number");
    expect_refused("a\n in p\n", ":2: \"p\" should be followed by a name");
    expect_refused("a\n in p b bloc 0\n", ":2: \"bloc\" is none of block, group, stack");
    expect_refused("a\n in p b *\n", "is none of");
    expect_refused("a\n in p b because it is\n",
                   ":2: \"because\" is for tensors without a place: in PACKING none");
    expect_refused("a\n in p none with c because\n",
                   ":2: \"because\" should be followed by a reason");
    char reason[600] = "a\n in p none because ";
    memset(reason + strlen(reason), 'x', 512);
    expect_refused(reason, ":2: \"because\" is followed by more than 511 characters");
    expect_refused("a\n in p *\n", "has more stars than the pattern");
    expect_refused("a\n in p b stack\n", "stacks a tensor without {expert}");
    expect_refused("a\n experts 0\n in p b\n",
                   "has experts in a dimension: give in stack, or {expert} or {local_expert}");
    expect_refused("a\n experts 0\n in p b.{expert} stack\n",
                   "has both stack and a tensor for each expert");
    expect_refused("a\n in p b.{expert}\n", "has a {layer} or {expert} that the pattern has not");
    expect_refused("a\n shard 0\n in p b halves\n", "halves a tensor without heads and parts");
    expect_refused("a\n shard 0\n in p b group 0\n", "fuses a tensor without heads by groups");
    expect_refused("a\n shard 1\n in p b block 0\n", "along a dimension other than its first");
    expect_refused("a\n shard 0\n part 2\n part 2\n in p b whole\n",
                   "has whole for a tensor with parts");
    expect_refused("a\n fallback\n", ":2: \"fallback\" should be followed by a name");
    expect_refused("behind p\n", ":1: \"p\" should be followed by a name");
    expect_refused("behind p l.mark\n", ":1: \"l.mark\" has no {layer}");
    expect_refused("behind p l.{layer}.mark embed\n", ":1: \"embed\" should be needs");
    expect_refused("behind p l.{layer}.mark needs embed head\n", ":1: \"head\" is not expected");
    expect_refused("packing p vocab x\n", ":1: \"x\" is not a number");
    expect_refused("packing p like q\n", ":1: \"q\" is not a packing that is described above");
    expect_refused("packing p\npacking p\n", ":2: \"p\" is a packing that is already described");
    expect_refused("packing p size 3\n",
                   ":1: \"size\" is none of like, vocab, per_tp, strict, release");
    expect_refused("packing\n", ":1: \"packing\" should be followed by a name");
    expect_refused("a\n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 "
                   "28 29 30 31 32\n",
                   "is one word too many");
    banyan_rules *rules;
    CHECK_FAILS(banyan_rules_load("/no/such/rules", &rules), BANYAN_ERR_NOT_FOUND,
                "/no/such/rules");
}

static void a_binary_is_no_rule_file(void **state)
{
    (void)state;
    text_file file = text_file_of_bytes("a\n\0b\n", 5);
    banyan_rules *rules;
    CHECK_FAILS(banyan_rules_load(file.path, &rules), BANYAN_ERR_FORMAT, "a zero byte at 2");
    text_file_remove(&file);
}

static void the_built_in_rules_read_well(void **state)
{
    (void)state;
    banyan_rules *rules;
    CHECK_OK(banyan_rules_load(NULL, &rules));
    rule_match match;
    assert_true(
        match_alone(rules, "model.layers.5.mlp.experts.77.up_proj.weight_scale_inv", &match));
    assert_true(match.is_scale);
    assert_int_equal(match.captures.expert, 77);
    assert_false(match_alone(rules, "vision.patch_embed.weight", &match));
    banyan_rules_destroy(rules);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns_match_names),
        cmocka_unit_test(templates_are_filled_in),
        cmocka_unit_test(clauses_belong_to_all_patterns_above_them),
        cmocka_unit_test(mistakes_are_reported_with_their_line),
        cmocka_unit_test(a_binary_is_no_rule_file),
        cmocka_unit_test(the_built_in_rules_read_well),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
