/* Check a planner case twice: the transfers that it lists, and those that Banyan plans. */
#include <string.h>

#include "reshard/layout/box.h"
#include "reshard/layout/layout.h"
#include "reshard/model/model.h"
#include "reshard/planner/sample.h"
#include "reshard/verify/check.h"

#define SLOT_BYTES (512 * 1024)

/* A rank's layouts, and its plan. */
typedef struct case_rank {
    banyan_layout *source, *destination;
    planner_result transfers;
} case_rank;

typedef struct case_check {
    const banyan_megatron_case *loaded;
    int rank_count, ranks_per_node; /* 0: one node */
    case_rank *ranks;
    banyan_reshard_report *report;
} case_check;

static banyan_status layouts_of(void *context, int rank, banyan_layout *source,
                                banyan_layout *destination)
{
    const case_check *check = context;
    RETURN_IF_FAILED(case_add_layout(check->loaded, rank, BANYAN_SOURCE, source));
    return case_add_layout(check->loaded, rank, BANYAN_DESTINATION, destination);
}

static banyan_status case_take_rank(void *context, int rank, planner_result *result)
{
    const case_check *check = context;
    check->ranks[rank].transfers = *result;
    return BANYAN_OK;
}

/* A case that the planner refuses has no plan to check. */
static banyan_status case_plan_case(case_check *check, const banyan_reshard_options *options)
{
    const banyan_reshard_sample_world world = {
        .world_size = check->rank_count,
        .layouts = layouts_of,
        .context = check,
        .ranks_per_node = check->ranks_per_node,
    };
    banyan_status status = planner_imagine(&world, options, case_take_rank, check);
    if (status == BANYAN_OK || status == BANYAN_ERR_NO_MEMORY)
        return status;
    return check_report_add(check->report, BANYAN_RESHARD_UNPLANNED, 0, "%s", banyan_last_error());
}

static banyan_status check_planned(case_check *check, bool each_rank_fetches, uint64_t slot_bytes)
{
    check_rank *all = alloc_zeroed((size_t)check->rank_count, sizeof *all, "the check of a case");
    RETURN_IF_NO_MEMORY(all);
    banyan_status status = BANYAN_OK;
    size_t found = banyan_reshard_report_count(check->report);
    for (int r = 0; r < check->rank_count && status == BANYAN_OK; r++) {
        const case_rank *of = &check->ranks[r];
        all[r] = (check_rank){r, of->source, of->destination, &of->transfers};
        status = check_rank_alone(&all[r], check->report);
    }
    if (status == BANYAN_OK)
        status = check_ranks_pair(all, check->rank_count, check->report);
    if (status == BANYAN_OK && check->ranks_per_node > 0 && !each_rank_fetches)
        status = check_nodes(all, check->rank_count, check->ranks_per_node, check->report);
    if (status == BANYAN_OK && banyan_reshard_report_count(check->report) == found)
        status = check_slots(all, check->rank_count, slot_bytes, check->report);
    free(all);
    return status;
}

/* A part of a slice of a local tensor that is a box of one global tensor. `place` is its position
 * in the slice, which starts at 0. */
static bool piece_in_slice(const banyan_piece *piece, const banyan_layout *layout,
                           const banyan_box *slice, banyan_box *place)
{
    int ndim = banyan_layout_tensor(layout, (size_t)piece->tensor)->ndim;
    banyan_box lies = piece_local_box(piece, ndim, &piece->box);
    if (!banyan_box_intersect(&lies, slice, place))
        return false;
    for (int d = 0; d < ndim; d++)
        place->start[d] -= slice->start[d];
    return true;
}

/* Return the index in the slice of the piece's global index 0. */
static int64_t offset_in_slice(const banyan_piece *piece, const banyan_box *slice, int d)
{
    int local = piece->dim_map[d];
    return piece->local_start[local] - piece->box.start[d] - slice->start[local];
}

/* True if equal places of both slices hold equal global elements. */
static bool same_elements(const banyan_piece *from, const banyan_box *source_slice,
                          const banyan_piece *to, const banyan_box *destination_slice)
{
    if (from->ndim != to->ndim || !check_names_fit(from, to))
        return false;
    for (int d = 0; d < to->ndim; d++)
        if (from->dim_map[d] != to->dim_map[d] ||
            offset_in_slice(from, source_slice, d) != offset_in_slice(to, destination_slice, d))
            return false;
    return true;
}

static int case_tensor_named(const banyan_layout *layout, const char *name)
{
    for (size_t i = 0; i < banyan_layout_tensor_count(layout); i++)
        if (strcmp(banyan_layout_tensor(layout, i)->name, name) == 0)
            return (int)i;
    return -1;
}

/* Count the elements of the slice that the transfer takes from the right place. */
static uint64_t right_elems(const case_check *check, const banyan_megatron_transfer *transfer)
{
    const banyan_layout *source = check->ranks[transfer->source_rank].source;
    const banyan_layout *destination = check->ranks[transfer->destination_rank].destination;
    int from = case_tensor_named(source, transfer->source_name);
    int to = case_tensor_named(destination, transfer->destination_name);
    uint64_t elems = 0;
    banyan_box there, here, both;
    for (size_t d = 0; d < banyan_layout_piece_count(destination); d++) {
        const banyan_piece *piece = banyan_layout_piece(destination, d);
        if (piece->tensor != to ||
            !piece_in_slice(piece, destination, &transfer->destination_slice, &here))
            continue;
        for (size_t s = 0; s < banyan_layout_piece_count(source); s++) {
            const banyan_piece *other = banyan_layout_piece(source, s);
            if (other->tensor == from &&
                piece_in_slice(other, source, &transfer->source_slice, &there) &&
                banyan_box_intersect(&here, &there, &both) &&
                same_elements(other, &transfer->source_slice, piece, &transfer->destination_slice))
                elems += banyan_box_elems(&both);
        }
    }
    return elems;
}

static banyan_status check_given_source(const case_check *check,
                                        const banyan_megatron_transfer *transfer)
{
    const banyan_box *from = &transfer->source_slice, *to = &transfer->destination_slice;
    uint64_t elems = banyan_box_elems(to);
    if (from->ndim == to->ndim &&
        memcmp(from->extent, to->extent, (size_t)to->ndim * sizeof *to->extent) == 0 &&
        right_elems(check, transfer) == elems)
        return BANYAN_OK;
    char sent[BOX_TEXT_BYTES], received[BOX_TEXT_BYTES];
    return check_report_add(check->report, BANYAN_RESHARD_SOURCE, transfer->destination_rank,
                            "task %llu moves %s of \"%s\" from rank %d, whose slice does not hold "
                            "the elements of %s of \"%s\"",
                            (unsigned long long)transfer->task_id,
                            banyan_box_format(from, sent, sizeof sent), transfer->source_name,
                            transfer->source_rank, banyan_box_format(to, received, sizeof received),
                            transfer->destination_name);
}

static int by_destination(const void *left, const void *right)
{
    const banyan_megatron_transfer *a = *(const banyan_megatron_transfer *const *)left;
    const banyan_megatron_transfer *b = *(const banyan_megatron_transfer *const *)right;
    RETURN_IF_UNEQUAL(a->destination_rank, b->destination_rank);
    return strcmp(a->destination_name, b->destination_name);
}

typedef struct given_transfers {
    const banyan_megatron_transfer **sorted; /* by destination */
    size_t count;
    banyan_box *boxes; /* scratch space for as many boxes */
} given_transfers;

static banyan_status check_given_tensor(const case_check *check, int rank,
                                        const banyan_local_tensor *tensor,
                                        const given_transfers *all)
{
    const banyan_megatron_transfer key = {.destination_rank = rank,
                                          .destination_name = tensor->name};
    const banyan_megatron_transfer *wanted = &key;
    size_t low = BISECT(i, 0, all->count, by_destination(&all->sorted[i], &wanted) < 0), count = 0;
    for (; low < all->count && by_destination(&all->sorted[low], &wanted) == 0; low++)
        all->boxes[count++] = all->sorted[low]->destination_slice;
    banyan_box whole = box_whole(tensor->ndim, tensor->shape);
    return check_cover(rank, tensor->name, &whole, all->boxes, count, check->report);
}

static banyan_status check_given_transfers(const case_check *check, given_transfers *all)
{
    for (size_t i = 0; i < all->count; i++) {
        all->sorted[i] = banyan_megatron_case_transfer(check->loaded, i);
        RETURN_IF_FAILED(check_given_source(check, all->sorted[i]));
    }
    qsort(all->sorted, all->count, sizeof *all->sorted, by_destination);
    for (int r = 0; r < check->rank_count; r++) {
        const banyan_layout *layout = check->ranks[r].destination;
        for (size_t i = 0; i < banyan_layout_tensor_count(layout); i++)
            RETURN_IF_FAILED(check_given_tensor(check, r, banyan_layout_tensor(layout, i), all));
    }
    return BANYAN_OK;
}

static banyan_status check_given(case_check *check)
{
    given_transfers all = {.count = banyan_megatron_case_transfer_count(check->loaded)};
    all.sorted = calloc(all.count + 1, sizeof *all.sorted);
    all.boxes = calloc(all.count + 1, sizeof *all.boxes);
    check->report->subject = "as listed in the case";
    banyan_status status = BANYAN_OK;
    if (all.sorted && all.boxes)
        status = check_given_transfers(check, &all);
    else
        status = error_no_memory(all.count * sizeof *all.boxes, "the check of a case");
    free(all.boxes);
    free(all.sorted);
    return status;
}

static void free_ranks(case_check *check)
{
    for (int r = 0; check->ranks && r < check->rank_count; r++) {
        banyan_layout_destroy(check->ranks[r].source);
        banyan_layout_destroy(check->ranks[r].destination);
        planner_result_free(&check->ranks[r].transfers);
    }
    free(check->ranks);
}

static banyan_status make_ranks(case_check *check)
{
    RETURN_IF_NO_MEMORY(check->ranks = alloc_zeroed((size_t)check->rank_count, sizeof *check->ranks,
                                                    "the check of a case"));
    for (int r = 0; r < check->rank_count; r++) {
        case_rank *of = &check->ranks[r];
        RETURN_IF_FAILED(banyan_layout_create(&of->source));
        RETURN_IF_FAILED(banyan_layout_create(&of->destination));
        RETURN_IF_FAILED(layouts_of(check, r, of->source, of->destination));
    }
    RETURN_IF_FAILED(check_report_create(&check->report));
    if (check->ranks_per_node > 0)
        check->report->nodes = (check->rank_count - 1) / check->ranks_per_node + 1;
    return BANYAN_OK;
}

static banyan_status check_case(case_check *check, const banyan_reshard_options *options,
                                uint64_t slot_bytes)
{
    RETURN_IF_FAILED(make_ranks(check));
    RETURN_IF_FAILED(check_given(check));
    check->report->subject = "as planned";
    RETURN_IF_FAILED(case_plan_case(check, options));
    if (check->report->counts[BANYAN_RESHARD_UNPLANNED] > 0)
        return BANYAN_OK;
    bool each_rank_fetches = options && options->each_rank_fetches;
    return check_planned(check, each_rank_fetches, slot_bytes ? slot_bytes : SLOT_BYTES);
}

banyan_status banyan_reshard_case_check(const banyan_megatron_case *loaded,
                                        const banyan_reshard_options *options, int ranks_per_node,
                                        uint64_t slot_bytes, banyan_reshard_report **report)
{
    if (ranks_per_node < 0)
        return error_set(BANYAN_ERR_INVALID, "a node of %d ranks", ranks_per_node);
    case_check check = {.loaded = loaded,
                        .rank_count = banyan_megatron_case_world_size(loaded),
                        .ranks_per_node = ranks_per_node};
    banyan_status status = check_case(&check, options, slot_bytes);
    free_ranks(&check);
    if (status == BANYAN_OK)
        *report = check.report;
    else
        banyan_reshard_report_destroy(check.report);
    return status;
}
