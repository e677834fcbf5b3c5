/* Options of a context: their ranges, and that all ranks have the same. */
#include <inttypes.h>
#include <stdlib.h>

#include "core/error.h"
#include "memory/device.h"
#include "mixed/mixed.h"
#include "world/control.h"

#define WARP 32
#define BLOCK_MOST 1024 /* threads; every device supports this many */
/* Largest max_bytes: buffers and tables of sizes are computed from it without overflow checks. */
#define MAX_BYTES_MOST (UINT64_C(4) << 30)

static banyan_status options_check_kernels(const banyan_mixed_options *options, int rank)
{
    if (options->grid_size < 0)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d: mixed collectives with a grid_size of %d thread blocks", rank,
                         options->grid_size);
    if (options->min_block_size < WARP || options->min_block_size > BLOCK_MOST ||
        options->min_block_size % WARP != 0)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d: mixed collectives with a min_block_size of %d threads, which is "
                         "not a multiple of %d up to %d",
                         rank, options->min_block_size, WARP, BLOCK_MOST);
    if (options->max_block_size < 0 ||
        (options->max_block_size > 0 && options->max_block_size < options->min_block_size))
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d: mixed collectives with a max_block_size of %d threads, below "
                         "the min_block_size of %d",
                         rank, options->max_block_size, options->min_block_size);
    if (options->min_num_steps < 1)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d: mixed collectives with a min_num_steps of %d", rank,
                         options->min_num_steps);
    return BANYAN_OK;
}

banyan_status mixed_options_check(const banyan_mixed_options *options, int rank)
{
    DLDataType dtype = options->dtype;
    if (!banyan_dtype_equal(dtype, BANYAN_F16) && !banyan_dtype_equal(dtype, BANYAN_BF16) &&
        !banyan_dtype_equal(dtype, BANYAN_F32))
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d: mixed collectives are of F16, BF16 or F32, not of %s", rank,
                         banyan_dtype_name(dtype));
    if (!device_is_host(options->device) && options->device.device_type != kDLCUDA)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "rank %d: mixed collectives run on the host and on CUDA devices, not on "
                         "devices of DLPack's type %d",
                         rank, (int)options->device.device_type);
    if (options->max_bytes > MAX_BYTES_MOST)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d: mixed collectives with max_bytes of %" PRIu64
                         ", more than %" PRIu64,
                         rank, options->max_bytes, MAX_BYTES_MOST);
    return options_check_kernels(options, rank);
}

enum {
    LOCAL_TP,
    LOCAL_DP,
    INTER_TP,
    INTER_DP,
    NODES,
    DTYPE,
    DEVICE_TYPE,
    GRID_SIZE,
    MAX_BLOCK_SIZE,
    MIN_BLOCK_SIZE,
    MIN_NUM_STEPS,
    MAX_BYTES,
    ENABLE_IBGDA,
    INIT_NVSHMEM,
    USE_AUTOTUNE,
    OPTIONS
};

static const char *const option_names[OPTIONS] = {"local_tp",        "local_dp",
                                                  "inter_tp",        "inter_dp",
                                                  "nodes",           "dtype",
                                                  "device",          "grid_size",
                                                  "max_block_size",  "min_block_size",
                                                  "min_num_steps",   "max_bytes",
                                                  "ib_enable_ibgda", "should_init_nvshmem",
                                                  "use_autotune"};

/* Indexed by the option's number. */
typedef struct option_values {
    uint64_t of[OPTIONS];
} option_values;

static uint64_t options_number_of(int value)
{
    return (uint64_t)(int64_t)value;
}

static option_values options_values_of(const banyan_mixed_options *options)
{
    bool on_host = device_is_host(options->device);
    uint64_t type = (uint64_t)options->dtype.code << 8 | options->dtype.bits;
    return (option_values){{
        [LOCAL_TP] = options_number_of(options->local_tp),
        [LOCAL_DP] = options_number_of(options->local_dp),
        [INTER_TP] = options_number_of(options->inter_tp),
        [INTER_DP] = options_number_of(options->inter_dp),
        [NODES] = options_number_of(options->nodes),
        [DTYPE] = type,
        [DEVICE_TYPE] = on_host ? kDLCPU : options_number_of((int)options->device.device_type),
        [GRID_SIZE] = options_number_of(options->grid_size),
        [MAX_BLOCK_SIZE] = options_number_of(options->max_block_size),
        [MIN_BLOCK_SIZE] = options_number_of(options->min_block_size),
        [MIN_NUM_STEPS] = options_number_of(options->min_num_steps),
        [MAX_BYTES] = options->max_bytes,
        [ENABLE_IBGDA] = options->ib_enable_ibgda,
        [INIT_NVSHMEM] = options->should_init_nvshmem,
        [USE_AUTOTUNE] = options->use_autotune,
    }};
}

static const char *options_text_of(int option, uint64_t value, char *text, size_t bytes)
{
    if (option == DTYPE)
        return banyan_dtype_name((DLDataType){(uint8_t)(value >> 8), (uint8_t)value, 1});
    if (option == DEVICE_TYPE)
        return value == kDLCPU ? "the host" : "a GPU";
    snprintf(text, bytes, "%" PRId64, (int64_t)value);
    return text;
}

static banyan_status options_compare(const option_values *all, int ranks)
{
    for (int r = 1; r < ranks; r++) {
        int option = 0;
        while (option < OPTIONS && all[r].of[option] == all[0].of[option])
            option++;
        if (option == OPTIONS)
            continue;
        char first[32], other[32];
        return error_set(BANYAN_ERR_MISMATCH,
                         "ranks open mixed collectives with different options: %s is %s on rank 0, "
                         "and %s on rank %d",
                         option_names[option],
                         options_text_of(option, all[0].of[option], first, sizeof first),
                         options_text_of(option, all[r].of[option], other, sizeof other), r);
    }
    return BANYAN_OK;
}

banyan_status mixed_options_agree(banyan_world *world, const banyan_mixed_options *options)
{
    option_values mine = options_values_of(options);
    void *all;
    banyan_status status =
        control_gather(world, BANYAN_OK, &mine, sizeof mine, "options of ranks", &all);
    if (status == BANYAN_OK)
        status = control_fail_together(world, options_compare(all, banyan_world_size(world)));
    free(all);
    return status;
}
