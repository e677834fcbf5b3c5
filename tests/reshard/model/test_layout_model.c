/* Layouts of models: together, the ranks of a side hold every element of every tensor, exactly as
 * often as the replica sets say. Each local tensor consists of pieces and padding. */
#include "reshard/elements.h"
#include "reshard/standin.h"
#include "support/text_file.h"

/* A piece of some rank's layout. */
struct holding {
    const banyan_piece *piece;
    int rank;
};

static int compare_boxes(const banyan_box *a, const banyan_box *b)
{
    for (int d = 0; d < a->ndim; d++) {
        if (a->start[d] != b->start[d])
            return a->start[d] < b->start[d] ? -1 : 1;
        if (a->extent[d] != b->extent[d])
            return a->extent[d] < b->extent[d] ? -1 : 1;
    }
    return 0;
}

static int by_name_and_box(const void *left, const void *right)
{
    const struct holding *a = left, *b = right;
    int order = strcmp(a->piece->name, b->piece->name);
    if (order == 0)
        order = compare_boxes(&a->piece->box, &b->piece->box);
    return order != 0 ? order : (a->rank > b->rank) - (a->rank < b->rank);
}

/* Local tensors are covered wholly: pieces and padding do not overlap (the layout's check) and sum
 * up to each tensor's elements. */
static void check_local_cover(const banyan_layout *layout)
{
    size_t tensors = banyan_layout_tensor_count(layout);
    uint64_t *left = calloc(tensors + 1, sizeof *left);
    for (size_t t = 0; t < tensors; t++) {
        const banyan_local_tensor *local = banyan_layout_tensor(layout, t);
        left[t] = (uint64_t)shape_elems(local->ndim, local->shape);
    }
    for (size_t p = 0; p < banyan_layout_piece_count(layout); p++) {
        const banyan_piece *piece = banyan_layout_piece(layout, p);
        left[piece->tensor] -= banyan_box_elems(&piece->box);
    }
    for (size_t p = 0; p < banyan_layout_padding_count(layout); p++) {
        int tensor;
        const banyan_box *box = banyan_layout_padding(layout, p, &tensor);
        left[tensor] -= banyan_box_elems(box);
    }
    for (size_t t = 0; t < tensors; t++)
        CHECK(left[t] == 0, "%s: %llu elements are nobody's", banyan_layout_tensor(layout, t)->name,
              (unsigned long long)left[t]);
    free(left);
}

/* The ranks [first, end) of `held` hold one box: exactly those that each one's replica set
 * names. */
static void check_replicas(const struct holding *held, size_t count, int rank_offset)
{
    const banyan_rank_set *set = &held[0].piece->replicas;
    CHECK(banyan_rank_set_size(set) == (int64_t)count, "%s: %zu ranks hold a box, its set has %lld",
          held[0].piece->name, count, (long long)banyan_rank_set_size(set));
    for (size_t i = 0; i < count; i++) {
        CHECK(i == 0 || held[i].rank != held[i - 1].rank, "%s: a box twice at rank %d",
              held[i].piece->name, held[i].rank);
        CHECK(memcmp(set, &held[i].piece->replicas, sizeof *set) == 0, "%s: ranks %d and %d",
              held[i].piece->name, held[0].rank, held[i].rank);
        CHECK(banyan_rank_set_find(set, held[i].rank + rank_offset) >= 0, "%s: rank %d",
              held[i].piece->name, held[i].rank);
    }
}

/* The boxes of one tensor: different ones are disjoint (checked through a layout) and together
 * form the tensor. */
static void check_tensor_cover(const struct holding *held, size_t count, int rank_offset)
{
    const banyan_piece *first = held[0].piece;
    banyan_layout *boxes;
    CHECK_OK(banyan_layout_create(&boxes));
    banyan_layout_add_tensor(boxes, first->name, BANYAN_U8, first->ndim, first->shape);
    uint64_t elems = 0;
    for (size_t i = 0; i < count;) {
        size_t end = i + 1;
        while (end < count && compare_boxes(&held[i].piece->box, &held[end].piece->box) == 0)
            end++;
        check_replicas(held + i, end - i, rank_offset);
        banyan_piece whole = *held[i].piece;
        whole.tensor = 0;
        memcpy(whole.local_start, whole.box.start, sizeof whole.local_start);
        for (int d = 0; d < whole.ndim; d++)
            whole.dim_map[d] = d;
        banyan_layout_add_piece(boxes, &whole);
        elems += banyan_box_elems(&whole.box);
        i = end;
    }
    CHECK_OK(banyan_layout_check_as(boxes, BANYAN_DESTINATION));
    CHECK(elems == (uint64_t)shape_elems(first->ndim, first->shape), "%s is held in part only",
          first->name);
    banyan_layout_destroy(boxes);
}

static void check_side(const banyan_model *model, const banyan_rules *rules, const char *text)
{
    enum { OFFSET = 5 };
    banyan_spec spec;
    CHECK_OK(banyan_spec_parse(text, &spec));
    int ranks = banyan_spec_world_size(&spec);
    banyan_layout **layouts = calloc((size_t)ranks, sizeof *layouts);
    size_t pieces = 0, tensors = 0, next = 0;
    for (int rank = 0; rank < ranks; rank++) {
        CHECK_OK(banyan_layout_create(&layouts[rank]));
        banyan_layout_add_model(layouts[rank], model, rules, &spec, rank, OFFSET);
        CHECK_OK(banyan_layout_check_as(layouts[rank], BANYAN_DESTINATION));
        check_local_cover(layouts[rank]);
        pieces += banyan_layout_piece_count(layouts[rank]);
    }
    struct holding *held = calloc(pieces + 1, sizeof *held);
    for (int rank = 0; rank < ranks; rank++) {
        for (size_t p = 0; p < banyan_layout_piece_count(layouts[rank]); p++)
            held[next++] = (struct holding){banyan_layout_piece(layouts[rank], p), rank};
    }
    qsort(held, pieces, sizeof *held, by_name_and_box);
    for (size_t i = 0; i < pieces; tensors++) {
        size_t end = i + 1;
        while (end < pieces && strcmp(held[i].piece->name, held[end].piece->name) == 0)
            end++;
        check_tensor_cover(held + i, end - i, OFFSET);
        i = end;
    }
    CHECK(tensors == banyan_model_tensor_count(model), "%zu of %zu tensors", tensors,
          banyan_model_tensor_count(model));
    free(held);
    for (int rank = 0; rank < ranks; rank++)
        banyan_layout_destroy(layouts[rank]);
    free(layouts);
}

/* The last two have no latent attention. */
static const char *const packings[] = {"hf", "vllm", "megatron", "megatron_local",
                                       "megatron_grouped"};
#define LATENT_PACKINGS 3

/* `more` follows every spec; in the first `packing_count` packings. */
static void check_specs_in(banyan_model *model, const char *const *specs, size_t count,
                           const char *more, size_t packing_count)
{
    banyan_rules *rules;
    CHECK_OK(banyan_rules_load(NULL, &rules));
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < packing_count; k++) {
            char text[128];
            snprintf(text, sizeof text, "%s,packing=%s%s", specs[i], packings[k], more);
            check_side(model, rules, text);
        }
    }
    banyan_rules_destroy(rules);
    banyan_model_destroy(model);
}

static void check_specs_with(banyan_model *model, const char *const *specs, size_t count,
                             const char *more)
{
    check_specs_in(model, specs, count, more, sizeof packings / sizeof *packings);
}

static void check_specs(banyan_model *model, const char *const *specs, size_t count)
{
    check_specs_with(model, specs, count, "");
}

static const char *const dense_specs[] = {
    "tp=1",        "tp=2",
    "tp=8",        "pp=2",
    "pp=3",        "tp=4,pp=2,dp=2",
    "fsdp=3",      "fsdp=7,dp=2",
    "tp=2,fsdp=3", "tp=8,pp=3,dp=2,fsdp=2",
    "pp=4,dp=2",   "tp=4,vocab_multiple=100",
};
static const char *const expert_specs[] = {
    "tp=1",      "tp=4,pp=2",   "tp=2,dp=2,ep=4",        "tp=8,dp=2,ep=4,etp=4",
    "dp=8,ep=8", "fsdp=4,ep=2", "fsdp=6,dp=2,tp=2,ep=4", "tp=2,pp=3,dp=4,ep=2,etp=2,fsdp=2",
};

#define COUNT(list) (sizeof(list) / sizeof *(list))

static void a_dense_model_with_tied_embeddings_is_held_wholly(void **state)
{
    (void)state;
    const standin_shape shape = {.layers = 5,
                                 .hidden = 6,
                                 .heads = 8,
                                 .kv_heads = 4,
                                 .head_rows = 2,
                                 .intermediate = 24,
                                 .vocab = 104,
                                 .norms = true,
                                 .tied = true};
    check_specs(standin_model(&shape), dense_specs, COUNT(dense_specs));
}

static void a_dense_model_without_norms_is_held_wholly(void **state)
{
    (void)state;
    const standin_shape shape = {.layers = 4,
                                 .hidden = 3,
                                 .heads = 8,
                                 .kv_heads = 2,
                                 .head_rows = 6,
                                 .intermediate = 16,
                                 .vocab = 112};
    check_specs_with(standin_model(&shape), dense_specs, COUNT(dense_specs), ",head=6");
}

static void expect_refused(banyan_model *model, const char *rule_text, const char *spec_text,
                           const char *part)
{
    banyan_rules *rules;
    text_file file = text_file_of(rule_text ? rule_text : "");
    CHECK_OK(banyan_rules_load(rule_text ? file.path : NULL, &rules));
    text_file_remove(&file);
    banyan_spec spec;
    CHECK_OK(banyan_spec_parse(spec_text, &spec));
    banyan_layout *layout;
    CHECK_OK(banyan_layout_create(&layout));
    banyan_layout_add_model(layout, model, rules, &spec, 0, 0);
    CHECK_FAILS(banyan_layout_check(layout), BANYAN_ERR_INVALID, part);
    banyan_layout_destroy(layout);
    banyan_rules_destroy(rules);
}

/* Nothing is assumed about heads, however wide the model is. */
static void heads_of_unknown_size_are_refused_until_the_spec_has_it(void **state)
{
    (void)state;
    standin_shape shape = {.layers = 1,
                           .hidden = 4095,
                           .heads = 4,
                           .kv_heads = 2,
                           .head_rows = 64,
                           .intermediate = 8,
                           .vocab = 8};
    banyan_model *model = standin_model(&shape);
    expect_refused(model, NULL, "tp=2",
                   "the size of its heads is unknown: give head=N in the spec, or a config.json "
                   "with head_dim (or hidden_size and num_attention_heads)");
    expect_refused(model, NULL, "packing=megatron", "the size of its heads is unknown");
    expect_refused(model, NULL, "tp=2,head=48", "256 elements do not divide into heads of 48");
    static const char *const taken[] = {"tp=1", "tp=2,head=64", "tp=4,head=64", "tp=1,head=64"};
    check_specs_with(model, taken + 1, 3, "");
    model = standin_model(&shape);
    banyan_rules *rules;
    CHECK_OK(banyan_rules_load(NULL, &rules));
    check_side(model, rules, taken[0]);
    banyan_rules_destroy(rules);
    banyan_model_destroy(model);
    shape.norms = true;
    model = standin_model(&shape);
    expect_refused(
        model, NULL, "tp=2,head=32",
        "heads are 32 in the spec, and 64 in \"model.layers.0.self_attn.q_norm.weight\"");
    banyan_model_destroy(model);
    shape.norms = false;
    shape.hidden = 4096;
    shape.head_rows = 128;
    model = standin_model(&shape);
    expect_refused(model, NULL, "tp=2", "the size of its heads is unknown");
    check_specs_with(model, &taken[0], 1, ",head=128");
}

static void a_model_of_experts_is_held_wholly(void **state)
{
    (void)state;
    const standin_shape shape = {.layers = 3,
                                 .hidden = 4,
                                 .heads = 8,
                                 .kv_heads = 2,
                                 .head_rows = 2,
                                 .intermediate = 8,
                                 .vocab = 64,
                                 .experts = 8,
                                 .norms = true};
    check_specs(standin_model(&shape), expert_specs, COUNT(expert_specs));
}

static void a_model_with_latent_attention_and_block_scales_is_held_wholly(void **state)
{
    (void)state;
    static const char *const specs[] = {
        "tp=1",
        "tp=2",
        "tp=4,ep=4",
        "tp=2,pp=2,dp=2,ep=4",
        "fsdp=3",
        "fsdp=2,ep=2",
        "tp=2,dp=2,ep=2,etp=2",
    };
    check_specs_in(standin_deepseek(3, 4, 8), specs, COUNT(specs), "", LATENT_PACKINGS);
}

/* A sanitizer's shadow memory makes the large models slow without testing more. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MODELS_TO_CHECK 2
#else
#define MODELS_TO_CHECK 5
#endif

static void add_config(banyan_model *model, const char *config)
{
    if (!config)
        return;
    text_file file = text_file_of(config);
    CHECK_OK(banyan_model_add_config(model, file.path));
    text_file_remove(&file);
}

/* From the files beside the project, each with a few small worlds. */
static void the_public_models_are_held_wholly(void **state)
{
    (void)state;
    static const struct {
        const char *file, *specs[4], *config; /* config NULL: none */
    } models[5] = {
        {"qwen3-0.6b",
         {"tp=2,pp=2,packing=megatron", "tp=4,packing=vllm", "fsdp=8", "tp=16,packing=vllm"},
         NULL},
        {"llama-3.1-8b",
         {"tp=2,pp=3,packing=megatron,head=128", "tp=8,packing=vllm,head=128",
          "fsdp=3,tp=2,head=128", "tp=16,packing=megatron,head=128"},
         NULL},
        {"qwen3-30b-a3b",
         {"tp=2,pp=2,dp=2,ep=4,packing=megatron", "tp=4,packing=vllm", "tp=8,ep=8,packing=vllm"},
         NULL},
        {"qwen3-235b-a22b",
         {"tp=2,pp=3,dp=2,ep=4,packing=megatron_grouped", "tp=8,ep=8,packing=vllm"},
         NULL},
        {"deepseek-v3",
         {"tp=2,pp=3,ep=2,packing=megatron", "tp=8,ep=8,packing=vllm"},
         "{\"model_type\": \"deepseek_v3\", \"topk_method\": \"noaux_tc\", \"v_head_dim\": 128, "
         "\"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64}"},
    };
    if (access(BANYAN_SOURCE_DIR "/../shared/models", R_OK) != 0) {
        printf("skipped: no models beside the project\n");
        skip();
    }
    banyan_rules *rules;
    CHECK_OK(banyan_rules_load(NULL, &rules));
    for (size_t m = 0; m < MODELS_TO_CHECK; m++) {
        char path[512];
        snprintf(path, sizeof path, "%s/../shared/models/%s.json", BANYAN_SOURCE_DIR,
                 models[m].file);
        banyan_model *model;
        CHECK_OK(banyan_model_load(path, &model));
        add_config(model, models[m].config);
        for (int i = 0; i < 4 && models[m].specs[i]; i++) {
            printf("%s %s\n", models[m].file, models[m].specs[i]);
            check_side(model, rules, models[m].specs[i]);
        }
        banyan_model_destroy(model);
    }
    banyan_rules_destroy(rules);
}

static void uneven_sizes_are_refused_with_tensor_rule_and_numbers(void **state)
{
    (void)state;
    standin_shape shape = {.layers = 2,
                           .hidden = 4,
                           .heads = 6,
                           .kv_heads = 2,
                           .head_rows = 3,
                           .intermediate = 9,
                           .vocab = 64,
                           .experts = 6,
                           .norms = true};
    banyan_model *model = standin_model(&shape);
    expect_refused(model, NULL, "tp=4",
                   "tensor \"model.layers.0.self_attn.q_proj.weight\" (rule "
                   "\"model.layers.{layer}.self_attn.q_proj.*\", builtin:attention.rules:");
    expect_refused(model, NULL, "tp=4", "6 heads of 3 do not divide over 4 ranks");
    expect_refused(model, NULL, "tp=2",
                   "experts.0.gate_proj.weight\" (rule \"model.layers.{layer}.");
    expect_refused(model, NULL, "tp=2", "9 elements along dimension 0 do not divide over 2 ranks");
    expect_refused(model, NULL, "dp=4,ep=4", "6 experts do not divide over ep=4");
    expect_refused(model, NULL, "tp=3,etp=1,packing=hf",
                   "a vocabulary of 64 does not divide over 3 ranks");
    expect_refused(model, NULL, "packing=sglang",
                   "no packing \"sglang\": there are hf, vllm, vllm_mtp, megatron_local, "
                   "megatron, megatron_grouped");
    expect_refused(model, "model.layers.{layer}.**\n", "tp=2",
                   "no rule matches the names of 3 tensors: \"model.embed_tokens.weight\" (the "
                   "nearest rule is \"model.layers.{layer}.**\"");
    expect_refused(model, "**\n    shard 1\n", "tp=2", "\"model.layers.0.input_layernorm.weight\"");
    expect_refused(model, "**\n    shard 1\n", "tp=2", "dimension 1 of 1 is to be sharded");
    expect_refused(model, "**\n    shard 0\n    heads 5\n", "tp=2",
                   "64 elements do not divide into heads of 5");
    banyan_model_destroy(model);

    model = standin_deepseek(2, 2, 4);
    expect_refused(model, NULL, "tp=4",
                   "a rank's elements 0:192 along dimension 0 cut blocks of 128");
    banyan_model_destroy(model);
}

static void parts_that_do_not_fit_together_are_refused(void **state)
{
    (void)state;
    standin made = standin_begin();
    standin_add(&made, "BF16", 4, 4, "a.0");
    standin_add(&made, "BF16", 4, 6, "a.1");
    standin_add(&made, "F32", 4, 4, "a.2");
    standin_add(&made, "BF16", 4, 4, "e.0");
    standin_add(&made, "BF16", 4, 4, "e.2");
    banyan_model *model = standin_load(&made);
    const char *rest = "**\n";
    char text[256];
    snprintf(text, sizeof text, "packing p\na.0\n in p f block 0\na.1\n in p f block 1\n%s", rest);
    expect_refused(model, text, "packing=p", "\"a.0\" and \"a.1\" differ in type or shape");
    snprintf(text, sizeof text, "packing p\na.0\n in p f block 0\na.2\n in p f block 1\n%s", rest);
    expect_refused(model, text, "packing=p", "\"a.0\" and \"a.2\" differ in type or shape");
    snprintf(text, sizeof text, "packing p\na.0\n in p f block 1\na.2\n in p f block 1\n%s", rest);
    expect_refused(model, text, "packing=p", "have the same place in it");
    snprintf(text, sizeof text, "packing p\na.0\n in p f\na.2\n in p f\n%s", rest);
    expect_refused(model, text, "packing=p", "\"a.0\" and \"a.2\"");
    snprintf(text, sizeof text, "packing p\na.*\n replicate\ne.{expert}\n in p s stack\n%s", rest);
    expect_refused(model, text, "packing=p", "it needs a tensor \"e.1\" beside it");
    snprintf(text, sizeof text, "packing p\na.*\n replicate\n**e.{expert}\n in p s stack\n%s",
             rest);
    expect_refused(model, text, "packing=p", "local tensor \"s\"");
    expect_refused(model, text, "packing=p", "expert 1 is missing in the model");
    snprintf(text, sizeof text, "packing p\na.0\n in p a.1\n%s", rest);
    expect_refused(model, text, "packing=p", "form the local tensor \"a.1\"");
    banyan_model_destroy(model);
}

static void a_spec_or_rank_that_cannot_be_is_refused(void **state)
{
    (void)state;
    const standin_shape shape = {.layers = 1,
                                 .hidden = 4,
                                 .heads = 2,
                                 .kv_heads = 2,
                                 .head_rows = 128,
                                 .intermediate = 4,
                                 .vocab = 8};
    banyan_model *model = standin_model(&shape);
    banyan_rules *rules;
    CHECK_OK(banyan_rules_load(NULL, &rules));
    static const struct {
        banyan_spec spec;
        int rank, offset;
        const char *part;
    } cases[] = {
        {{2, 1, 1, 1, 1, 1, "hf", 0, 0}, 2, 0, "rank 2 (with offset 0) of a spec of 2 ranks"},
        {{2, 1, 1, 1, 1, 1, "hf", 0, 0}, -1, 0, "rank -1"},
        {{2, 1, 1, 1, 1, 1, "hf", 0, 0}, 0, INT32_MAX, "with offset 2147483647"},
        {{2, 0, 1, 1, 1, 1, "hf", 0, 0}, 0, 0, "pp=0"},
        {{2, 1, 1, 1, 3, 1, "hf", 0, 0}, 0, 0, "do not divide by etp=1 × ep=3"},
        {{2, 1, 1, 1, 1, 1, "hf", 0, -1}, 0, 0, "heads of -1 elements"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        banyan_layout *layout;
        CHECK_OK(banyan_layout_create(&layout));
        banyan_layout_add_model(layout, model, rules, &cases[i].spec, cases[i].rank,
                                cases[i].offset);
        CHECK_FAILS(banyan_layout_check(layout), BANYAN_ERR_INVALID, cases[i].part);
        banyan_layout_destroy(layout);
    }
    banyan_rules_destroy(rules);
    banyan_model_destroy(model);
}

static uint64_t elems_of_half(const banyan_model *model, const banyan_rules *rules)
{
    banyan_layout *layout;
    banyan_spec spec;
    uint64_t elems = 0;
    CHECK_OK(banyan_spec_parse("tp=2,head=128", &spec));
    CHECK_OK(banyan_layout_create(&layout));
    banyan_layout_add_model(layout, model, rules, &spec, 1, 0);
    CHECK_OK(banyan_layout_check_as(layout, BANYAN_DESTINATION));
    for (size_t i = 0; i < banyan_layout_tensor_count(layout); i++) {
        const banyan_local_tensor *tensor = banyan_layout_tensor(layout, i);
        uint64_t whole = 1;
        for (int d = 0; d < tensor->ndim; d++)
            whole *= (uint64_t)tensor->shape[d];
        elems += whole;
    }
    banyan_layout_destroy(layout);
    return elems;
}

/* A model keeps the first rules' statements about its tensors. */
static void later_rules_apply_too(void **state)
{
    (void)state;
    const standin_shape shape = {.layers = 2,
                                 .hidden = 4096,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_rows = 128,
                                 .intermediate = 16,
                                 .vocab = 112};
    banyan_model *model = standin_model(&shape);
    banyan_rules *builtin, *whole;
    text_file file = text_file_of("**\n    replicate\n");
    CHECK_OK(banyan_rules_load(NULL, &builtin));
    CHECK_OK(banyan_rules_load(file.path, &whole));
    text_file_remove(&file);
    uint64_t all = 0;
    for (size_t i = 0; i < banyan_model_tensor_count(model); i++) {
        const banyan_local_tensor *tensor = banyan_model_tensor(model, i);
        uint64_t elems = 1;
        for (int d = 0; d < tensor->ndim; d++)
            elems *= (uint64_t)tensor->shape[d];
        all += elems;
    }
    uint64_t half = elems_of_half(model, builtin);
    CHECK(half < all && half >= all / 2);
    for (int turn = 0; turn < 3; turn++) {
        CHECK(elems_of_half(model, whole) == all);
        CHECK(elems_of_half(model, builtin) == half);
        /* The model's cached results belong to rules that were destroyed; new ones may have the
         * same address. */
        banyan_rules_destroy(builtin);
        CHECK_OK(banyan_rules_load(NULL, &builtin));
    }
    banyan_rules_destroy(builtin);
    banyan_rules_destroy(whole);
    banyan_model_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dense_model_with_tied_embeddings_is_held_wholly),
        cmocka_unit_test(a_dense_model_without_norms_is_held_wholly),
        cmocka_unit_test(heads_of_unknown_size_are_refused_until_the_spec_has_it),
        cmocka_unit_test(a_model_of_experts_is_held_wholly),
        cmocka_unit_test(a_model_with_latent_attention_and_block_scales_is_held_wholly),
        cmocka_unit_test(the_public_models_are_held_wholly),
        cmocka_unit_test(uneven_sizes_are_refused_with_tensor_rule_and_numbers),
        cmocka_unit_test(parts_that_do_not_fit_together_are_refused),
        cmocka_unit_test(a_spec_or_rank_that_cannot_be_is_refused),
        cmocka_unit_test(later_rules_apply_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
