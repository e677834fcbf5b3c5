/* Memory on emulated GPUs, with a fault at one rank: in Banyan's own calls into the C library. */
#include "faults/job.h"

#include "memory/symmetric/suspend.h"
#include "support/gpu_stream.h"

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

static banyan_status suspend_all(job_rank *r)
{
    return memory_suspend_all(r->world);
}

static void resume(job_rank *r)
{
    CHECK_OK(memory_resume_all(r->world));
}

static void have_suspended(job_rank *r)
{
    have_memory(r);
    CHECK_OK(suspend_all(r));
}

static banyan_status resume_all(job_rank *r)
{
    return memory_resume_all(r->world);
}

static const job_case cases[] = {
    {.name = "alloc_on",
     .keeps_threads = true,
     .prepare = have_device,
     .call = alloc_on,
     .undo = free_memory},
    {.name = "adopt",
     .keeps_threads = true,
     .prepare = have_plain,
     .call = adopt,
     .undo = free_memory,
     .finish = free_plain},
    {.name = "suspend",
     .keeps_threads = true,
     .prepare = have_memory,
     .call = suspend_all,
     .undo = resume,
     .finish = free_memory},
    {.name = "resume",
     .keeps_threads = true,
     .prepare = have_suspended,
     .call = resume_all,
     .finish = free_memory,
     .only_once = true},
};

int main(void)
{
    gpu_count();
    if (!gpu_is_emulated()) {
        printf("skipped: faults are for emulated GPUs\n");
        return 77;
    }
    return job_main(cases, sizeof cases / sizeof *cases, 10);
}
