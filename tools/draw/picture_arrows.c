/* Find the arrows between steps: signals, semaphores, packets and data. */
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "draw/picture.h"

/* Larger scratch is not searched for packets. */
#define CHUNKS_MOST (UINT64_C(1) << 24)

static banyan_status picture_arrows_out_of_memory(void)
{
    return banyan_error_set(BANYAN_ERR_NO_MEMORY, "out of memory: arrows of a picture");
}

static banyan_status add_arrow(picture *of, picture_arrow_kind kind, size_t from, size_t to)
{
    RETURN_IF_FAILED(
        picture_grow((void **)&of->arrows, &of->arrow_room, of->arrow_count, sizeof *of->arrows));
    of->arrows[of->arrow_count++] = (picture_arrow){.kind = kind, .from = from, .to = to};
    return BANYAN_OK;
}

static const char *picture_arrows_text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static bool is_one_of(const char *name, const char *const *names)
{
    while (*names && strcmp(*names, name) != 0)
        names++;
    return *names != NULL;
}

/* The proxy executes operations of a port, if it has steps of its own. */
static bool picture_arrows_acts(const picture *of, size_t i)
{
    const picture_step *step = &of->steps[i];
    const json_t *op = picture_op_of(of, step);
    if (!op)
        return false;
    bool by_proxy = of->has_proxies &&
                    strcmp(picture_arrows_text_of(op, "channel_type"), "port") == 0 &&
                    strcmp(picture_arrows_text_of(op, "name"), "wait") != 0 &&
                    strcmp(picture_arrows_text_of(op, "name"), "flush") != 0;
    return by_proxy == step->proxy;
}

static bool picture_arrows_same_operation(const picture_step *a, const picture_step *b)
{
    return a->operation == b->operation && a->loop_operation == b->loop_operation &&
           a->iteration == b->iteration;
}

/* Choose one step for each execution of an operation: operations that wait for their transfers, and
 * those of a proxy, have several. To be freed; NULL without memory. */
static bool *find_actors(const picture *of)
{
    bool *actors = calloc(of->step_count, sizeof *actors);
    const picture_step **last_on = calloc(of->lane_count, sizeof(const picture_step *));
    for (size_t i = 0; actors && last_on && i < of->step_count; i++) {
        const picture_step *step = &of->steps[i], **last = &last_on[step->lane];
        if (!picture_arrows_acts(of, i))
            continue;
        actors[i] = !*last || !picture_arrows_same_operation(*last, step);
        *last = step;
    }
    if (!last_on) {
        free(actors);
        actors = NULL;
    }
    free(last_on);
    return actors;
}

/* One signal or wait. The k-th signal matches the k-th wait on the same counter. */
struct arrow_signal {
    int rank, type, number; /* of the signaller's channel or semaphore */
    bool waits;
    double at_s;
    size_t step;
};

struct messages {
    struct arrow_signal *data;
    size_t count, room;
};

enum { MEMORY, PORT, SEMAPHORE };

static banyan_status add_message(struct messages *all, const struct arrow_signal *added)
{
    RETURN_IF_FAILED(picture_grow((void **)&all->data, &all->room, all->count, sizeof *all->data));
    all->data[all->count++] = *added;
    return BANYAN_OK;
}

/* Return the peer's channel at the other end: the k-th from a to b is the k-th from b to a. */
static int other_end(const picture *of, int rank, const char *type, int channel, int peer)
{
    int before = 0, at = 0;
    for (int i = 0; i < channel; i++)
        before += picture_channel_peer(of, rank, type, i) == peer;
    for (int back; (back = picture_channel_peer(of, peer, type, at)) >= 0; at++) {
        if (back == rank && before-- == 0)
            return at;
    }
    return -1;
}

static banyan_status picture_arrows_add_channels(const picture *of, size_t i, bool waits,
                                                 struct messages *all)
{
    const picture_step *step = &of->steps[i];
    const json_t *op = picture_op_of(of, step);
    const char *type = picture_arrows_text_of(op, "channel_type");
    size_t count = json_array_size(json_object_get(op, "channel_ids"));
    for (size_t k = 0; k < count; k++) {
        struct arrow_signal signal = {.rank = step->rank,
                                      .type = strcmp(type, "port") == 0 ? PORT : MEMORY,
                                      .number = picture_channel_of(of, step, k),
                                      .waits = waits,
                                      .at_s = waits ? step->ended_s : step->began_s,
                                      .step = i};
        if (waits) {
            int peer = picture_channel_peer(of, step->rank, type, signal.number);
            signal.number = other_end(of, step->rank, type, signal.number, peer);
            signal.rank = peer;
        }
        RETURN_IF_FAILED(add_message(all, &signal));
    }
    return BANYAN_OK;
}

static banyan_status add_semaphores(const picture *of, size_t i, bool waits, struct messages *all)
{
    const picture_step *step = &of->steps[i];
    size_t k;
    json_t *id;
    json_array_foreach(json_object_get(picture_op_of(of, step), "semaphore_ids"), k, id)
    {
        struct arrow_signal signal = {.rank = step->rank,
                                      .type = SEMAPHORE,
                                      .number = (int)picture_number(id),
                                      .waits = waits,
                                      .at_s = waits ? step->ended_s : step->began_s,
                                      .step = i};
        RETURN_IF_FAILED(add_message(all, &signal));
    }
    return BANYAN_OK;
}

static banyan_status collect_step(const picture *of, size_t i, struct messages *all)
{
    static const char *const signals[] = {"signal", "rlxsignal", "pws", "pwsf", NULL};
    static const char *const waits[] = {"wait", "rlxwait", NULL};
    const char *name = picture_op_name(of, &of->steps[i]);
    if (is_one_of(name, signals) || is_one_of(name, waits))
        return picture_arrows_add_channels(of, i, is_one_of(name, waits), all);
    if (strcmp(name, "sem_release") == 0 || strcmp(name, "sem_acquire") == 0)
        return add_semaphores(of, i, strcmp(name, "sem_acquire") == 0, all);
    return BANYAN_OK;
}

static int compare_whom(const struct arrow_signal *a, const struct arrow_signal *b)
{
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    if (a->type != b->type)
        return a->type < b->type ? -1 : 1;
    return a->number < b->number ? -1 : a->number > b->number;
}

static int compare_messages(const void *a, const void *b)
{
    const struct arrow_signal *first = a, *second = b;
    int whom = compare_whom(first, second);
    if (whom != 0)
        return whom;
    if (first->waits != second->waits)
        return first->waits ? 1 : -1;
    if (first->at_s != second->at_s)
        return first->at_s < second->at_s ? -1 : 1;
    return first->step < second->step ? -1 : first->step > second->step;
}

/* Acquires that a semaphore's initial value serves wait for no release. */
static size_t picture_arrows_initially(const picture *of, const struct arrow_signal *signal)
{
    if (signal->type != SEMAPHORE)
        return 0;
    const json_t *rank = json_array_get(json_object_get(of->root, "gpus"), (size_t)signal->rank);
    const json_t *entry =
        json_array_get(json_object_get(rank, "semaphores"), (size_t)signal->number);
    return (size_t)picture_number(json_object_get(entry, "init_value"));
}

/* Join signals, from `first` on, with the waits behind them, up to `end`. */
static banyan_status join_messages(picture *of, const struct arrow_signal *first,
                                   const struct arrow_signal *end)
{
    const struct arrow_signal *wait = first, *signal = first;
    while (wait < end && !wait->waits)
        wait++;
    const struct arrow_signal *signals_end = wait;
    size_t skipped = picture_arrows_initially(of, first);
    if ((size_t)(end - wait) <= skipped)
        return BANYAN_OK;
    for (wait += skipped; wait < end && signal < signals_end; wait++, signal++) {
        if (of->steps[signal->step].lane != of->steps[wait->step].lane)
            RETURN_IF_FAILED(add_arrow(of, PICTURE_SIGNAL, signal->step, wait->step));
    }
    return BANYAN_OK;
}

static banyan_status picture_arrows_add_signals(picture *of, const bool *actors)
{
    struct messages all = {0};
    banyan_status status = BANYAN_OK;
    for (size_t i = 0; status == BANYAN_OK && i < of->step_count; i++)
        status = actors[i] ? collect_step(of, i, &all) : BANYAN_OK;
    if (status == BANYAN_OK && all.count > 0)
        qsort(all.data, all.count, sizeof *all.data, compare_messages);
    for (size_t i = 0, end; status == BANYAN_OK && i < all.count; i = end) {
        for (end = i; end < all.count && compare_whom(&all.data[i], &all.data[end]) == 0;)
            end++;
        status = join_messages(of, all.data + i, all.data + end);
    }
    free(all.data);
    return status;
}

/* The last writer of packets to each scratch chunk: chunk c of rank r is first[r] + c. */
struct packets {
    uint64_t *first;
    size_t *writer;
};

static banyan_status make_packets(const picture *of, struct packets *made)
{
    size_t r;
    json_t *rank;
    made->first = calloc((size_t)of->ranks + 1, sizeof *made->first);
    if (!made->first)
        return picture_arrows_out_of_memory();
    json_array_foreach(json_object_get(of->root, "gpus"), r, rank)
    {
        uint64_t chunks = picture_number(json_object_get(rank, "scratch_chunks"));
        if (chunks > CHUNKS_MOST || made->first[r] + chunks > CHUNKS_MOST)
            return BANYAN_OK;
        made->first[r + 1] = made->first[r] + chunks;
    }
    uint64_t all = made->first[of->ranks];
    made->writer = malloc((all + 1) * sizeof *made->writer);
    for (uint64_t i = 0; made->writer && i < all; i++)
        made->writer[i] = PICTURE_NONE;
    return made->writer ? BANYAN_OK : picture_arrows_out_of_memory();
}

static void write_chunks(const struct packets *all, const picture_operand *to, int rank, size_t i)
{
    for (uint64_t c = 0; c < to->size; c++)
        all->writer[all->first[rank] + to->index + c] = i;
}

static void write_packets(const picture *of, const struct packets *all, size_t i)
{
    const picture_step *step = &of->steps[i];
    size_t count = picture_operand_count(picture_op_of(of, step), false), k;
    for (size_t d = 0; d < count; d++) {
        picture_operand to = picture_operand_at(of, step, false, d);
        json_t *rank;
        if (!to.packets || to.buffer != 's')
            continue;
        if (!to.ranks)
            write_chunks(all, &to, to.rank, i);
        json_array_foreach(to.ranks, k, rank) write_chunks(all, &to, (int)picture_number(rank), i);
    }
}

static bool has_arrow_since(const picture *of, size_t first, size_t from)
{
    for (size_t a = first; a < of->arrow_count; a++) {
        if (of->arrows[a].from == from)
            return true;
    }
    return false;
}

static banyan_status read_packets(picture *of, const struct packets *all, size_t i)
{
    const picture_step *step = &of->steps[i];
    size_t count = picture_operand_count(picture_op_of(of, step), true), first = of->arrow_count;
    for (size_t s = 0; s < count; s++) {
        picture_operand from = picture_operand_at(of, step, true, s);
        for (uint64_t c = 0; from.packets && from.buffer == 's' && c < from.size; c++) {
            size_t writer = all->writer[all->first[from.rank] + from.index + c];
            if (writer != PICTURE_NONE && of->steps[writer].lane != step->lane &&
                !has_arrow_since(of, first, writer))
                RETURN_IF_FAILED(add_arrow(of, PICTURE_PACKETS, writer, i));
        }
    }
    return BANYAN_OK;
}

/* Packets are visible from the begin of their writer, and read at the end of the reader. */
struct moment {
    double at_s;
    bool reads;
    size_t step;
};

static int compare_moments(const void *a, const void *b)
{
    const struct moment *first = a, *second = b;
    if (first->at_s != second->at_s)
        return first->at_s < second->at_s ? -1 : 1;
    if (first->reads != second->reads)
        return first->reads ? -1 : 1;
    return first->step < second->step ? -1 : first->step > second->step;
}

static banyan_status follow_packets(picture *of, const bool *actors, const struct packets *all)
{
    struct moment *moments = malloc(2 * of->step_count * sizeof *moments);
    size_t count = 0;
    if (!moments)
        return picture_arrows_out_of_memory();
    for (size_t i = 0; i < of->step_count; i++) {
        if (!actors[i])
            continue;
        moments[count++] = (struct moment){of->steps[i].began_s, false, i};
        moments[count++] = (struct moment){of->steps[i].ended_s, true, i};
    }
    qsort(moments, count, sizeof *moments, compare_moments);
    banyan_status status = BANYAN_OK;
    for (size_t m = 0; m < count && status == BANYAN_OK; m++) {
        if (moments[m].reads)
            status = read_packets(of, all, moments[m].step);
        else
            write_packets(of, all, moments[m].step);
    }
    free(moments);
    return status;
}

static banyan_status add_packets(picture *of, const bool *actors)
{
    struct packets all = {0};
    banyan_status status = make_packets(of, &all);
    if (status == BANYAN_OK && all.writer)
        status = follow_packets(of, actors, &all);
    free(all.first);
    free(all.writer);
    return status;
}

static banyan_status add_data_of(picture *of, size_t i, const size_t *lanes, int rank, bool gets,
                                 size_t first)
{
    if (rank == of->steps[i].rank)
        return BANYAN_OK;
    size_t lane = lanes[rank];
    for (size_t a = first; a < of->arrow_count; a++) {
        if ((gets ? of->arrows[a].from : of->arrows[a].to) == lane &&
            of->arrows[a].kind == (gets ? PICTURE_GET : PICTURE_PUT))
            return BANYAN_OK;
    }
    return gets ? add_arrow(of, PICTURE_GET, lane, i) : add_arrow(of, PICTURE_PUT, i, lane);
}

static banyan_status add_data(picture *of, size_t i, const size_t *lanes, bool gets)
{
    const picture_step *step = &of->steps[i];
    size_t count = picture_operand_count(picture_op_of(of, step), gets), first = of->arrow_count;
    for (size_t n = 0; n < count; n++) {
        picture_operand operand = picture_operand_at(of, step, gets, n);
        size_t k;
        json_t *rank;
        if (operand.packets)
            continue;
        if (!operand.ranks)
            RETURN_IF_FAILED(add_data_of(of, i, lanes, operand.rank, gets, first));
        json_array_foreach(operand.ranks, k, rank)
            RETURN_IF_FAILED(add_data_of(of, i, lanes, (int)picture_number(rank), gets, first));
    }
    return BANYAN_OK;
}

static banyan_status add_all_data(picture *of, const bool *actors)
{
    size_t *lanes = calloc((size_t)of->ranks, sizeof *lanes);
    banyan_status status = lanes ? BANYAN_OK : picture_arrows_out_of_memory();
    for (size_t l = 0; lanes && l < of->lane_count; l++) {
        if (of->lanes[l].kind == PICTURE_BUFFERS)
            lanes[of->lanes[l].rank] = l;
    }
    for (size_t i = 0; status == BANYAN_OK && i < of->step_count; i++) {
        if (actors[i])
            status = add_data(of, i, lanes, true);
        if (actors[i] && status == BANYAN_OK)
            status = add_data(of, i, lanes, false);
    }
    free(lanes);
    return status;
}

static void picture_arrows_come_after(picture *of, size_t from, size_t to)
{
    picture_step *step = &of->steps[to];
    if (step->after == PICTURE_NONE || of->steps[from].ended_s > of->steps[step->after].ended_s)
        step->after = from;
}

static bool has_chains(const picture *of)
{
    for (size_t i = 0; i < of->step_count; i++) {
        if (of->steps[i].after != PICTURE_NONE)
            return true;
    }
    return false;
}

/* Choose the last end among the lane's previous step and the steps that this one waited for. */
static banyan_status add_chains(picture *of)
{
    size_t *last_on = malloc(of->lane_count * sizeof *last_on);
    if (!last_on)
        return picture_arrows_out_of_memory();
    for (size_t l = 0; l < of->lane_count; l++)
        last_on[l] = PICTURE_NONE;
    for (size_t i = 0; i < of->step_count; i++) {
        size_t *last = &last_on[of->steps[i].lane];
        if (*last != PICTURE_NONE)
            picture_arrows_come_after(of, *last, i);
        *last = i;
    }
    free(last_on);
    for (size_t a = 0; a < of->arrow_count; a++) {
        if (of->arrows[a].kind == PICTURE_SIGNAL || of->arrows[a].kind == PICTURE_PACKETS)
            picture_arrows_come_after(of, of->arrows[a].from, of->arrows[a].to);
    }
    return BANYAN_OK;
}

banyan_status picture_add_arrows(picture *of)
{
    bool *actors = find_actors(of);
    banyan_status status =
        actors ? picture_arrows_add_signals(of, actors) : picture_arrows_out_of_memory();
    if (status == BANYAN_OK)
        status = add_packets(of, actors);
    if (status == BANYAN_OK)
        status = add_all_data(of, actors);
    free(actors);
    if (status == BANYAN_OK && !of->timeless && !has_chains(of))
        status = add_chains(of);
    return status;
}
