#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cli/commands.h"
#include "cli/files.h"
#include "cli/options.h"
#include "cli/text.h"
#include "core/status.h"
#include "launch/launch.h"
#include "reshard/move.h"
#include "reshard/pattern.h"

#define WHO "banyan reshard verify"

/* One case of a planner to be executed and compared. */
typedef struct verify_job {
    banyan_megatron_case *loaded;
    const char *backend; /* NULL: Banyan's choice */
    failure *failed;
    uint64_t *elems; /* compared, of every rank; in memory that the ranks share */
} verify_job;

/* The tensors of one rank on one side: its layout, and memory filled by name and global index. */
struct side {
    banyan_layout *layout;
    banyan_tensors *tensors;
};

struct verify {
    const verify_job *job;
    move move;            /* without a source */
    struct side *senders; /* of all ranks: made when a transfer needs them */
    uint64_t elems;
};

static banyan_status verify_rank_add_tensors(const verify_job *job, int rank, banyan_side side,
                                             banyan_layout *layout)
{
    size_t count;
    const banyan_megatron_tensor *tensors =
        banyan_megatron_case_tensors(job->loaded, rank, side, &count);
    for (size_t i = 0; i < count; i++)
        banyan_layout_add_megatron(layout, &tensors[i], rank, 0);
    return banyan_layout_check(layout);
}

/* Make the data that `rank` sends. Every rank can make it, and thereby knows the expected values.
 */
static banyan_status make_sender(struct verify *verify, int rank, banyan_world *shared)
{
    struct side *sender = &verify->senders[rank];
    if (sender->tensors)
        return BANYAN_OK;
    RETURN_IF_FAILED(banyan_layout_create(&sender->layout));
    RETURN_IF_FAILED(verify_rank_add_tensors(verify->job, rank, BANYAN_SOURCE, sender->layout));
    RETURN_IF_FAILED(banyan_tensors_alloc(sender->layout, shared, &sender->tensors));
    for (size_t i = 0; i < banyan_layout_piece_count(sender->layout); i++) {
        const banyan_piece *piece = banyan_layout_piece(sender->layout, i);
        pattern_fill(piece, banyan_tensors_get(sender->tensors, (size_t)piece->tensor));
    }
    return BANYAN_OK;
}

static banyan_status verify_rank_execute(struct verify *verify)
{
    RETURN_IF_FAILED(make_sender(verify, verify->move.rank, verify->move.world));
    RETURN_IF_FAILED(banyan_layout_create(&verify->move.plain));
    RETURN_IF_FAILED(verify_rank_add_tensors(verify->job, verify->move.rank, BANYAN_DESTINATION,
                                             verify->move.plain));
    struct side *mine = &verify->senders[verify->move.rank];
    RETURN_IF_FAILED(banyan_reshard_plan_create(mine->layout, verify->move.plain,
                                                verify->move.world, NULL, &verify->move.plan));
    RETURN_IF_FAILED(banyan_tensors_alloc_planned(verify->move.plan, verify->move.world,
                                                  &verify->move.destination_tensors));
    move_poison(&verify->move);
    RETURN_IF_FAILED(banyan_copy_service_open(verify->move.world, verify->job->backend, NULL,
                                              &verify->move.service));
    return banyan_reshard_execute(verify->move.plan, mine->tensors,
                                  verify->move.destination_tensors, verify->move.service,
                                  verify->move.world, NULL, NULL);
}

static const DLTensor *verify_rank_tensor_named(const banyan_layout *layout,
                                                const banyan_tensors *tensors, const char *name)
{
    for (size_t i = 0; i < banyan_layout_tensor_count(layout); i++) {
        if (strcmp(banyan_layout_tensor(layout, i)->name, name) == 0)
            return banyan_tensors_get(tensors, i);
    }
    return NULL;
}

/* The n-th element of a slice, in row-major order. */
static const unsigned char *verify_rank_element_at(const DLTensor *tensor, const banyan_box *slice,
                                                   uint64_t n)
{
    int64_t index = 0, step = 1;
    for (int k = slice->ndim - 1; k >= 0; k--) {
        int64_t at = slice->start[k] + (int64_t)(n % (uint64_t)slice->extent[k]);
        index += at * (tensor->strides ? tensor->strides[k] : step);
        n /= (uint64_t)slice->extent[k];
        step *= tensor->shape[k];
    }
    return (const unsigned char *)tensor->data + tensor->byte_offset +
           (uint64_t)index * banyan_dtype_bytes(tensor->dtype);
}

static banyan_status compare_transfer(struct verify *verify,
                                      const banyan_megatron_transfer *transfer)
{
    RETURN_IF_FAILED(make_sender(verify, transfer->source_rank, NULL));
    const struct side *sender = &verify->senders[transfer->source_rank];
    const DLTensor *sent =
        verify_rank_tensor_named(sender->layout, sender->tensors, transfer->source_name);
    const DLTensor *received = verify_rank_tensor_named(
        verify->move.plain, verify->move.destination_tensors, transfer->destination_name);
    size_t elem_bytes = banyan_dtype_bytes(sent->dtype);
    if (banyan_dtype_bytes(received->dtype) != elem_bytes)
        return banyan_error_set(BANYAN_ERR_MISMATCH, "task %llu: %s has elements of %zu bytes",
                                (unsigned long long)transfer->task_id, transfer->destination_name,
                                banyan_dtype_bytes(received->dtype));
    uint64_t elems = banyan_box_elems(&transfer->destination_slice);
    for (uint64_t n = 0; n < elems; n++) {
        if (memcmp(verify_rank_element_at(sent, &transfer->source_slice, n),
                   verify_rank_element_at(received, &transfer->destination_slice, n),
                   elem_bytes) == 0)
            continue;
        char box[256];
        return banyan_error_set(
            BANYAN_ERR_CORRUPT, "rank %d: task %llu from rank %d: element %llu of %s%s is wrong",
            verify->move.rank, (unsigned long long)transfer->task_id, transfer->source_rank,
            (unsigned long long)n, transfer->destination_name,
            banyan_box_format(&transfer->destination_slice, box, sizeof box));
    }
    verify->elems += elems;
    return BANYAN_OK;
}

/* Every element of the destination is in exactly one transfer of the case. */
static banyan_status verify_rank_compare(struct verify *verify)
{
    uint64_t held = 0;
    for (size_t i = 0; i < banyan_megatron_case_transfer_count(verify->job->loaded); i++) {
        const banyan_megatron_transfer *transfer =
            banyan_megatron_case_transfer(verify->job->loaded, i);
        if (transfer->destination_rank == verify->move.rank)
            RETURN_IF_FAILED(compare_transfer(verify, transfer));
    }
    for (size_t i = 0; i < banyan_tensors_count(verify->move.destination_tensors); i++)
        held += move_tensor_elems(banyan_tensors_get(verify->move.destination_tensors, i));
    if (held != verify->elems)
        return banyan_error_set(BANYAN_ERR_INVALID,
                                "rank %d holds %llu elements, but the case's transfers give it "
                                "%llu",
                                verify->move.rank, (unsigned long long)held,
                                (unsigned long long)verify->elems);
    return BANYAN_OK;
}

static banyan_status verify_all(struct verify *verify)
{
    RETURN_IF_FAILED(banyan_world_open(NULL, &verify->move.world));
    size_t ranks = (size_t)banyan_world_size(verify->move.world);
    verify->senders = calloc(ranks, sizeof *verify->senders);
    if (!verify->senders)
        return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory for %zu ranks", ranks);
    RETURN_IF_FAILED(verify_rank_execute(verify));
    RETURN_IF_FAILED(verify_rank_compare(verify));
    verify->job->elems[verify->move.rank] = verify->elems;
    return banyan_world_barrier(verify->move.world);
}

static int verify_rank(int rank, void *context)
{
    const verify_job *job = context;
    struct verify verify = {.job = job, .move.rank = rank};
    banyan_status status = verify_all(&verify);
    for (int r = 0; verify.senders && r < banyan_world_size(verify.move.world); r++) {
        banyan_tensors_destroy(verify.senders[r].tensors);
        banyan_layout_destroy(verify.senders[r].layout);
    }
    free(verify.senders);
    return move_end(&verify.move, status, job->failed);
}

static uint64_t elements_of(const verify_job *job, int ranks)
{
    uint64_t total = 0;
    for (int rank = 0; rank < ranks; rank++)
        total += job->elems[rank];
    return total;
}

/* A case's line, or its object in `list`. */
static void report_failed(json_t *list, const char *name, const char *why)
{
    if (list)
        json_array_append_new(
            list, json_pack("{s:s, s:b, s:s}", "case", name, "passed", 0, "error", why));
    else
        printf("%s: failed: %s\n", name, why);
}

static void report_passed(json_t *list, const char *name, const verify_job *job, int ranks)
{
    char transfers[TEXT_NUMBER_BYTES], elems[TEXT_NUMBER_BYTES];
    size_t count = banyan_megatron_case_transfer_count(job->loaded);
    if (list)
        json_array_append_new(list, json_pack("{s:s, s:b, s:i, s:I, s:I}", "case", name, "passed",
                                              1, "ranks", ranks, "elements",
                                              (json_int_t)elements_of(job, ranks), "transfers",
                                              (json_int_t)count));
    else
        printf("%s: passed: %d ranks, %s elements as %s transfers give them\n", name, ranks,
               text_count(elements_of(job, ranks), elems), text_count(count, transfers));
}

/* Run the ranks; the error is in job->failed, or `why`. */
static bool verify_command_execute(verify_job *job, int ranks, const char **why,
                                   char text[FAILURE_TEXT_BYTES])
{
    launch_job launched = {.who = WHO,
                           .count = ranks,
                           .rank_main = verify_rank,
                           .context = job,
                           .ranks_explain = true};
    int code = launch_run(&launched);
    *why = failure_message(job->failed, text);
    if (code != 0 && !*why)
        *why = "a rank ended without a word";
    return !*why;
}

/* One file; `list` is NULL without --json. */
static bool verify_case(const char *path, const char *backend, json_t *list)
{
    verify_job job = {.backend = backend};
    char text[FAILURE_TEXT_BYTES];
    const char *why = NULL, *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (banyan_megatron_case_load(path, &job.loaded) != BANYAN_OK) {
        report_failed(list, name, banyan_last_error());
        return false;
    }
    int ranks = banyan_megatron_case_world_size(job.loaded);
    size_t bytes = (size_t)ranks * sizeof *job.elems;
    void *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    job.failed = failure_create();
    if (shared == MAP_FAILED || !job.failed) {
        why = "out of memory";
    } else if (ranks > LAUNCH_MAX_RANKS) {
        why = "it has more ranks than one machine is given";
    } else {
        job.elems = shared;
        verify_command_execute(&job, ranks, &why, text);
    }
    if (why)
        report_failed(list, name, why);
    else
        report_passed(list, name, &job, ranks);
    fflush(stdout);
    failure_destroy(job.failed);
    if (shared != MAP_FAILED)
        munmap(shared, bytes);
    banyan_megatron_case_destroy(job.loaded);
    return !why;
}

int verify_command(int argc, char **argv)
{
    const char *backend = NULL;
    bool json = false;
    const option_entry entries[] = {
        {"backend", '\0', OPTION_TEXT, &backend, "direct|pipeline|mpi", "copy backend", 0, 0},
        {"json", '\0', OPTION_FLAG, &json, NULL, "print one JSON object", 0, 0},
    };
    const option_table table = {
        WHO, "CASE.json… [options]",
        "Plan each case from the tensors of its ranks, in Megatron-Core's terms. Run all ranks\n"
        "as processes, and compare every destination element with the result of the case's own\n"
        "transfers. docs/layouts.md describes the format.\n",
        entries, sizeof(entries) / sizeof(entries[0])};
    int rest, passed = 0;
    options_result result = options_parse_anywhere(&table, argc, argv, &rest);
    if (result != OPTIONS_OK)
        return options_exit_code(result);
    if (rest == argc)
        return options_refuse(&table, "say which cases: CASE.json…");
    json_t *list = json ? json_array() : NULL;
    for (int i = rest; i < argc; i++)
        passed += verify_case(argv[i], backend, list);
    int failed = argc - rest - passed;
    if (!json)
        printf("%d passed, %d failed\n", passed, failed);
    else if (json_print(json_pack("{s:i, s:i, s:o}", "passed", passed, "failed", failed, "cases",
                                  list)) != BANYAN_OK)
        return options_refuse(&table, "%s", banyan_last_error());
    return failed == 0 ? 0 : 1;
}
