/* Packings, element by element: the contents of each engine's local tensors, by the formulas of
 * the engines' own loaders. */
#include "reshard/elements.h"
#include "reshard/standin.h"

enum { HEADS = 8, KV_HEADS = 4, HEAD_ROWS = 3, HIDDEN = 5, INTER = 24, VOCAB = 70, EXPERTS = 4 };

static banyan_model *small_model(int experts)
{
    const standin_shape shape = {.layers = 2,
                                 .hidden = HIDDEN,
                                 .heads = HEADS,
                                 .kv_heads = KV_HEADS,
                                 .head_rows = HEAD_ROWS,
                                 .intermediate = INTER,
                                 .vocab = VOCAB,
                                 .experts = experts,
                                 .norms = true,
                                 .tied = true};
    return standin_model(&shape);
}

static banyan_layout *layout_of(const banyan_model *model, const char *text, int rank)
{
    banyan_rules *rules;
    banyan_spec spec;
    banyan_layout *layout;
    CHECK_OK(banyan_rules_load(NULL, &rules));
    CHECK_OK(banyan_spec_parse(text, &spec));
    CHECK_OK(banyan_layout_create(&layout));
    banyan_layout_add_model(layout, model, rules, &spec, rank, 0);
    CHECK_OK(banyan_layout_check_as(layout, BANYAN_DESTINATION));
    banyan_rules_destroy(rules);
    return layout;
}

/* One local tensor, element by element. */
struct local {
    const banyan_local_tensor *tensor;
    int64_t *held;
    const banyan_piece **by;
};

static struct local find_local(const banyan_layout *layout, const char *name)
{
    int found = layout_find_tensor(layout, name);
    CHECK(found >= 0, "%s", name);
    struct local local = {.tensor = banyan_layout_tensor(layout, (size_t)found)};
    local.held = layout_elements(layout, (size_t)found, &local.by);
    return local;
}

static void local_free(struct local *local)
{
    free(local->held);
    free(local->by);
}

/* Element `at` is [row, column] of the global tensor, which has `columns`. */
static void expect_element(const struct local *local, int64_t at, const char *name, int64_t row,
                           int64_t column, int64_t columns)
{
    CHECK(local->by[at], "element %lld is nobody's", (long long)at);
    CHECK(strcmp(local->by[at]->name, name) == 0, "element %lld is of %s, not %s", (long long)at,
          local->by[at]->name, name);
    CHECK(local->held[at] == row * columns + column, "element %lld of %s", (long long)at, name);
}

/* A whole local row of HIDDEN columns is a global row. */
static void expect_row(const struct local *local, int64_t local_row, const char *name, int64_t row)
{
    for (int64_t column = 0; column < HIDDEN; column++)
        expect_element(local, local_row * HIDDEN + column, name, row, column, HIDDEN);
}

static void expect_padding(const struct local *local, int64_t first_row, int64_t end_row)
{
    for (int64_t at = first_row * HIDDEN; at < end_row * HIDDEN; at++)
        assert_int_equal(local->held[at], ELEMENT_PADDING);
}

#define Q "model.layers.1.self_attn.q_proj.weight"
#define K "model.layers.1.self_attn.k_proj.weight"
#define V "model.layers.1.self_attn.v_proj.weight"

static void vllm_fuses_queries_keys_and_values_by_blocks(void **state)
{
    (void)state;
    banyan_model *model = small_model(0);
    for (int rank = 0; rank < 2; rank++) {
        banyan_layout *layout = layout_of(model, "tp=2,packing=vllm", rank);
        struct local qkv = find_local(layout, "model.layers.1.self_attn.qkv_proj.weight");
        int64_t q = HEADS / 2 * HEAD_ROWS, kv = KV_HEADS / 2 * HEAD_ROWS;
        assert_int_equal(qkv.tensor->shape[0], q + 2 * kv);
        for (int64_t i = 0; i < q; i++)
            expect_row(&qkv, i, Q, rank * q + i);
        for (int64_t i = 0; i < kv; i++) {
            expect_row(&qkv, q + i, K, rank * kv + i);
            expect_row(&qkv, q + kv + i, V, rank * kv + i);
        }
        local_free(&qkv);
        banyan_layout_destroy(layout);
    }
    banyan_model_destroy(model);
}

/* Megatron's weight is [groups, queries a group + 2, head rows, hidden]. */
static void megatron_interleaves_them_by_query_group(void **state)
{
    (void)state;
    banyan_model *model = small_model(0);
    for (int rank = 0; rank < 2; rank++) {
        banyan_layout *layout = layout_of(model, "tp=2,packing=megatron", rank);
        struct local qkv = find_local(layout, "decoder.layers.1.self_attention.linear_qkv.weight");
        int groups = KV_HEADS / 2, queries = HEADS / KV_HEADS;
        assert_int_equal(qkv.tensor->shape[0], groups * (queries + 2) * HEAD_ROWS);
        for (int g = 0; g < groups; g++) {
            int group = rank * groups + g;
            for (int i = 0; i < HEAD_ROWS; i++) {
                int64_t at = (int64_t)g * (queries + 2) * HEAD_ROWS + i;
                for (int q = 0; q < queries; q++)
                    expect_row(&qkv, at + q * HEAD_ROWS, Q, (group * queries + q) * HEAD_ROWS + i);
                expect_row(&qkv, at + queries * HEAD_ROWS, K, group * HEAD_ROWS + i);
                expect_row(&qkv, at + (queries + 1) * HEAD_ROWS, V, group * HEAD_ROWS + i);
            }
        }
        local_free(&qkv);
        banyan_layout_destroy(layout);
    }
    banyan_model_destroy(model);
}

static void neighbours_share_key_value_heads_when_there_are_too_few(void **state)
{
    (void)state;
    banyan_model *model = small_model(0);
    for (int rank = 0; rank < 16; rank++) {
        banyan_layout *layout = layout_of(model, "tp=8,dp=2,packing=vllm", rank);
        struct local qkv = find_local(layout, "model.layers.1.self_attn.qkv_proj.weight");
        int tp = rank % 8;
        assert_int_equal(qkv.tensor->shape[0], 3 * HEAD_ROWS);
        for (int i = 0; i < HEAD_ROWS; i++) {
            expect_row(&qkv, i, Q, tp * HEAD_ROWS + i);
            expect_row(&qkv, HEAD_ROWS + i, K, tp / 2 * HEAD_ROWS + i);
            expect_row(&qkv, 2 * HEAD_ROWS + i, V, tp / 2 * HEAD_ROWS + i);
        }
        /* Both ranks of the pair, in both replicas. */
        const banyan_rank_set *set = &qkv.by[HEAD_ROWS * HIDDEN]->replicas;
        assert_int_equal(banyan_rank_set_size(set), 4);
        assert_true(banyan_rank_set_find(set, rank ^ 1) >= 0);
        assert_true(banyan_rank_set_find(set, rank ^ 8) >= 0);
        local_free(&qkv);
        banyan_layout_destroy(layout);
    }
    banyan_model_destroy(model);
}

/* Megatron-Core cuts [groups, queries a group + 2, head rows, hidden] evenly over the ranks, and
 * gathers a group's outputs if several ranks hold it. */
static void megatron_cuts_a_group_that_ranks_share(void **state)
{
    (void)state;
    banyan_model *model = small_model(0);
    int queries = HEADS / KV_HEADS, rows = KV_HEADS * (queries + 2) * HEAD_ROWS / 8;
    for (int rank = 0; rank < 16; rank++) {
        banyan_layout *layout = layout_of(model, "tp=8,dp=2,packing=megatron", rank);
        struct local qkv = find_local(layout, "decoder.layers.1.self_attention.linear_qkv.weight");
        assert_int_equal(qkv.tensor->shape[0], rows);
        for (int i = 0; i < rows; i++) {
            int at = rank % 8 * rows + i, block = at / HEAD_ROWS;
            int group = block / (queries + 2), member = block % (queries + 2), row = at % HEAD_ROWS;
            if (member < queries)
                expect_row(&qkv, i, Q, (group * queries + member) * HEAD_ROWS + row);
            else
                expect_row(&qkv, i, member == queries ? K : V, group * HEAD_ROWS + row);
        }
        /* Only the data-parallel replica has an equal piece. */
        const banyan_rank_set *set = &qkv.by[0]->replicas;
        assert_int_equal(banyan_rank_set_size(set), 2);
        assert_true(banyan_rank_set_find(set, rank) >= 0);
        assert_true(banyan_rank_set_find(set, rank ^ 8) >= 0);
        local_free(&qkv);
        banyan_layout_destroy(layout);
    }
    banyan_model_destroy(model);
}

static void gate_and_up_are_two_blocks(void **state)
{
    (void)state;
    static const struct {
        const char *spec, *name;
    } sides[] = {
        {"tp=3,packing=vllm", "model.layers.0.mlp.gate_up_proj.weight"},
        {"tp=3,packing=megatron", "decoder.layers.0.mlp.linear_fc1.weight"},
    };
    /* 8 heads do not divide by 3: use a model whose heads do. */
    const standin_shape shape = {.layers = 1,
                                 .hidden = HIDDEN,
                                 .heads = 3,
                                 .kv_heads = 3,
                                 .head_rows = HEAD_ROWS,
                                 .intermediate = INTER,
                                 .vocab = VOCAB,
                                 .norms = true};
    banyan_model *model = standin_model(&shape);
    for (size_t s = 0; s < 2; s++) {
        for (int rank = 0; rank < 3; rank++) {
            banyan_layout *layout = layout_of(model, sides[s].spec, rank);
            struct local fused = find_local(layout, sides[s].name);
            int64_t rows = INTER / 3;
            assert_int_equal(fused.tensor->shape[0], 2 * rows);
            for (int64_t i = 0; i < rows; i++) {
                expect_row(&fused, i, "model.layers.0.mlp.gate_proj.weight", rank * rows + i);
                expect_row(&fused, rows + i, "model.layers.0.mlp.up_proj.weight", rank * rows + i);
            }
            local_free(&fused);
            banyan_layout_destroy(layout);
        }
    }
    banyan_model_destroy(model);
}

static const char *expert_name(char *name, size_t bytes, int expert, const char *part)
{
    snprintf(name, bytes, "model.layers.1.mlp.experts.%d.%s.weight", expert, part);
    return name;
}

/* tp=2,dp=2,ep=2,etp=2: rank r holds half of each matrix of two of the four experts. */
static const char *const expert_spec = "tp=2,dp=2,ep=2,etp=2";

static void vllm_stacks_experts(void **state)
{
    (void)state;
    enum { HALF = INTER / 2 };
    banyan_model *model = small_model(EXPERTS);
    char spec[96], name[96];
    snprintf(spec, sizeof spec, "%s,packing=vllm", expert_spec);
    for (int rank = 0; rank < 4; rank++) {
        banyan_layout *layout = layout_of(model, spec, rank);
        struct local w13 =
            find_local(layout, "model.layers.1.mlp.experts.routed_experts.w13_weight");
        struct local w2 = find_local(layout, "model.layers.1.mlp.experts.routed_experts.w2_weight");
        assert_int_equal(w13.tensor->ndim, 3);
        assert_int_equal(w13.tensor->shape[0], 2);
        assert_int_equal(w13.tensor->shape[1], 2 * HALF);
        assert_int_equal(w2.tensor->shape[1], HIDDEN);
        assert_int_equal(w2.tensor->shape[2], HALF);
        for (int e = 0; e < 2; e++) {
            int expert = rank / 2 * 2 + e, shard = rank % 2;
            for (int i = 0; i < HALF; i++) {
                expert_name(name, sizeof name, expert, "gate_proj");
                expect_row(&w13, e * 2 * HALF + i, name, shard * HALF + i);
                expert_name(name, sizeof name, expert, "up_proj");
                expect_row(&w13, (e * 2 + 1) * HALF + i, name, shard * HALF + i);
                expert_name(name, sizeof name, expert, "down_proj");
                for (int h = 0; h < HIDDEN; h++)
                    expect_element(&w2, (e * HIDDEN + h) * HALF + i, name, h, shard * HALF + i,
                                   INTER);
            }
        }
        local_free(&w13);
        local_free(&w2);
        banyan_layout_destroy(layout);
    }
    banyan_model_destroy(model);
}

static void megatron_numbers_layers_and_experts_from_zero_on_each_rank(void **state)
{
    (void)state;
    enum { HALF = INTER / 2 };
    banyan_model *model = small_model(EXPERTS);
    char spec[96], name[96], local_name[96];
    snprintf(spec, sizeof spec, "%s,pp=2,packing=megatron", expert_spec);
    for (int rank = 4; rank < 8; rank++) { /* the second stage: layer 1 */
        banyan_layout *layout = layout_of(model, spec, rank);
        for (int e = 0; e < 2; e++) {
            snprintf(local_name, sizeof local_name,
                     "decoder.layers.0.mlp.experts.linear_fc1.weight%d", e);
            struct local fc1 = find_local(layout, local_name);
            for (int i = 0; i < HALF; i++) {
                expert_name(name, sizeof name, rank % 4 / 2 * 2 + e, "gate_proj");
                expect_row(&fc1, i, name, rank % 2 * HALF + i);
                expert_name(name, sizeof name, rank % 4 / 2 * 2 + e, "up_proj");
                expect_row(&fc1, HALF + i, name, rank % 2 * HALF + i);
            }
            local_free(&fc1);
        }
        banyan_layout_destroy(layout);
    }
    banyan_model_destroy(model);
}

/* Grouped matrix multiplication requires [experts, in, out]. */
static void grouped_experts_are_stacked_and_transposed(void **state)
{
    (void)state;
    enum { HALF = INTER / 2 };
    banyan_model *model = small_model(EXPERTS);
    char spec[96], name[96];
    snprintf(spec, sizeof spec, "%s,packing=megatron_grouped", expert_spec);
    for (int rank = 0; rank < 4; rank++) {
        banyan_layout *layout = layout_of(model, spec, rank);
        struct local fc1 = find_local(layout, "decoder.layers.1.mlp.experts.weight1");
        struct local fc2 = find_local(layout, "decoder.layers.1.mlp.experts.weight2");
        assert_int_equal(fc1.tensor->shape[1], HIDDEN);
        assert_int_equal(fc1.tensor->shape[2], 2 * HALF);
        assert_int_equal(fc2.tensor->shape[1], HALF);
        assert_int_equal(fc2.tensor->shape[2], HIDDEN);
        for (int e = 0; e < 2; e++) {
            int expert = rank / 2 * 2 + e, first = rank % 2 * HALF;
            for (int i = 0; i < HALF; i++) {
                for (int h = 0; h < HIDDEN; h++) {
                    int64_t in = (int64_t)(e * HIDDEN + h) * 2 * HALF;
                    expert_name(name, sizeof name, expert, "gate_proj");
                    expect_element(&fc1, in + i, name, first + i, h, HIDDEN);
                    expert_name(name, sizeof name, expert, "up_proj");
                    expect_element(&fc1, in + HALF + i, name, first + i, h, HIDDEN);
                    expert_name(name, sizeof name, expert, "down_proj");
                    expect_element(&fc2, (e * HALF + i) * HIDDEN + h, name, h, first + i, INTER);
                }
            }
        }
        local_free(&fc1);
        local_free(&fc2);
        banyan_layout_destroy(layout);
    }
    banyan_model_destroy(model);
}

static void expect_vocabulary(const char *spec, int ranks, const char *name, int64_t padded)
{
    banyan_model *model = small_model(0);
    for (int rank = 0; rank < ranks; rank++) {
        banyan_layout *layout = layout_of(model, spec, rank);
        struct local embedding = find_local(layout, name);
        int64_t rows = padded / ranks, first = rank * rows;
        assert_int_equal(embedding.tensor->shape[0], rows);
        for (int64_t i = 0; i < rows && first + i < VOCAB; i++)
            expect_row(&embedding, i, "model.embed_tokens.weight", first + i);
        if (first + rows > VOCAB)
            expect_padding(&embedding, first > VOCAB ? 0 : VOCAB - first, rows);
        local_free(&embedding);
        banyan_layout_destroy(layout);
    }
    banyan_model_destroy(model);
}

static void the_vocabulary_is_padded_as_each_engine_does(void **state)
{
    (void)state;
    expect_vocabulary("tp=2,packing=hf", 2, "model.embed_tokens.weight", 70);
    expect_vocabulary("tp=4,packing=hf,vocab_multiple=8", 4, "model.embed_tokens.weight", 72);
    expect_vocabulary("tp=4,packing=vllm", 4, "model.embed_tokens.weight", 128);
    expect_vocabulary("tp=4,packing=vllm,vocab_multiple=6", 4, "model.embed_tokens.weight", 72);
    expect_vocabulary("tp=2,packing=megatron", 2, "embedding.word_embeddings.weight", 256);
    expect_vocabulary("tp=4,packing=megatron,vocab_multiple=10", 4,
                      "embedding.word_embeddings.weight", 80);
    expect_vocabulary("tp=8,packing=megatron,vocab_multiple=3", 8,
                      "embedding.word_embeddings.weight", 72);
    /* The last rank holds padding only. */
    expect_vocabulary("tp=4,packing=megatron,vocab_multiple=30", 4,
                      "embedding.word_embeddings.weight", 120);
}

static void a_tied_embedding_stands_in_for_the_head_on_the_last_stage(void **state)
{
    (void)state;
    banyan_model *model = small_model(0);
    banyan_layout *first = layout_of(model, "pp=2,packing=megatron", 0);
    banyan_layout *last = layout_of(model, "pp=2,packing=megatron", 1);
    assert_true(layout_find_tensor(first, "embedding.word_embeddings.weight") >= 0);
    assert_true(layout_find_tensor(first, "output_layer.weight") < 0);
    assert_true(layout_find_tensor(last, "embedding.word_embeddings.weight") < 0);
    struct local head = find_local(last, "output_layer.weight");
    expect_row(&head, 3, "model.embed_tokens.weight", 3);
    assert_int_equal(banyan_rank_set_size(&head.by[0]->replicas), 2);
    local_free(&head);
    banyan_layout_destroy(first);
    banyan_layout_destroy(last);

    /* One stage: the engine itself uses the embedding twice. */
    first = layout_of(model, "packing=megatron", 0);
    assert_true(layout_find_tensor(first, "output_layer.weight") < 0);
    banyan_layout_destroy(first);
    last = layout_of(model, "pp=2", 1);
    assert_true(layout_find_tensor(last, "lm_head.weight") >= 0);
    banyan_layout_destroy(last);
    banyan_model_destroy(model);
}

static void fsdp_divides_the_rows_of_tps_shards(void **state)
{
    (void)state;
    banyan_model *model = small_model(0);
    const char *name = "model.layers.0.mlp.down_proj.weight"; /* HIDDEN × INTER, cut along 1 */
    int64_t rows_before = 0;
    for (int rank = 0; rank < 6; rank++) {
        banyan_layout *layout = layout_of(model, "tp=2,fsdp=3,packing=megatron", rank);
        struct local qkv = find_local(layout, "decoder.layers.0.self_attention.linear_qkv.weight");
        struct local norm =
            find_local(layout, "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight");
        struct local fc2 = find_local(layout, "decoder.layers.0.mlp.linear_fc2.weight");
        int64_t index = rank / 2, chunk = (HIDDEN + 2) / 3;
        int64_t rows = index < 2 ? chunk : HIDDEN - 2 * chunk;
        assert_int_equal(fc2.tensor->shape[0], rows);
        assert_int_equal(norm.tensor->shape[0], rows);
        for (int64_t i = 0; i < rows; i++) {
            for (int64_t k = 0; k < INTER / 2; k++)
                expect_element(&fc2, i * INTER / 2 + k, name, index * chunk + i,
                               rank % 2 * (INTER / 2) + k, INTER);
        }
        /* A fused tensor is cut across its parts: 24 rows in thirds. */
        int64_t fused_rows = 2 * (HEADS / KV_HEADS + 2) * HEAD_ROWS;
        assert_int_equal(qkv.tensor->shape[0], fused_rows / 3);
        for (int64_t i = 0; i < fused_rows / 3 * HIDDEN; i++)
            assert_non_null(qkv.by[i]);
        if (rank % 2 == 0)
            rows_before += qkv.tensor->shape[0];
        local_free(&qkv);
        local_free(&norm);
        local_free(&fc2);
        banyan_layout_destroy(layout);
    }
    assert_int_equal(rows_before, 24);
    banyan_model_destroy(model);
}

static void stages_get_their_layers_evenly_and_the_first_ones_more(void **state)
{
    (void)state;
    const standin_shape shape = {.layers = 8,
                                 .hidden = 2,
                                 .heads = 1,
                                 .kv_heads = 1,
                                 .head_rows = 128,
                                 .intermediate = 1,
                                 .vocab = 4};
    static const int layers[3] = {3, 3, 2};
    banyan_model *model = standin_model(&shape);
    char name[96];
    for (int stage = 0, layer = 0; stage < 3; stage++) {
        banyan_layout *layout = layout_of(model, "pp=3", stage);
        for (int i = 0; i < 8; i++) {
            snprintf(name, sizeof name, "model.layers.%d.input_layernorm.weight", i);
            assert_int_equal(layout_find_tensor(layout, name) >= 0,
                             i >= layer && i < layer + layers[stage]);
        }
        assert_int_equal(layout_find_tensor(layout, "model.embed_tokens.weight") >= 0, stage == 0);
        assert_int_equal(layout_find_tensor(layout, "model.norm.weight") >= 0, stage == 2);
        assert_int_equal(layout_find_tensor(layout, "lm_head.weight") >= 0, stage == 2);
        layer += layers[stage];
        banyan_layout_destroy(layout);
    }
    banyan_model_destroy(model);
}

/* Each scale belongs to the 128 × 128 block beside it. */
/* Each scale is that of the block whose first element lies at this place of the weight. */
static void check_scales(const struct local *scales, const struct local *weight)
{
    int ndim = scales->tensor->ndim;
    assert_int_equal(weight->tensor->ndim, ndim);
    banyan_box whole = {.ndim = ndim};
    memcpy(whole.extent, scales->tensor->shape, sizeof whole.extent);
    int64_t point[BANYAN_MAX_DIMS], first[BANYAN_MAX_DIMS];
    FOR_EACH_ELEMENT(&whole, point)
    {
        memcpy(first, point, sizeof first);
        first[ndim - 2] *= 128;
        first[ndim - 1] *= 128;
        int64_t s = element_index(ndim, scales->tensor->shape, point);
        int64_t w = element_index(ndim, weight->tensor->shape, first);
        const banyan_piece *of = weight->by[w], *by = scales->by[s];
        assert_true(strncmp(by->name, of->name, strlen(of->name)) == 0);
        assert_int_equal(scales->held[s] / by->shape[1], weight->held[w] / of->shape[1] / 128);
        assert_int_equal(scales->held[s] % by->shape[1], weight->held[w] % of->shape[1] / 128);
    }
}

/* Returns the number of checked tensors of scales: with fsdp, only those whose rows are whole
 * blocks. */
static int check_all_scales(const banyan_layout *layout, bool whole_blocks_only)
{
    int checked = 0;
    for (size_t t = 0; t < banyan_layout_tensor_count(layout); t++) {
        const char *name = banyan_layout_tensor(layout, t)->name;
        size_t bytes = strlen(name), suffix = strlen("_scale_inv");
        if (bytes < suffix || strcmp(name + bytes - suffix, "_scale_inv") != 0)
            continue;
        char weight_name[128];
        snprintf(weight_name, sizeof weight_name, "%.*s", (int)(bytes - suffix), name);
        struct local scales = find_local(layout, name), weight = find_local(layout, weight_name);
        if (!whole_blocks_only || weight.tensor->shape[weight.tensor->ndim - 2] % 128 == 0) {
            check_scales(&scales, &weight);
            checked++;
        }
        local_free(&scales);
        local_free(&weight);
    }
    return checked;
}

static void block_scales_follow_their_weights(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        int ranks, at_least;
    } cases[] = {
        {"tp=4,ep=2,etp=2,packing=vllm", 4, 12}, {"fsdp=2,packing=vllm", 2, 5}, {"fsdp=3", 3, 3}};
    banyan_model *model = standin_deepseek(2, 4, 4);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int rank = 0; rank < cases[i].ranks; rank++) {
            banyan_layout *layout = layout_of(model, cases[i].spec, rank);
            int checked = check_all_scales(layout, i > 0);
            CHECK(checked >= cases[i].at_least, "%s: %d at rank %d", cases[i].spec, checked, rank);
            banyan_layout_destroy(layout);
        }
    }
    banyan_model_destroy(model);
}

static void a_routers_bias_is_a_persistent_buffer(void **state)
{
    (void)state;
    banyan_model *model = standin_deepseek(2, 2, 4);
    banyan_layout *layout = layout_of(model, "packing=megatron", 0);
    size_t buffers = 0;
    for (size_t p = 0; p < banyan_layout_piece_count(layout); p++) {
        const banyan_piece *piece = banyan_layout_piece(layout, p);
        buffers += (piece->flags & BANYAN_PIECE_PERSISTENT_BUFFER) != 0;
        assert_int_equal((piece->flags & BANYAN_PIECE_PERSISTENT_BUFFER) != 0,
                         strstr(piece->name, "e_score_correction_bias") != NULL);
    }
    assert_int_equal(buffers, 1);
    banyan_layout_destroy(layout);
    banyan_model_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vllm_fuses_queries_keys_and_values_by_blocks),
        cmocka_unit_test(megatron_interleaves_them_by_query_group),
        cmocka_unit_test(neighbours_share_key_value_heads_when_there_are_too_few),
        cmocka_unit_test(megatron_cuts_a_group_that_ranks_share),
        cmocka_unit_test(gate_and_up_are_two_blocks),
        cmocka_unit_test(vllm_stacks_experts),
        cmocka_unit_test(megatron_numbers_layers_and_experts_from_zero_on_each_rank),
        cmocka_unit_test(grouped_experts_are_stacked_and_transposed),
        cmocka_unit_test(the_vocabulary_is_padded_as_each_engine_does),
        cmocka_unit_test(a_tied_embedding_stands_in_for_the_head_on_the_last_stage),
        cmocka_unit_test(fsdp_divides_the_rows_of_tps_shards),
        cmocka_unit_test(stages_get_their_layers_evenly_and_the_first_ones_more),
        cmocka_unit_test(block_scales_follow_their_weights),
        cmocka_unit_test(a_routers_bias_is_a_persistent_buffer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
