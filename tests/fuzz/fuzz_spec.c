/* Parallel specs, as a command line has them. */
#include "fuzz.h"

void fuzz_write_seeds(void)
{
    fuzz_seed_text("tp=2,pp=2,dp=1,ep=4,etp=1,fsdp=8");
    fuzz_seed_text("tp=8,ep=64,packing=vllm");
    fuzz_seed_text("tp=4,vocab_multiple=128,head=64,packing=megatron");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = fuzz_text(data, size);
    banyan_spec spec;
    if (fuzz_took(banyan_spec_parse(text, &spec)))
        FUZZ_REQUIRE(banyan_spec_world_size(&spec) > 0);
    free(text);
    return 0;
}
