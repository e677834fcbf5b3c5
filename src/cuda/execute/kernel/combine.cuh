/* Reductions of data, or with packets among the operands. */
#ifndef CUDA_EXECUTE_KERNEL_COMBINE_CUH
#define CUDA_EXECUTE_KERNEL_COMBINE_CUH

#include "cuda/execute/kernel/packets.cuh"

/* Sources that are read at the same time. */
#define COMBINE_BATCH 4

/* A unit of this many sources. Data, and absent sources, take the form of arrived packets. */
struct combine_batch {
    uint4 of[COMBINE_BATCH];

    /* Load the sources that have not arrived yet. */
    BANYAN_DEVICE_MEMBER void load(const block_run *run, block_places from, uint32_t first,
                                   uint64_t at, uint32_t bytes)
    {
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < COMBINE_BATCH; k++) {
            if (packets_have_come(of[k], run->flag))
                continue;
            if (from.is_packets(first + k)) {
                of[k] = packets_load(from[first + k] + 2 * at, bytes, run->flag);
            } else {
                uint2 data = banyan_device_load_unit(from[first + k] + at, bytes);
                of[k] = make_uint4(data.x, run->flag, data.y, run->flag);
            }
        }
    }
    /* False: the wait has failed. */
    BANYAN_DEVICE_MEMBER bool take(block_run *run, block_places from, uint32_t first, uint64_t at,
                                   uint32_t bytes)
    {
        block_wait wait = {};
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < COMBINE_BATCH; k++) {
            uint32_t flag = first + k < run->step->source_count ? 0 : run->flag;
            of[k] = make_uint4(0, flag, 0, flag);
        }
        for (;;) {
            uint32_t missing = COMBINE_BATCH;
            load(run, from, first, at, bytes);
            BANYAN_DEVICE_UNROLL
            for (int k = COMBINE_BATCH - 1; k >= 0; k--)
                missing = packets_have_come(of[k], run->flag) ? missing : k;
            if (missing == COMBINE_BATCH)
                break;
            if (!block_wait_on(run, &wait, first + missing, 0))
                return false;
        }
        block_wait_ends(&wait);
        return true;
    }
};

template <typename Element, banyan_device_op op>
BANYAN_DEVICE void combine_unit(block_run *run, block_places places, uint64_t at, uint32_t bytes)
{
    uint32_t sources = run->step->source_count, operands = block_operand_count(run->step);
    banyan_device_sums<Element> sums = {};
    BANYAN_DEVICE_LOOP
    for (uint32_t first = 0; first < sources; first += COMBINE_BATCH) {
        combine_batch batch = {};
        if (!batch.take(run, places, first, at, bytes))
            return;
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < COMBINE_BATCH; k++) {
            uint2 data = make_uint2(batch.of[k].x, batch.of[k].z);
            if (first + k == 0)
                sums.begin(data);
            else if (first + k < sources)
                sums.template add<op>(data);
        }
    }
    uint2 reduced = sums.end();
    BANYAN_DEVICE_LOOP
    for (uint32_t i = sources; i < operands; i++) {
        if (places.is_packets(i))
            packets_store(places[i] + 2 * at, reduced, bytes, run->flag);
        else
            banyan_device_store_unit(places[i] + at, reduced, bytes);
    }
}

/* Operands of any kind. */
template <typename Element, banyan_device_op op>
BANYAN_DEVICE bool combine_units(block_run run, block_pieces pieces)
{
    block_units units = block_find_units(pieces);
    BANYAN_DEVICE_LOOP
    for (; units.find() && !run.ended; units.next += block_threads()) {
        const uint64_t *piece = run.piece = units.pieces.at;
        if (piece[0] & ENGINE_PAD)
            run.ended = packets_pass_pad(run, piece, units.at(), units.bytes());
        else
            combine_unit<Element, op>(&run, block_places_of(piece, 0), units.at(), units.bytes());
    }
    return run.ended;
}

/* Data only, piece by piece. */
template <typename Element, banyan_device_op op>
BANYAN_DEVICE_RARE void combine_long(const engine_step *step, block_pieces pieces)
{
    BANYAN_DEVICE_LOOP
    for (; pieces.at < pieces.end; pieces.at += pieces.words) {
        block_places from = block_places_of(pieces.at, 0);
        block_places to = block_places_of(pieces.at, step->source_count);
        banyan_device_reduce_each<Element, op>(to, step->destination_count, from,
                                               step->source_count, pieces.at[0], block_thread(),
                                               block_threads());
    }
}

/* All pieces have one form, so the first decides. */
BANYAN_DEVICE bool combine_has_packets(const engine_step *step, const uint64_t *piece)
{
    uint64_t all = 0;
    BANYAN_DEVICE_LOOP
    for (uint32_t i = 0; i < block_operand_count(step); i++)
        all |= piece[1 + i];
    return all & KERNEL_PLACE_PACKETS;
}

template <typename Element, banyan_device_op op> BANYAN_DEVICE bool combine_operands(block_run run)
{
    block_pieces pieces = block_find_pieces(&run);
    if (pieces.at >= pieces.end || run.ended)
        return run.ended;
    if (combine_has_packets(run.step, pieces.at) || block_are_short(pieces))
        return combine_units<Element, op>(run, pieces);
    combine_long<Element, op>(run.step, pieces);
    return false;
}

/* Only sums are inlined: they are the operation that must be fast. */
template <typename Element, banyan_device_op op>
BANYAN_DEVICE_RARE bool combine_operands_apart(block_run run)
{
    return combine_operands<Element, op>(run);
}

template <typename Element> BANYAN_DEVICE bool combine_step(block_run run)
{
    switch (run.step->op) {
    case BANYAN_DEVICE_SUM:
        return combine_operands<Element, BANYAN_DEVICE_SUM>(run);
    case BANYAN_DEVICE_MIN:
        return combine_operands_apart<Element, BANYAN_DEVICE_MIN>(run);
    case BANYAN_DEVICE_MAX:
        return combine_operands_apart<Element, BANYAN_DEVICE_MAX>(run);
    default:
        return combine_operands_apart<Element, BANYAN_DEVICE_PROD>(run);
    }
}

#endif
