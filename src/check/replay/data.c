/* Replay operations on data: copying, packing, reducing, by a thread block or by a port channel. */
#include <string.h>

#include "check/replay/motion.h"

/* Limit of traces kept per packet; dropping some only loses order. */
#define TRACES_MOST 256

typedef struct data_move {
    motion motion;
    vector_clock *known; /* of the thread block, without the current packets */
    const plan_op *loop;
    buffer_view *views; /* those of sources, then those of destinations */
    uint32_t source_views, view_count;
    value_ref *values; /* of the sources */
    bool pads, missing;
    trace_list traces; /* of the current packets */
} data_move;

static bool data_make_views(data_move *m)
{
    replay *all = m->motion.all;
    const walker *by = m->motion.by;
    const plan_op *op = m->motion.op;
    const int *ranks;
    uint32_t count = 0;
    int room;
    for (uint32_t i = 0; i < plan_operand_count(op); i++)
        count += (uint32_t)plan_operand_ranks(all->plan, by->pos->rank, by->pos->block, op,
                                              plan_operand_at(op, i), &ranks, &room);
    m->views = malloc((count + 1) * sizeof *m->views);
    m->values = malloc((count + 1) * sizeof *m->values);
    if (!m->views || !m->values) {
        error_no_memory(count * sizeof *m->views, "an operation's operands");
        return false;
    }
    for (uint32_t i = 0; i < plan_operand_count(op); i++) {
        const plan_operand *operand = plan_operand_at(op, i);
        plan_where where =
            plan_operand_where(all->plan, by->pos->rank, by->pos->block, op, operand);
        int width = plan_operand_ranks(all->plan, by->pos->rank, by->pos->block, op, operand,
                                       &ranks, &room);
        for (int r = 0; r < width; r++) {
            m->views[m->view_count] =
                motion_view(all, ranks[r], where.buffer, plan_operand_is_packets(op, i),
                            all->ranks[by->pos->rank].run);
            m->views[m->view_count++].operand = i;
        }
        if (i < op->source_count)
            m->source_views = m->view_count;
    }
    return true;
}

static void data_free_views(data_move *m)
{
    free(m->views);
    free(m->values);
    array_free(&m->traces);
}

/* Find the cells under every view, from `first` on, that begin at `at` of the piece, and cut all to
 * the shortest. */
static bool lay_cells(data_move *m, const plan_piece *piece, uint64_t at, uint32_t first,
                      uint64_t *bytes)
{
    cell_list *cells = &m->motion.all->cells;
    uint64_t before;
    do {
        before = *bytes;
        for (uint32_t i = first; i < m->view_count; i++) {
            buffer_view *v = &m->views[i];
            uint64_t begin = v->place + piece->offsets[v->operand] + at, end;
            if (!space_cut(cells, v->in, begin + *bytes) ||
                !space_cell(cells, v->in, begin, &v->cell, &end))
                return false;
            *bytes = end - begin < *bytes ? end - begin : *bytes;
        }
    } while (*bytes < before);
    return true;
}

static void look_at(data_move *m, const plan_piece *piece, const buffer_view *v, uint64_t at,
                    uint64_t bytes)
{
    m->motion.at = piece->offsets[v->operand] + at;
    m->motion.bytes = bytes;
}

static banyan_status look_for_packets(void *context, const plan_piece *piece)
{
    data_move *m = context;
    for (uint32_t i = 0; i < m->source_views && !m->missing; i++) {
        buffer_view *v = &m->views[i];
        uint64_t at = v->place + piece->offsets[v->operand], end = at + piece->bytes;
        if (!v->packets)
            continue;
        if (!space_cut(&m->motion.all->cells, v->in, end))
            return BANYAN_ERR_NO_MEMORY;
        while (at < end && !m->missing) {
            if (!space_cell(&m->motion.all->cells, v->in, at, &v->cell, &at))
                return BANYAN_ERR_NO_MEMORY;
            m->missing = m->motion.all->cells.list.data[v->cell].generation < m->motion.generation;
        }
    }
    return BANYAN_OK;
}

static bool add_origin(data_move *m, uint32_t *made)
{
    replay *all = m->motion.all;
    origin_link new = {.instance = m->motion.instance};
    for (uint32_t i = 0; i < m->source_views && i < 2; i++) {
        uint32_t from = all->cells.list.data[m->views[i].cell].origin;
        *(i == 0 ? &new.first : &new.second) = from;
    }
    const origin_link *last = &all->origins.data[all->origins.count - 1];
    if (last->instance != new.instance || last->first != new.first || last->second != new.second) {
        if (!array_push(&all->origins, new))
            return false;
    }
    *made = (uint32_t)all->origins.count - 1;
    return true;
}

static bool data_combine(data_move *m, value_ref *value)
{
    uint32_t count = m->source_views;
    *value = count > 0 ? m->values[0] : (value_ref){VALUE_ZERO, 0};
    for (uint32_t i = 0; i < count && count > 1; i++) {
        if (m->values[i].id == VALUE_NOTHING) {
            *value = m->values[i];
            return true;
        }
    }
    return count <= 1 ||
           values_reduce(&m->motion.all->values, m->values, count, m->motion.op->reduce_op, value);
}

static bool add_traces(data_move *m, const cell *from)
{
    for (size_t i = 0; i < from->traces.count && m->traces.count < TRACES_MOST; i++) {
        space_trace one = from->traces.data[i];
        bool there = false;
        for (size_t k = 0; k < m->traces.count && !there; k++)
            there =
                m->traces.data[k].part == one.part && m->traces.data[k].position == one.position;
        if (!there && !array_push(&m->traces, one))
            return false;
    }
    return true;
}

/* Merge the clocks of the packets that these bytes come from: their writers, and the receivers of
 * packets made of them, come after them. */
static bool data_acquire_packets(data_move *m, vector_clock **known, vector_clock **carried)
{
    replay *all = m->motion.all;
    m->traces.count = 0;
    for (uint32_t i = 0; i < m->source_views; i++) {
        const cell *from = &all->cells.list.data[m->views[i].cell];
        if (!m->views[i].packets)
            continue;
        if (!vector_clock_add(&all->store, known, from->carried) ||
            (*carried && !vector_clock_add(&all->store, carried, from->carried)) ||
            !add_traces(m, from))
            return false;
    }
    return true;
}

static bool data_read_all(data_move *m, const plan_piece *piece, uint64_t at, uint64_t bytes)
{
    for (uint32_t i = 0; i < m->source_views; i++) {
        look_at(m, piece, &m->views[i], at, bytes);
        if (!motion_read(&m->motion, &m->views[i], &m->values[i]))
            return false;
    }
    return true;
}

static bool data_write_all(data_move *m, const plan_piece *piece, uint64_t at, uint64_t bytes,
                           value_ref value, uint32_t made)
{
    for (uint32_t i = m->source_views; i < m->view_count; i++) {
        const buffer_view *v = &m->views[i];
        if (m->pads && !v->packets)
            continue;
        look_at(m, piece, v, at, bytes);
        if (!motion_write(&m->motion, v, value, made))
            return false;
        m->motion.all->cells.list.data[v->cell].pad = m->pads;
    }
    return true;
}

static bool write_after_packets(data_move *m, const plan_piece *piece, uint64_t at, uint64_t bytes,
                                value_ref value, uint32_t made)
{
    vector_clock_store *store = &m->motion.all->store;
    motion before = m->motion;
    vector_clock *known = vector_clock_keep(m->known),
                 *carried = vector_clock_keep(m->motion.carried);
    bool written = data_acquire_packets(m, &known, &carried);
    m->motion.known = known;
    m->motion.carried = carried;
    m->motion.traces = &m->traces;
    written = written && data_write_all(m, piece, at, bytes, value, made);
    vector_clock_drop(store, known);
    vector_clock_drop(store, carried);
    m->motion = before;
    return written;
}

static bool move_cells(data_move *m, const plan_piece *piece, uint64_t at, uint64_t bytes)
{
    value_ref value = {VALUE_ZERO, 0};
    uint32_t made = 0;
    if (m->pads)
        return data_write_all(m, piece, at, bytes, value, made);
    if (!data_read_all(m, piece, at, bytes) || !data_combine(m, &value) || !add_origin(m, &made))
        return false;
    return write_after_packets(m, piece, at, bytes, value, made);
}

static banyan_status move_piece(void *context, const plan_piece *piece)
{
    data_move *m = context;
    uint64_t bytes;
    for (uint64_t at = 0; at < piece->bytes; at += bytes) {
        bytes = piece->bytes - at;
        if (!lay_cells(m, piece, at, m->pads ? m->source_views : 0, &bytes) ||
            !move_cells(m, piece, at, bytes))
            return BANYAN_ERR_NO_MEMORY;
        m->motion.position += bytes;
        if (m->motion.part != NOBODY && !m->pads)
            m->motion.all->parts.data[m->motion.part].bytes += bytes;
    }
    return BANYAN_OK;
}

static banyan_status data_cut(data_move *m, const plan_op *one, plan_piece_visit visit)
{
    replay *all = m->motion.all;
    walker *by = m->motion.by;
    return plan_geometry_cut(all->geometry, all->plan, by->pos->rank, by->pos->block, one, m->loop,
                             by->pos->iteration, visit, m);
}

static banyan_status data_pad(data_move *m, const plan_op *one)
{
    replay *all = m->motion.all;
    walker *by = m->motion.by;
    m->pads = true;
    return plan_geometry_pad(all->geometry, all->plan, by->pos->rank, by->pos->block, one, m->loop,
                             by->pos->iteration, move_piece, m);
}

static uint32_t generation_of(const replay *all, const walker *by, const plan_op *loop)
{
    bool rounds = all->geometry->scratch_stride < all->geometry->chunk_bytes;
    return all->ranks[by->pos->rank].run * all->flags + 1 +
           (rounds && loop ? (uint32_t)by->pos->iteration : 0);
}

/* A port's packets show the port's progress; packets that the block writes show their own. */
static bool data_begin_part(data_move *m, const plan_op *op, uint32_t number)
{
    replay *all = m->motion.all;
    const walker *by = m->motion.by;
    m->motion.part = NOBODY;
    if (!plan_op_writes_packets(op->kind) || op->channel_type == PLAN_PORT)
        return true;
    uint64_t before = chain_packet_parts(by->pos->block->ops, by->pos->at) + number;
    if (m->loop)
        before += chain_packet_parts(m->loop->ops, by->pos->inner);
    packet_part new = {
        .chain = all->chains.parts[by->pos->rank][by->pos->number] + (uint32_t)before,
        .time = block_time(all->ranks[by->pos->rank].run, (uint32_t)by->pos->iteration + 1)};
    m->motion.part = (uint32_t)all->parts.count;
    return array_push(&all->parts, new);
}

static uint32_t channel_number(const plan_op *op, uint32_t number)
{
    return number < op->channel_count ? number : op->channel_count - 1;
}

/* Leave the operation to a port channel, which executes it some time later. */
static void leave_to_port(data_move *m, const plan_op *op, uint32_t number, uint32_t *channel)
{
    replay *all = m->motion.all;
    const walker *by = m->motion.by;
    *channel = plan_channel_of(by->pos->block, op, op->channels[channel_number(op, number)]);
    m->motion.chain = all->chains.callers[by->pos->rank] + 1 +
                      all->plan->ranks[by->pos->rank].block_count + *channel;
    m->motion.time = all->ranks[by->pos->rank].port_times[*channel];
    /* No single thread executes two parts. */
    m->motion.position = (uint64_t)number << 48;
}

/* Attach a clock to packets: that of a relaxed signal. Packets of a port also show the port's
 * progress. */
static bool data_release_packets(data_move *m, const plan_op *op, uint32_t channel)
{
    replay *all = m->motion.all;
    vector_clock *carried;
    if (!plan_op_writes_packets(op->kind))
        return true;
    if (!walker_release(all, m->motion.by, true, &carried))
        return false;
    m->motion.carried = vector_clock_keep(carried);
    if (op->channel_type != PLAN_PORT)
        return true;
    uint32_t time = all->ranks[m->motion.by->pos->rank].port_times[channel]++;
    return vector_clock_add_one(&all->store, &m->motion.carried,
                                (vector_clock_entry){m->motion.chain, time, time});
}

static outcome play_part(replay *all, walker *by, const plan_op *op, const plan_op *loop,
                         uint32_t number)
{
    plan_op one = plan_op_part(op, number);
    uint32_t channel = 0;
    vector_clock *known;
    if (!walker_begin(all, by) || !walker_release(all, by, false, &known))
        return FAILED;
    data_move m = {.loop = loop,
                   .known = known,
                   .motion = {.all = all,
                              .by = by,
                              .op = &one,
                              .chain = by->chain,
                              .time = by->time,
                              .instance = by->instance,
                              .generation = generation_of(all, by, loop),
                              .known = known}};
    if (op->channel_type == PLAN_PORT)
        leave_to_port(&m, op, number, &channel);
    bool played = data_begin_part(&m, op, number) && data_release_packets(&m, op, channel) &&
                  data_make_views(&m) && data_cut(&m, &one, move_piece) == BANYAN_OK &&
                  data_pad(&m, &one) == BANYAN_OK;
    vector_clock_drop(&all->store, m.motion.carried);
    data_free_views(&m);
    return played ? DONE : FAILED;
}

static outcome wait_for_packets(replay *all, walker *by, const plan_op *op, const plan_op *loop)
{
    bool missing = false;
    for (uint32_t i = 0; i < plan_op_part_count(op) && !missing; i++) {
        plan_op one = plan_op_part(op, i);
        data_move m = {
            .loop = loop,
            .motion = {
                .all = all, .by = by, .op = &one, .generation = generation_of(all, by, loop)}};
        bool looked = data_make_views(&m) && data_cut(&m, &one, look_for_packets) == BANYAN_OK;
        data_free_views(&m);
        if (!looked)
            return FAILED;
        missing = m.missing;
    }
    return missing ? WAITS : DONE;
}

outcome replay_data(replay *all, walker *by, const plan_op *op)
{
    const plan_op *loop = plan_position_loop(by->pos);
    bool signals = op->kind == PLAN_PUT_WITH_SIGNAL || op->kind == PLAN_PUT_WITH_SIGNAL_AND_FLUSH;
    if (plan_op_reads_packets(op->kind)) {
        outcome come = wait_for_packets(all, by, op, loop);
        if (come != DONE)
            return come;
    }
    for (uint32_t i = 0; i < plan_op_part_count(op); i++) {
        if (play_part(all, by, op, loop, i) == FAILED)
            return FAILED;
        if (signals && replay_signal(all, by, op, channel_number(op, i), false) == FAILED)
            return FAILED;
    }
    if (!replay_note_data(all, by))
        return FAILED;
    return op->kind == PLAN_PUT_WITH_SIGNAL_AND_FLUSH ? replay_flush(all, by, op) : DONE;
}
