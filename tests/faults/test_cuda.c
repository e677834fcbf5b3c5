/* Memory on emulated GPUs, with a fault at one rank: in Banyan's own calls into the C library. */
#include "cuda/gpu_mixed.h"
#include "faults/job.h"

#include "support/gpu/gpu_stream.h"
#include "support/gpu/gpu_suspend.h"

#define BYTES ((size_t)100000)

static DLDevice device_of(const job_rank *r)
{
    return gpu_device_for(r->rank);
}

static banyan_status alloc_on(job_rank *r)
{
    return banyan_memory_alloc_on(r->world, device_of(r), BYTES, (banyan_memory **)&r->things);
}

static void free_memory(job_rank *r)
{
    banyan_memory_free(r->things);
    r->things = NULL;
}

static void have_device(job_rank *r)
{
    CHECK_OK(gpu_memory()->open(device_of(r).device_id));
}

static void have_memory(job_rank *r)
{
    have_device(r);
    CHECK_OK(alloc_on(r));
}

/* The program's own memory, for this process's rank. */
static char *plain;

static void have_plain(job_rank *r)
{
    have_device(r);
    plain = gpu_plain_alloc(device_of(r), BYTES);
}

static void free_plain(job_rank *r)
{
    gpu_plain_free(device_of(r), plain);
}

static banyan_status adopt(job_rank *r)
{
    return banyan_memory_adopt(r->world, device_of(r), plain, BYTES, (banyan_memory **)&r->things);
}

static void have_suspended(job_rank *r)
{
    have_memory(r);
    gpu_suspend_all(r->world);
}

static banyan_status resume_all(job_rank *r)
{
    return memory_resume_all(r->world);
}

#define ROWS 24

/* The process is one rank. */
static banyan_layout *layout;
static banyan_reshard_plan *plan;

static void have_layout(job_rank *r)
{
    static const int64_t shape[] = {ROWS, 40};
    banyan_mesh mesh = {.ndim = 1, .extent = {r->count}};
    banyan_placement placement = {.kind = BANYAN_SHARD, .dim = 0};
    have_device(r);
    CHECK_OK(banyan_layout_create(&layout));
    banyan_layout_add_sharded(layout, "weight", BANYAN_F32, 2, shape, &mesh, &placement, r->rank);
}

static void have_plan(job_rank *r)
{
    have_layout(r);
    CHECK_OK(banyan_reshard_plan_create(layout, layout, r->world, NULL, &plan));
}

static banyan_status alloc_tensors(job_rank *r)
{
    return banyan_tensors_alloc_on(layout, r->world, device_of(r), (banyan_tensors **)&r->things);
}

static banyan_status alloc_planned(job_rank *r)
{
    return banyan_tensors_alloc_planned_on(plan, r->world, device_of(r),
                                           (banyan_tensors **)&r->things);
}

static void destroy_tensors(job_rank *r)
{
    banyan_tensors_destroy(r->things);
    r->things = NULL;
}

static void finish_plan(job_rank *r)
{
    destroy_tensors(r);
    banyan_reshard_plan_destroy(plan);
    banyan_layout_destroy(layout);
}

static banyan_mixed_options options_for(const job_rank *r, int nodes)
{
    grid_sizes sizes = {nodes, 1, r->count / nodes, 1, nodes};
    banyan_mixed_options options = options_of(&sizes, BANYAN_F32);
    options.device = device_of(r);
    options.max_bytes = 16384;
    return options;
}

static void open_mixed(job_rank *r)
{
    banyan_mixed_options options = options_for(r, 1);
    have_device(r);
    CHECK_OK(banyan_mixed_open(r->world, &options, (banyan_mixed **)&r->things));
}

static banyan_status suspend_mixed(job_rank *r)
{
    return banyan_mixed_suspend(r->things);
}

static void resume_again(job_rank *r)
{
    CHECK_OK(banyan_mixed_resume(r->things, NULL));
}

static void have_suspended_mixed(job_rank *r)
{
    open_mixed(r);
    CHECK_OK(suspend_mixed(r));
}

static banyan_status resume_mixed(job_rank *r)
{
    return banyan_mixed_resume(r->things, NULL);
}

static void suspend_again(job_rank *r)
{
    CHECK_OK(banyan_mixed_status(r->things));
    CHECK_OK(suspend_mixed(r));
}

static void have_mixed_memory(job_rank *r)
{
    banyan_mixed_options options = options_for(r, 2);
    have_device(r);
    CHECK_OK(banyan_mixed_open_empty(r->world, &options, (banyan_mixed **)&r->things));
    CHECK_OK(banyan_mixed_init_virtual_memory(r->things));
}

static banyan_status init_nvshmem(job_rank *r)
{
    return banyan_mixed_init_nvshmem(r->things);
}

static void close_mixed(job_rank *r)
{
    (void)banyan_mixed_close(r->things);
}

#define REST .keeps_threads = true
static const job_case cases[] = {
    {"alloc_on", have_device, alloc_on, free_memory, REST},
    {"adopt", have_plain, adopt, free_memory, free_plain, REST},
    {"resume", have_suspended, resume_all, .finish = free_memory, REST},
    {"tensors_alloc_on", have_layout, alloc_tensors, destroy_tensors, finish_plan, REST},
    {"tensors_alloc_planned_on", have_plan, alloc_planned, destroy_tensors, finish_plan, REST},
    {"mixed_suspend", open_mixed, suspend_mixed, resume_again, close_mixed, REST},
    {"mixed_resume", have_suspended_mixed, resume_mixed, suspend_again, close_mixed, REST},
    {"mixed_init_nvshmem", have_mixed_memory, init_nvshmem, .finish = close_mixed,
     .only_once = true, .keeps_descriptors = 1, .foreign = "nvshmemx_hostlib_init_attr gave ",
     REST},
};

int main(void)
{
    gpu_count();
    if (!gpu_is_emulated()) {
        printf("skipped: faults are for emulated GPUs\n");
        return 77;
    }
    setenv("BANYAN_NVSHMEM", BANYAN_EMULATED_MODULES "/libnvshmem_host.so.3", 1);
    return job_main(cases, sizeof cases / sizeof *cases, 10);
}
