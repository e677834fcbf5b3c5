/* Rule files, and layouts made with them. */
#include "fuzz.h"

void fuzz_write_seeds(void)
{
    fuzz_seed_text("**\n    replicate\n");
    fuzz_seed_text("packing trt vocab 64 # padded\n"
                   "model.embed_tokens.weight\n    shard 0\n    vocab\n    stage first\n"
                   "    tie lm_head.weight\n"
                   "model.layers.{layer}.self_attn.q_proj.*\n    shard 0\n    heads 16 shared\n"
                   "    in vllm model.layers.{local_layer}.qkv.* group 0\n"
                   "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight\n    shard 1\n"
                   "    in vllm experts.{local_layer}.up stack transpose\n"
                   "**\n    scale _scale_inv 128\n    buffer\n");
    fuzz_seed_text(
        "packing vllm strict release x\ndefault head_dim hidden_size/(2+1) when a = b c\n"
        "skip vllm **.inv_freq unless topk = 1 with model.norm.weight\n"
        "keep * **.{layer}.*\nprefix m. is model. in vllm l.m. without x\n"
        "rename vllm model.layers.{layer}.** model.layers.{layer}.mtp.*\n"
        "model.layers.{layer}.self_attn.q_proj.*\n    shard 0\n    part size/2 heads 8\n"
        "    part head_dim*4 heads head_dim shared\n    part size-48 whole\n"
        "    in vllm f.{layer}.* block 0 dtype F32 with model.layers.{layer}.*\n"
        "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight\n    shard 1\n"
        "    in vllm e.{layer} stack once halves computed\n"
        "model.norm.weight\n    in vllm n map negative_exp dtype F32\n"
        "    in trt none without x because it has none: use vllm\ninclude builtin\n**\n");
    fuzz_seed_text("packing trt like vllm per_tp\nmodel.norm.weight\n**\n    stage last\n");
}

static const char model_text[] =
    "{\"config.json\": {\"head_dim\": 16, \"hidden_size\": 64, \"a\": \"b\"},"
    "\"model.embed_tokens.weight\": {\"shape\": [128, 64], \"dtype\": \"BF16\"},"
    "\"model.layers.0.self_attn.q_proj.weight\": {\"shape\": [64, 64], \"dtype\": \"BF16\"},"
    "\"model.layers.0.mlp.experts.1.up_proj.weight\": {\"shape\": [32, 64], \"dtype\": \"F32\"},"
    "\"model.norm.weight\": {\"shape\": [64], \"dtype\": \"F32\"}}";

static banyan_model *some_model(void)
{
    static banyan_model *model;
    if (!model) {
        fuzz_file file = fuzz_file_open(model_text, sizeof model_text - 1);
        FUZZ_REQUIRE(banyan_model_load(file.path, &model) == BANYAN_OK);
        fuzz_file_close(&file);
    }
    return model;
}

static void lay_out(const banyan_rules *rules, const char *text)
{
    banyan_spec spec;
    banyan_layout *layout;
    FUZZ_REQUIRE(banyan_spec_parse(text, &spec) == BANYAN_OK);
    FUZZ_REQUIRE(banyan_layout_create(&layout) == BANYAN_OK);
    banyan_layout_add_model(layout, some_model(), rules, &spec, 1, 0);
    fuzz_took(banyan_layout_check(layout));
    banyan_layout_destroy(layout);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_file file = fuzz_file_open(data, size);
    banyan_rules *rules;
    if (fuzz_took(banyan_rules_load(file.path, &rules))) {
        lay_out(rules, "tp=2,ep=2");
        lay_out(rules, "tp=2,pp=2,packing=megatron");
        lay_out(rules, "tp=4,packing=vllm");
        banyan_rules_destroy(rules);
    }
    fuzz_file_close(&file);
    return 0;
}
