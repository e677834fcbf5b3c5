/* Mixed collectives, with a fault at one rank. */
#include "faults/job.h"
#include "mixed/mixed_check.h"

#define ELEMS 2000

struct things {
    mixed_case one;
    bool has_buffers;
};

/* The process is one rank. */
static struct things *things_of(job_rank *r)
{
    static struct things things;
    return r->things = &things;
}

static banyan_mixed_options options_for(const job_rank *r)
{
    grid_sizes sizes = {1, r->count / 2, 2, 1, 1};
    banyan_mixed_options options = options_of(&sizes, BANYAN_F32);
    options.max_bytes = 16384;
    return options;
}

static void finish(job_rank *r)
{
    struct things *t = things_of(r);
    if (t->one.mixed)
        (void)banyan_mixed_close(t->one.mixed);
    if (t->has_buffers) {
        case_release(&t->one, t->one.input);
        case_release(&t->one, t->one.output);
        free(t->one.host);
    }
}

static banyan_status open_mixed(job_rank *r)
{
    banyan_mixed_options options = options_for(r);
    return banyan_mixed_open(r->world, &options, &things_of(r)->one.mixed);
}

/* One dimension has few operations to tune, and few calls that can fail. */
static banyan_status open_tuned(job_rank *r)
{
    grid_sizes sizes = {1, 1, r->count, 1, 1};
    banyan_mixed_options options = options_of(&sizes, BANYAN_F32);
    options.max_bytes = 1024;
    options.use_autotune = true;
    return banyan_mixed_open(r->world, &options, &things_of(r)->one.mixed);
}

static banyan_status create(job_rank *r)
{
    banyan_mixed_options options = options_for(r);
    return banyan_mixed_open_empty(r->world, &options, &things_of(r)->one.mixed);
}

static void have_created(job_rank *r)
{
    CHECK_OK(create(r));
}

static banyan_status init_memory(job_rank *r)
{
    return banyan_mixed_init_virtual_memory(things_of(r)->one.mixed);
}

static void have_small(job_rank *r)
{
    banyan_mixed_options options = options_for(r);
    options.max_bytes = 1024;
    CHECK_OK(banyan_mixed_open(r->world, &options, &things_of(r)->one.mixed));
}

static banyan_status autotune(job_rank *r)
{
    return banyan_mixed_run_autotune(things_of(r)->one.mixed);
}

static void close_again(job_rank *r)
{
    CHECK_OK(banyan_mixed_close(things_of(r)->one.mixed));
    things_of(r)->one.mixed = NULL;
}

static banyan_status close_mixed(job_rank *r)
{
    banyan_mixed *mixed = things_of(r)->one.mixed;
    things_of(r)->one.mixed = NULL;
    return banyan_mixed_close(mixed);
}

static void have_case(job_rank *r)
{
    struct things *t = things_of(r);
    banyan_mixed_options options = options_for(r);
    t->one.world = r->world;
    case_open(&t->one, &options, ELEMS);
    t->has_buffers = true;
}

/* Two ranks have no tensor parallelism. */
static banyan_mixed_op op_of_grid(const job_rank *r)
{
    return r->count == 4 ? BANYAN_MIXED_REDUCESCATTER_ALLREDUCE : BANYAN_MIXED_REDUCESCATTER;
}

static mixed_one call_in(const job_rank *r, banyan_mixed_mode mode)
{
    return (mixed_one){op_of_grid(r), mode, DATA_WHOLE, 2, ELEMS / 2, false};
}

static banyan_status run_in(job_rank *r, banyan_mixed_mode mode)
{
    mixed_one call = call_in(r, mode);
    case_fill(&things_of(r)->one, &call);
    return case_call(&things_of(r)->one, &call);
}

static void check_mode(job_rank *r)
{
    mixed_one call = call_in(r, BANYAN_MIXED_ONE_SHOT);
    case_check(&things_of(r)->one, &call);
}

static banyan_status run_waits(job_rank *r)
{
    return run_in(r, BANYAN_MIXED_ONE_SHOT);
}

static banyan_status run_world(job_rank *r)
{
    return run_in(r, BANYAN_MIXED_SINGLE);
}

static banyan_status run_two(job_rank *r)
{
    return run_in(r, BANYAN_MIXED_SEPARATE);
}

static banyan_status measure(job_rank *r)
{
    mixed_case *one = &things_of(r)->one;
    int64_t in_shape[2] = {4, ELEMS / 2}, out_shape[2] = {2, ELEMS / 2};
    DLTensor out = {.data = one->output,
                    .device = BANYAN_HOST,
                    .ndim = 2,
                    .dtype = one->dtype,
                    .shape = out_shape};
    DLTensor in = out;
    in.data = one->input;
    in.shape = in_shape;
    uint64_t ns;
    return banyan_mixed_measure(one->mixed, op_of_grid(r), &in, &out, BANYAN_MIXED_ONE_SHOT, &ns);
}

static void have_tuned(job_rank *r)
{
    CHECK_OK(open_tuned(r));
}

static void table_path(const job_rank *r, char path[320])
{
    snprintf(path, 320, "%s/mixed.json", r->folder);
}

static banyan_status save(job_rank *r)
{
    char path[320];
    table_path(r, path);
    return banyan_mixed_save_autotune(things_of(r)->one.mixed, path);
}

static void have_saved(job_rank *r)
{
    have_tuned(r);
    CHECK_OK(save(r));
}

static banyan_status load(job_rank *r)
{
    char path[320];
    table_path(r, path);
    return banyan_mixed_load_autotune(things_of(r)->one.mixed, path);
}

/* A rank that cannot begin a run ends the context for all, but not the world: runs are made
 * once. */
#define REST .finish = finish
static const job_case cases[] = {
    {"mixed_open", NULL, open_mixed, close_again, REST},
    {"mixed_open_tuned", NULL, open_tuned, close_again, REST},
    {"mixed_open_empty", NULL, create, close_again, REST},
    {"mixed_init_memory", have_created, init_memory, REST, .only_once = true},
    {"mixed_autotune", have_small, autotune, REST, .only_once = true},
    {"mixed_run_one_shot", have_case, run_waits, check_mode, REST, .only_once = true},
    {"mixed_run_world", have_case, run_world, check_mode, REST, .only_once = true},
    /* Its communicators use sub-worlds: ranks of one that works may return before the context ends
     * for all. */
    {"mixed_run_two", have_case, run_two, check_mode, REST, .may_differ = true, .only_once = true,
     .ranks = 4},
    {"mixed_measure", have_case, measure, REST, .only_once = true},
    {"mixed_save", have_tuned, save, REST},
    {"mixed_load", have_saved, load, REST},
    {"mixed_close", have_case, close_mixed, REST, .only_once = true},
};

int main(void)
{
    return job_main(cases, sizeof cases / sizeof *cases, 8);
}
