/* Small models with the names and proportions of real ones, written as files. */
#ifndef TESTS_RESHARD_STANDIN_H
#define TESTS_RESHARD_STANDIN_H

#include <unistd.h>

#include "support/test.h"

/* A tensor list under construction, in its own file. */
typedef struct standin {
    char path[32];
    FILE *file;
    int tensors, entries;
} standin;

static inline standin standin_begin(void)
{
    standin made = {.path = "/tmp/banyan_model_XXXXXX"};
    int fd = mkstemp(made.path);
    assert_true(fd >= 0);
    made.file = fdopen(fd, "w");
    fputs("{", made.file);
    return made;
}

/* One or two extents: `columns` 0 gives a vector. */
static inline void standin_add(standin *made, const char *dtype, int64_t rows, int64_t columns,
                               const char *name, ...) __attribute__((format(printf, 5, 6)));

static inline void standin_add(standin *made, const char *dtype, int64_t rows, int64_t columns,
                               const char *name, ...)
{
    made->tensors++;
    fprintf(made->file, "%s\n\"", made->entries++ > 0 ? "," : "");
    va_list arguments;
    va_start(arguments, name);
    vfprintf(made->file, name, arguments);
    va_end(arguments);
    fprintf(made->file, "\": {\"shape\": [%lld", (long long)rows);
    if (columns > 0)
        fprintf(made->file, ", %lld", (long long)columns);
    fprintf(made->file, "], \"dtype\": \"%s\"}", dtype);
}

/* The model's config.json, as a JSON object. */
static inline void standin_config(standin *made, const char *config)
{
    fprintf(made->file, "%s\n\"config.json\": %s", made->entries++ > 0 ? "," : "", config);
}

static inline banyan_model *standin_load(standin *made)
{
    fputs("\n}\n", made->file);
    fclose(made->file);
    banyan_model *model;
    CHECK_OK(banyan_model_load(made->path, &model));
    unlink(made->path);
    assert_int_equal(banyan_model_tensor_count(model), made->tensors);
    return model;
}

typedef struct standin_shape {
    int layers, hidden, heads, kv_heads, head_rows, intermediate, vocab;
    int experts; /* 0: dense */
    bool norms;  /* of queries and keys: they determine the size of a head */
    bool tied;
} standin_shape;

static inline void standin_add_attention(standin *made, const standin_shape *shape, int layer)
{
    const char *at = "model.layers.%d.self_attn.%s";
    int rows = shape->head_rows, hidden = shape->hidden;
    standin_add(made, "BF16", shape->heads * rows, hidden, at, layer, "q_proj.weight");
    standin_add(made, "BF16", shape->kv_heads * rows, hidden, at, layer, "k_proj.weight");
    standin_add(made, "BF16", shape->kv_heads * rows, hidden, at, layer, "v_proj.weight");
    if (shape->norms) {
        standin_add(made, "BF16", rows, 0, at, layer, "q_norm.weight");
        standin_add(made, "BF16", rows, 0, at, layer, "k_norm.weight");
    }
    standin_add(made, "BF16", hidden, shape->heads * rows, at, layer, "o_proj.weight");
}

static inline void standin_add_mlp(standin *made, int hidden, int intermediate, const char *prefix)
{
    standin_add(made, "BF16", intermediate, hidden, "%s.gate_proj.weight", prefix);
    standin_add(made, "BF16", intermediate, hidden, "%s.up_proj.weight", prefix);
    standin_add(made, "BF16", hidden, intermediate, "%s.down_proj.weight", prefix);
}

/* Qwen3 and Llama. */
static inline banyan_model *standin_model(const standin_shape *shape)
{
    standin made = standin_begin();
    char prefix[64];
    standin_add(&made, "BF16", shape->vocab, shape->hidden, "model.embed_tokens.weight");
    for (int layer = 0; layer < shape->layers; layer++) {
        standin_add(&made, "BF16", shape->hidden, 0, "model.layers.%d.input_layernorm.weight",
                    layer);
        standin_add_attention(&made, shape, layer);
        standin_add(&made, "BF16", shape->hidden, 0,
                    "model.layers.%d.post_attention_layernorm.weight", layer);
        if (shape->experts > 0)
            standin_add(&made, "BF16", shape->experts, shape->hidden,
                        "model.layers.%d.mlp.gate.weight", layer);
        for (int expert = 0; expert < shape->experts; expert++) {
            snprintf(prefix, sizeof prefix, "model.layers.%d.mlp.experts.%d", layer, expert);
            standin_add_mlp(&made, shape->hidden, shape->intermediate, prefix);
        }
        snprintf(prefix, sizeof prefix, "model.layers.%d.mlp", layer);
        if (shape->experts == 0)
            standin_add_mlp(&made, shape->hidden, shape->intermediate, prefix);
    }
    standin_add(&made, "BF16", shape->hidden, 0, "model.norm.weight");
    if (!shape->tied)
        standin_add(&made, "BF16", shape->vocab, shape->hidden, "lm_head.weight");
    return standin_load(&made);
}

/* An FP8 weight with the scales of its 128 × 128 blocks. */
static inline void standin_add_fp8(standin *made, int64_t rows, int64_t columns, int layer,
                                   const char *name)
{
    const char *at = "model.layers.%d.%s.weight%s";
    standin_add(made, "F8_E4M3", rows, columns, at, layer, name, "");
    standin_add(made, "F32", (rows + 127) / 128, (columns + 127) / 128, at, layer, name,
                "_scale_inv");
}

static inline void standin_add_fp8_mlp(standin *made, int hidden, int intermediate, int layer,
                                       const char *prefix)
{
    char name[64];
    snprintf(name, sizeof name, "%s.gate_proj", prefix);
    standin_add_fp8(made, intermediate, hidden, layer, name);
    snprintf(name, sizeof name, "%s.up_proj", prefix);
    standin_add_fp8(made, intermediate, hidden, layer, name);
    snprintf(name, sizeof name, "%s.down_proj", prefix);
    standin_add_fp8(made, hidden, intermediate, layer, name);
}

/* DeepSeek-V3: latent attention of `heads` heads, the first layer dense, the others with experts.
 * Ranks up to `heads` can share it. */
static inline banyan_model *standin_deepseek(int layers, int heads, int experts)
{
    enum { HIDDEN = 130, LATENT = 200, VOCAB = 96 };
    standin made = standin_begin();
    char prefix[64];
    standin_config(&made, "{\"model_type\": \"deepseek_v3\", \"topk_method\": \"noaux_tc\", "
                          "\"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, "
                          "\"v_head_dim\": 128}");
    standin_add(&made, "BF16", VOCAB, HIDDEN, "model.embed_tokens.weight");
    for (int layer = 0; layer < layers; layer++) {
        standin_add(&made, "BF16", HIDDEN, 0, "model.layers.%d.input_layernorm.weight", layer);
        standin_add_fp8(&made, 256, HIDDEN, layer, "self_attn.q_a_proj");
        standin_add(&made, "BF16", 256, 0, "model.layers.%d.self_attn.q_a_layernorm.weight", layer);
        standin_add_fp8(&made, 192 * heads * 2, 256, layer, "self_attn.q_b_proj");
        standin_add_fp8(&made, LATENT, HIDDEN, layer, "self_attn.kv_a_proj_with_mqa");
        standin_add(&made, "BF16", LATENT, 0, "model.layers.%d.self_attn.kv_a_layernorm.weight",
                    layer);
        standin_add_fp8(&made, 256 * heads * 2, LATENT, layer, "self_attn.kv_b_proj");
        standin_add_fp8(&made, HIDDEN, 128 * heads * 2, layer, "self_attn.o_proj");
        standin_add(&made, "BF16", HIDDEN, 0, "model.layers.%d.post_attention_layernorm.weight",
                    layer);
        if (layer == 0) {
            standin_add_fp8_mlp(&made, HIDDEN, 128 * heads * 3, layer, "mlp");
            continue;
        }
        standin_add(&made, "BF16", experts, HIDDEN, "model.layers.%d.mlp.gate.weight", layer);
        standin_add(&made, "F32", experts, 0, "model.layers.%d.mlp.gate.e_score_correction_bias",
                    layer);
        for (int expert = 0; expert < experts; expert++) {
            snprintf(prefix, sizeof prefix, "mlp.experts.%d", expert);
            standin_add_fp8_mlp(&made, HIDDEN, 128 * heads, layer, prefix);
        }
        standin_add_fp8_mlp(&made, HIDDEN, 128 * heads, layer, "mlp.shared_experts");
    }
    standin_add(&made, "BF16", HIDDEN, 0, "model.norm.weight");
    standin_add(&made, "BF16", VOCAB, HIDDEN, "lm_head.weight");
    return standin_load(&made);
}

#endif
