#include "copy/match/match.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/containers.h"
#include "core/error.h"

static strided_format mxfp8_format(uint32_t flags)
{
    if (flags & BANYAN_COPY_OP_SCALES)
        return flags & BANYAN_COPY_OP_OCP ? STRIDED_SCALES_OCP : STRIDED_SCALES_UP;
    return flags & BANYAN_COPY_OP_OCP ? STRIDED_E4M3_OCP : STRIDED_E4M3_UP;
}

banyan_status copy_op_view(const banyan_copy_op *op, bool is_send, strided_view *view)
{
    RETURN_IF_FAILED(strided_view_anywhere(&op->tensor, view));
    if (!is_send && (op->flags & BANYAN_COPY_OP_MXFP8))
        view->format = mxfp8_format(op->flags);
    else if (op->flags & (BANYAN_COPY_OP_CAST | BANYAN_COPY_OP_MXFP8))
        view->format = strided_format_of(op->tensor.dtype);
    return BANYAN_OK;
}

bool copy_views_fit(const strided_view *a, const strided_view *b)
{
    if (strided_is_scales(a->format))
        return !strided_is_mxfp8(b->format) && a->elems * STRIDED_BLOCK == b->elems;
    if (strided_is_scales(b->format))
        return copy_views_fit(b, a);
    if (a->elems != b->elems || (strided_is_mxfp8(a->format) && strided_is_mxfp8(b->format)))
        return false;
    if (a->format == STRIDED_BYTES || b->format == STRIDED_BYTES)
        return a->format == b->format && a->elem_bytes == b->elem_bytes;
    return true;
}

static void append_list(task_names *names, const char *format, va_list args)
{
    size_t room = sizeof names->text - names->used;
    int wrote = vsnprintf(names->text + names->used, room, format, args);
    if (wrote > 0)
        names->used += (size_t)wrote < room ? (size_t)wrote : room - 1;
}

static void __attribute__((format(printf, 2, 3))) append(task_names *names, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    append_list(names, format, args);
    va_end(args);
}

void task_names_add(task_names *names, uint64_t task_id, uint32_t part)
{
    if (names->count++ >= TASK_NAMES_MAX)
        return;
    if (names->used > 0)
        append(names, ", ");
    if (task_id == BANYAN_TASK_ID_NONE)
        append(names, "none");
    else
        append(names, "%" PRIu64, task_id);
    if (part != 0 && task_id != BANYAN_TASK_ID_NONE)
        append(names, "/%" PRIu32, part);
}

void task_names_explain(task_names *names, const char *format, ...)
{
    if (names->count > TASK_NAMES_MAX)
        return;
    va_list args;
    append(names, " (");
    va_start(args, format);
    append_list(names, format, args);
    va_end(args);
    append(names, ")");
}

const char *task_names_text(task_names *names)
{
    if (names->count > TASK_NAMES_MAX)
        append(names, " and %zu more", names->count - TASK_NAMES_MAX);
    return names->text;
}

int task_key_compare(const task_key *a, const task_key *b)
{
    RETURN_IF_UNEQUAL(a->peer, b->peer);
    RETURN_IF_UNEQUAL(a->task_id, b->task_id);
    if (a->task_id == BANYAN_TASK_ID_NONE)
        return COMPARE(a->op, b->op);
    return COMPARE(a->part, b->part);
}

static int compare_in_qsort(const void *a, const void *b)
{
    return task_key_compare(a, b);
}

size_t task_keys_sort(const banyan_copy_op *ops, size_t count, int only, int except, task_key *keys)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (only >= 0 ? ops[i].peer == only : ops[i].peer != except)
            keys[kept++] = (task_key){ops[i].peer, ops[i].task_id, ops[i].part, i};
    sort_elements(keys, kept, sizeof *keys, compare_in_qsort);
    return kept;
}

static banyan_status check_missing(const char *who, int rank, const banyan_copy_op *ops,
                                   size_t count, const char *verb)
{
    size_t missing = 0, first = 0;
    for (size_t i = count; i-- > 0;)
        if (ops[i].task_id == BANYAN_TASK_ID_NONE) {
            missing++;
            first = i;
        }
    if (missing == 0)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_MISMATCH,
                     "%s: rank %d %s %zu tensors without a task id, the first of them number %zu "
                     "in its list (peer: rank %d); %s cannot match by order",
                     who, rank, verb, missing, first, ops[first].peer, who);
}

static banyan_status check_twice(const char *who, int rank, const task_key *keys, size_t count,
                                 const char *verb)
{
    task_names twice = {0};
    for (size_t i = 1; i < count; i++)
        if (task_key_compare(&keys[i - 1], &keys[i]) == 0) {
            task_names_add(&twice, keys[i].task_id, keys[i].part);
            task_names_explain(&twice, "rank %d", keys[i].peer);
        }
    if (twice.count == 0)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_MISMATCH,
                     "%s: rank %d %s tasks more than once with the same rank: task ids %s", who,
                     rank, verb, task_names_text(&twice));
}

banyan_status copy_check_ids(const char *who, int rank, const banyan_copy_op *ops, size_t count,
                             bool is_send, bool by_order)
{
    const char *verb = is_send ? "sends" : "receives";
    if (count == 0)
        return BANYAN_OK;
    if (!by_order)
        RETURN_IF_FAILED(check_missing(who, rank, ops, count, verb));
    task_key *keys = malloc(count * sizeof *keys);
    if (!keys)
        return error_no_memory(count * sizeof *keys, "the ids of a batch");
    size_t kept = task_keys_sort(ops, count, -1, -1, keys);
    banyan_status status = check_twice(who, rank, keys, kept, verb);
    free(keys);
    return status;
}

/* Both sides' keys, sorted. */
typedef struct local_sides {
    task_key *sends, *recvs;
    size_t send_count, recv_count;
} local_sides;

static banyan_status check_sides(const char *who, int rank, const local_sides *sides)
{
    size_t lasts[] = {sides->send_count, sides->recv_count};
    const task_key *keys[] = {sides->sends, sides->recvs};
    const char *names[] = {"sends to", "receives from"};
    for (int side = 0; side < 2; side++) {
        size_t missing = 0;
        while (missing < lasts[side] &&
               keys[side][lasts[side] - 1 - missing].task_id == BANYAN_TASK_ID_NONE)
            missing++;
        if (missing > 0)
            return error_set(BANYAN_ERR_MISMATCH,
                             "%s: rank %d %s itself %zu tensors without a task id; moves to "
                             "oneself are matched by id",
                             who, rank, names[side], missing);
    }
    RETURN_IF_FAILED(check_twice(who, rank, sides->sends, sides->send_count, "sends"));
    return check_twice(who, rank, sides->recvs, sides->recv_count, "receives");
}

static banyan_status check_both_sides_there(const char *who, int rank, const local_sides *sides)
{
    task_names sent = {0}, received = {0};
    size_t i = 0, j = 0;
    while (i < sides->send_count || j < sides->recv_count) {
        const task_key *send = i < sides->send_count ? &sides->sends[i] : NULL;
        const task_key *recv = j < sides->recv_count ? &sides->recvs[j] : NULL;
        int order = !send ? 1 : !recv ? -1 : task_key_compare(send, recv);
        if (order < 0)
            task_names_add(&sent, send->task_id, send->part);
        if (order > 0)
            task_names_add(&received, recv->task_id, recv->part);
        i += order <= 0;
        j += order >= 0;
    }
    if (sent.count == 0 && received.count == 0)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_MISMATCH,
                     "%s: rank %d sends %zu tensors to itself and receives %zu from itself%s%s%s%s",
                     who, rank, sides->send_count, sides->recv_count,
                     sent.count ? "; only sent are task ids " : "", task_names_text(&sent),
                     received.count ? "; only received are task ids " : "",
                     task_names_text(&received));
}

static banyan_status match_local_check_sizes(const char *who, int rank, const local_sides *sides,
                                             const banyan_send_op *sends,
                                             const banyan_recv_op *recvs)
{
    task_names unequal = {0};
    for (size_t i = 0; i < sides->send_count; i++) {
        const task_key *key = &sides->sends[i];
        strided_view from, to;
        RETURN_IF_FAILED(copy_op_view(&sends[key->op], true, &from));
        RETURN_IF_FAILED(copy_op_view(&recvs[sides->recvs[i].op], false, &to));
        if (copy_views_fit(&from, &to))
            continue;
        task_names_add(&unequal, key->task_id, key->part);
        task_names_explain(&unequal,
                           "%" PRIu64 " elements of %zu bytes sent, %" PRIu64 " of %zu received",
                           from.elems, from.elem_bytes, to.elems, to.elem_bytes);
    }
    if (unequal.count == 0)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_MISMATCH,
                     "%s: rank %d sends and receives tensors of different sizes with itself: task "
                     "ids %s",
                     who, rank, task_names_text(&unequal));
}

static int match_local_compare_pairs(const void *a, const void *b)
{
    const banyan_copy_pair *left = a, *right = b;
    return COMPARE(left->send, right->send);
}

banyan_status banyan_copy_match_local(const char *who, int rank, const banyan_send_op *sends,
                                      size_t send_count, const banyan_recv_op *recvs,
                                      size_t recv_count, banyan_copy_pair *pairs,
                                      size_t *pair_count)
{
    size_t count = send_count + recv_count;
    task_key *keys = malloc((count > 0 ? count : 1) * sizeof *keys);
    if (!keys)
        return error_no_memory(count * sizeof *keys, "the ids of moves to oneself");
    local_sides sides = {.sends = keys, .recvs = keys + send_count};
    sides.send_count = task_keys_sort(sends, send_count, rank, -1, sides.sends);
    sides.recv_count = task_keys_sort(recvs, recv_count, rank, -1, sides.recvs);
    banyan_status status = check_sides(who, rank, &sides);
    if (status == BANYAN_OK)
        status = check_both_sides_there(who, rank, &sides);
    if (status == BANYAN_OK)
        status = match_local_check_sizes(who, rank, &sides, sends, recvs);
    if (status == BANYAN_OK) {
        for (size_t i = 0; i < sides.send_count; i++)
            pairs[i] = (banyan_copy_pair){sides.sends[i].op, sides.recvs[i].op};
        sort_elements(pairs, sides.send_count, sizeof *pairs, match_local_compare_pairs);
        *pair_count = sides.send_count;
    }
    free(keys);
    return status;
}
