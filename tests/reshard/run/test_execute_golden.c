/* The cases that Megatron-Core's planner computed: whichever replica sends, every destination
 * element ends with the value that the case's own transfers give it. */
#include <glob.h>

#include "support/test.h"

#include "reshard/filled.h"
#include "reshard/mailbox.h"

#define CASES BANYAN_BINARY_DIR "/tests/transfers/*.json"

struct golden {
    const char *path;
    const char *backend; /* NULL: the mailbox */
};

static banyan_layout *layout_of(const banyan_megatron_case *golden, int rank, banyan_side side)
{
    banyan_layout *layout;
    CHECK_OK(banyan_layout_create(&layout));
    size_t count;
    const banyan_megatron_tensor *tensors =
        banyan_megatron_case_tensors(golden, rank, side, &count);
    for (size_t i = 0; i < count; i++)
        banyan_layout_add_megatron(layout, &tensors[i], rank, 0);
    CHECK_OK(banyan_layout_check(layout));
    return layout;
}

static size_t tensor_named(const banyan_layout *layout, const char *name)
{
    for (size_t i = 0; i < banyan_layout_tensor_count(layout); i++)
        if (strcmp(banyan_layout_tensor(layout, i)->name, name) == 0)
            return i;
    CHECK(false, "no local tensor \"%s\"", name);
    return 0;
}

static unsigned char *element_at(const DLTensor *tensor, const banyan_box *box, uint64_t number)
{
    int64_t offset = 0;
    for (int d = box->ndim - 1; d >= 0; d--) {
        uint64_t extent = (uint64_t)box->extent[d];
        offset += (box->start[d] + (int64_t)(number % extent)) * tensor->strides[d];
        number /= extent;
    }
    return (unsigned char *)tensor->data + offset * (int64_t)banyan_dtype_bytes(tensor->dtype);
}

/* Any rank's source, which every rank can compute. */
typedef struct other_source {
    banyan_layout *layout;
    banyan_tensors *set;
} other_source;

static void make_source(const banyan_megatron_case *golden, int rank, other_source *source)
{
    if (source->set)
        return;
    source->layout = layout_of(golden, rank, BANYAN_SOURCE);
    CHECK_OK(banyan_tensors_alloc(source->layout, NULL, &source->set));
    filled_make(source->layout, source->set, 1);
}

/* The case's transfer gives this rank's destination the values of its sender's source. */
static uint64_t check_transfer(const banyan_megatron_transfer *transfer, const other_source *source,
                               const banyan_layout *layout, const banyan_tensors *destination)
{
    const DLTensor *from =
        banyan_tensors_get(source->set, tensor_named(source->layout, transfer->source_name));
    const DLTensor *to =
        banyan_tensors_get(destination, tensor_named(layout, transfer->destination_name));
    uint64_t elems = banyan_box_elems(&transfer->source_slice);
    for (uint64_t i = 0; i < elems; i++)
        CHECK(memcmp(element_at(to, &transfer->destination_slice, i),
                     element_at(from, &transfer->source_slice, i),
                     banyan_dtype_bytes(to->dtype)) == 0,
              "element %llu of what rank %d sends of %s", (unsigned long long)i,
              transfer->source_rank, transfer->source_name);
    return elems;
}

/* Every element of the destination has a transfer, and its value. */
static void check_transfers(const banyan_megatron_case *golden, int rank,
                            const banyan_layout *layout, const banyan_tensors *destination)
{
    int ranks = banyan_megatron_case_world_size(golden);
    other_source *sources = calloc((size_t)ranks, sizeof *sources);
    uint64_t checked = 0, held = 0;
    for (size_t i = 0; i < banyan_megatron_case_transfer_count(golden); i++) {
        const banyan_megatron_transfer *transfer = banyan_megatron_case_transfer(golden, i);
        if (transfer->destination_rank != rank)
            continue;
        other_source *source = &sources[transfer->source_rank];
        make_source(golden, transfer->source_rank, source);
        checked += check_transfer(transfer, source, layout, destination);
    }
    for (size_t p = 0; p < banyan_layout_piece_count(layout); p++)
        held += banyan_box_elems(&banyan_layout_piece(layout, p)->box);
    CHECK(checked == held, "%llu elements of %llu have a transfer", (unsigned long long)checked,
          (unsigned long long)held);
    for (int other = 0; other < ranks; other++) {
        banyan_tensors_destroy(sources[other].set);
        banyan_layout_destroy(sources[other].layout);
    }
    free(sources);
}

static bool source_has_output(const banyan_megatron_case *golden)
{
    for (int rank = 0; rank < banyan_megatron_case_world_size(golden); rank++) {
        size_t count;
        const banyan_megatron_tensor *tensors =
            banyan_megatron_case_tensors(golden, rank, BANYAN_SOURCE, &count);
        for (size_t i = 0; i < count; i++)
            if (strcmp(tensors[i].resolved_name, "output_layer.weight") == 0)
                return true;
    }
    return false;
}

static void run_golden(banyan_world *world, void *context)
{
    const struct golden *of = context;
    int rank = banyan_world_rank(world);
    banyan_megatron_case *golden;
    CHECK_OK(banyan_megatron_case_load(of->path, &golden));
    banyan_layout *source_layout = layout_of(golden, rank, BANYAN_SOURCE);
    banyan_layout *destination_layout = layout_of(golden, rank, BANYAN_DESTINATION);
    banyan_tensors *source, *destination;
    CHECK_OK(banyan_tensors_alloc(source_layout, world, &source));
    CHECK_OK(banyan_tensors_alloc(destination_layout, world, &destination));
    filled_make(source_layout, source, 1);
    filled_poison(destination);
    banyan_copy_service *service;
    if (of->backend)
        CHECK_OK(banyan_copy_service_open(world, of->backend, NULL, &service));
    else
        CHECK_OK(banyan_copy_service_open_backend(world, &mailbox_backend, NULL, &service));
    banyan_reshard_plan *plan;
    banyan_reshard_options options = BANYAN_RESHARD_OPTIONS_INIT;
    options.min_split_bytes = 512;
    CHECK_OK(banyan_reshard_plan_create(source_layout, destination_layout, world, &options, &plan));
    CHECK_OK(banyan_reshard_execute(plan, source, destination, service, world, NULL, NULL));

    check_transfers(golden, rank, destination_layout, destination);
    filled_check(destination_layout, destination, 1, !source_has_output(golden));
    banyan_reshard_plan_destroy(plan);
    banyan_copy_service_close(service);
    banyan_tensors_destroy(source);
    banyan_tensors_destroy(destination);
    banyan_layout_destroy(source_layout);
    banyan_layout_destroy(destination_layout);
    banyan_megatron_case_destroy(golden);
}

static void each_case_over(const char *backend)
{
    glob_t found;
    CHECK(glob(CASES, 0, NULL, &found) == 0, CASES);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct golden of = {found.gl_pathv[i], backend};
        banyan_megatron_case *golden;
        CHECK_OK(banyan_megatron_case_load(of.path, &golden));
        int ranks = banyan_megatron_case_world_size(golden);
        banyan_megatron_case_destroy(golden);
        printf("%s\n", strrchr(of.path, '/') + 1);
        ranks_run(ranks, run_golden, &of);
    }
    globfree(&found);
}

static void each_case_holds_over_a_service_of_four_functions(void **state)
{
    (void)state;
    each_case_over(NULL);
}

static void each_case_holds_over_direct(void **state)
{
    (void)state;
    each_case_over("direct");
}

static void each_case_holds_over_the_pipeline_between_machines(void **state)
{
    (void)state;
    if (getenv("BANYAN_TEST_NETWORK"))
        each_case_over("pipeline");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_case_holds_over_a_service_of_four_functions),
        cmocka_unit_test(each_case_holds_over_direct),
        cmocka_unit_test(each_case_holds_over_the_pipeline_between_machines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
