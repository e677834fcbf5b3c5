/* Positions of a step's operands, in bytes. */
#include <inttypes.h>

#include "channel/packet.h"
#include "execute/specialize/specialize.h"

struct piece_writer {
    const banyan_plan *plan;
    int rank;
    const plan_thread_block *block;
    const step *step;
    size_t elem_bytes;
    piece_words *words;
};

uint64_t specialized_place(const specialized_plan *of, const banyan_plan *plan, int rank,
                           plan_buffer buffer)
{
    bool block_of_output = plan->collective == BANYAN_ALLGATHER && buffer == PLAN_INPUT;
    bool block_of_input = plan->collective == BANYAN_REDUCESCATTER && buffer == PLAN_OUTPUT;
    return block_of_output || block_of_input ? (uint64_t)rank * of->bytes[buffer] : 0;
}

static banyan_status refuse_piece(const struct piece_writer *writer, const char *what, uint64_t is,
                                  size_t multiple)
{
    return error_set(BANYAN_ERR_INVALID,
                     "rank %d, thread block %" PRIu32 ", operation %" PRIu32 " (%s): %s %" PRIu64
                     ", which is not a multiple of %zu",
                     writer->rank, writer->block->id, writer->step->number,
                     plan_op_name(writer->step->whole->kind), what, is, multiple);
}

static banyan_status specialize_pieces_append(struct piece_writer *writer, const plan_piece *piece,
                                              uint64_t mark)
{
    const step *s = writer->step;
    if (!array_reserve(writer->words, step_piece_words(s)))
        return BANYAN_ERR_NO_MEMORY;
    uint64_t *to = &writer->words->data[writer->words->count];
    *to++ = piece->bytes | mark;
    uint32_t written = 0;
    for (uint32_t i = 0; i < plan_operand_count(s->op); i++) {
        bool packets = s->operands[written].packets;
        const int *ranks;
        int room;
        int count = plan_operand_ranks(writer->plan, writer->rank, writer->block, s->op,
                                       plan_operand_at(s->op, i), &ranks, &room);
        for (int r = 0; r < count; r++)
            to[written++] = packets ? packets_room(piece->offsets[i]) : piece->offsets[i];
    }
    writer->words->count += step_piece_words(s);
    return BANYAN_OK;
}

static banyan_status write_piece(void *context, const plan_piece *piece)
{
    struct piece_writer *writer = context;
    const step *s = writer->step;
    if (s->kind == STEP_COMBINE && piece->bytes % writer->elem_bytes != 0)
        return refuse_piece(writer, "the bytes of a piece are", piece->bytes, writer->elem_bytes);
    for (uint32_t i = 0; i < plan_operand_count(s->op); i++) {
        if (plan_operand_is_packets(s->op, i) && piece->offsets[i] % PACKET_DATA_BYTES != 0)
            return refuse_piece(writer, "its packets begin at byte", piece->offsets[i],
                                PACKET_DATA_BYTES);
    }
    return specialize_pieces_append(writer, piece, 0);
}

/* A pad's first packet may contain the last bytes of data. A pad is no longer than a chunk. */
static banyan_status write_pad(void *context, const plan_piece *piece)
{
    struct piece_writer *writer = context;
    const step *s = writer->step;
    uint32_t i = 0;
    while (!plan_operand_is_packets(s->op, i))
        i++;
    uint64_t shared = packets_room(piece->offsets[i]) / 2 - piece->offsets[i];
    if (shared >= piece->bytes)
        return BANYAN_OK;
    RETURN_IF_FAILED(specialize_pieces_append(writer, piece, STEP_PAD));
    writer->words->data[writer->words->count - step_piece_words(s)] -= shared;
    return BANYAN_OK;
}

banyan_status specialize_pieces(const specialized_plan *of, const banyan_plan *plan, int rank,
                                const plan_thread_block *block, const step *s, uint64_t iteration,
                                piece_words *words)
{
    struct piece_writer writer = {plan, rank, block, s, of->elem_bytes, words};
    RETURN_IF_FAILED(plan_geometry_cut(&of->geometry, plan, rank, block, s->op, s->loop, iteration,
                                       write_piece, &writer));
    return plan_geometry_pad(&of->geometry, plan, rank, block, s->op, s->loop, iteration, write_pad,
                             &writer);
}
