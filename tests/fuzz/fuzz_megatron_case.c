/* Cases of Megatron-Core's planner, and the layouts of their ranks. */
#include "fuzz.h"

#define TENSOR(shape, is_tp, group)                                                                \
    "{\"name\": \"w\", \"resolved_name\": \"w\", \"shape\": " shape ", \"dtype\": \"bfloat16\","   \
    "\"element_size\": 2, \"is_tp\": " is_tp ", \"partition_dim\": 0, \"partition_stride\": 1,"    \
    "\"partition_sizes\": null, \"is_ep\": false, \"num_experts\": null, \"owner_rank\": 0,"       \
    "\"tensor_parallel_group_ranks\": " group ", \"expert_parallel_group_ranks\": null,"           \
    "\"data_parallel_group_ranks\": [0], \"pipeline_parallel_group_ranks\": [0],"                  \
    "\"global_expert_index\": null}"

void fuzz_write_seeds(void)
{
    fuzz_seed_text(
        "{\"name\": \"c\", \"world_size\": 2, \"ranks\": ["
        "{\"rank\": 0, \"src\": [" TENSOR(
            "[4, 6]", "true",
            "[0, 1]") "], \"dst\": []},"
                      "{\"rank\": 1, \"src\": [" TENSOR(
                          "[4, 6]", "true",
                          "[0, 1]") "],"
                                    "\"dst\": [" TENSOR(
                                        "[8, 6]", "false",
                                        "[1]") "]}], \"transfers\": ["
                                               "{\"task_id\": 0, \"src_rank\": 0, \"dst_rank\": 1, "
                                               "\"src_name\": \"w\", \"dst_name\":"
                                               "\"w\", \"resolved_name\": \"w\", \"src_slice\": "
                                               "[[0, 4], [0, 6]], \"dst_slice\":"
                                               "[[0, 4], [0, 6]]}]}");
    fuzz_seed_text("{\"name\": \"c\", \"world_size\": 1, \"ranks\": [{\"rank\": 0, \"src\": [],"
                   "\"dst\": []}], \"transfers\": []}");
}

static void lay_out(const banyan_megatron_case *loaded, int rank, banyan_side side)
{
    size_t count;
    banyan_layout *layout;
    const banyan_megatron_tensor *tensors =
        banyan_megatron_case_tensors(loaded, rank, side, &count);
    FUZZ_REQUIRE(banyan_layout_create(&layout) == BANYAN_OK);
    for (size_t i = 0; i < count; i++)
        banyan_layout_add_megatron(layout, &tensors[i], rank, 0);
    fuzz_took(banyan_layout_check(layout));
    banyan_layout_destroy(layout);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_file file = fuzz_file_open(data, size);
    banyan_megatron_case *loaded;
    if (fuzz_took(banyan_megatron_case_load(file.path, &loaded))) {
        int ranks = banyan_megatron_case_world_size(loaded);
        for (int rank = 0; rank < ranks && rank < 64; rank++) {
            lay_out(loaded, rank, BANYAN_SOURCE);
            lay_out(loaded, rank, BANYAN_DESTINATION);
        }
        banyan_megatron_case_destroy(loaded);
    }
    fuzz_file_close(&file);
    return 0;
}
