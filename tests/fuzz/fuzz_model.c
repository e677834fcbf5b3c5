/* Models' tensor lists, and layouts made from them. */
#include "fuzz.h"

void fuzz_write_seeds(void)
{
    fuzz_seed_text("{\"w\": {\"shape\": [4, 6], \"dtype\": \"BF16\"}}");
    fuzz_seed_text("{\"model.embed_tokens.weight\": {\"shape\": [128, 64], \"dtype\": \"BF16\"},"
                   "\"model.layers.0.self_attn.q_proj.weight\": {\"shape\": [64, 64], \"dtype\": "
                   "\"BF16\"}, \"model.layers.0.mlp.experts.1.up_proj.weight\": {\"shape\": [32, "
                   "64], \"dtype\": \"F32\"}, \"model.norm.weight\": {\"shape\": [64], \"dtype\": "
                   "\"F32\"}}");
    fuzz_seed_text("{}");
}

static void lay_out(const banyan_model *model)
{
    banyan_spec spec;
    banyan_rules *rules;
    banyan_layout *layout;
    FUZZ_REQUIRE(banyan_spec_parse("tp=2,pp=2", &spec) == BANYAN_OK);
    FUZZ_REQUIRE(banyan_rules_load(NULL, &rules) == BANYAN_OK);
    FUZZ_REQUIRE(banyan_layout_create(&layout) == BANYAN_OK);
    banyan_layout_add_model(layout, model, rules, &spec, 1, 0);
    fuzz_took(banyan_layout_check(layout));
    banyan_layout_destroy(layout);
    banyan_rules_destroy(rules);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_file file = fuzz_file_open(data, size);
    banyan_model *model;
    if (fuzz_took(banyan_model_load(file.path, &model))) {
        lay_out(model);
        banyan_model_destroy(model);
    }
    fuzz_file_close(&file);
    return 0;
}
