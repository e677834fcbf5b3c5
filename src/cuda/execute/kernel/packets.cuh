/* Steps that read or write packets. Each thread waits for its own. */
#ifndef CUDA_EXECUTE_KERNEL_PACKETS_CUH
#define CUDA_EXECUTE_KERNEL_PACKETS_CUH

#include "cuda/execute/kernel/block.cuh"

/* A thread takes 8 bytes of data at a time, in two adjacent packets. The last unit of a piece may
 * have fewer bytes, and needs only one packet for at most 4. Words are in packet order: data,
 * flag, data, flag. */

BANYAN_DEVICE uint4 packets_load(const char *from, uint32_t bytes, uint32_t flag)
{
    if (bytes > 4 && ((uintptr_t)from & 15) == 0)
        return banyan_device_load_packets(from);
    uint2 first = banyan_device_load_packet(from);
    uint2 second = bytes > 4 ? banyan_device_load_packet(from + 8) : make_uint2(0, flag);
    return make_uint4(first.x, first.y, second.x, second.y);
}

BANYAN_DEVICE void packets_store(char *to, uint2 data, uint32_t bytes, uint32_t flag)
{
    if (bytes > 4 && ((uintptr_t)to & 15) == 0) {
        banyan_device_packet16_write(to, data, flag);
        return;
    }
    banyan_device_packet8_write(to, data.x, flag);
    if (bytes > 4)
        banyan_device_packet8_write(to + 8, data.y, flag);
}

BANYAN_DEVICE bool packets_have_come(uint4 packets, uint32_t flag)
{
    return packets.y == flag && packets.w == flag;
}

/* Wait for a unit of one source. False: the wait has failed. */
BANYAN_DEVICE bool packets_wait(block_run *run, const char *from, uint32_t bytes, uint32_t index,
                                uint4 *unit)
{
    block_wait wait = {};
    for (;;) {
        *unit = packets_load(from, bytes, run->flag);
        if (packets_have_come(*unit, run->flag))
            break;
        if (!block_wait_on(run, &wait, index, 0))
            return false;
    }
    block_wait_ends(&wait);
    return true;
}

/* Behind the end of the message, empty packets are waited for and passed on like others. */
BANYAN_DEVICE_RARE bool packets_pass_pad(block_run run, const uint64_t *piece, uint64_t at,
                                         uint32_t bytes)
{
    block_places places = block_places_of(piece, 0);
    uint32_t sources = run.step->source_count, operands = block_operand_count(run.step);
    uint4 unwanted = {};
    BANYAN_DEVICE_LOOP
    for (uint32_t i = 0; i < operands; i++) {
        if (!places.is_packets(i))
            continue;
        char *packets = places[i] + 2 * at;
        if (i >= sources)
            packets_store(packets, make_uint2(0, 0), bytes, run.flag);
        else if (!packets_wait(&run, packets, bytes, i, &unwanted))
            break;
    }
    return run.ended;
}

BANYAN_DEVICE void packets_pack(const block_run *run, block_places places, uint64_t at,
                                uint32_t bytes)
{
    uint2 data = banyan_device_load_unit(places[0] + at, bytes);
    BANYAN_DEVICE_LOOP
    for (uint32_t i = 1; i <= run->step->destination_count; i++)
        packets_store(places[i] + 2 * at, data, bytes, run->flag);
}

/* Store to data, or to packets. */
BANYAN_DEVICE void packets_take(block_run *run, block_places places, uint64_t at, uint32_t bytes)
{
    uint4 unit = {};
    if (!packets_wait(run, places[0] + 2 * at, bytes, 0, &unit))
        return;
    BANYAN_DEVICE_LOOP
    for (uint32_t i = 1; i <= run->step->destination_count; i++) {
        if (places.is_packets(i))
            packets_store(places[i] + 2 * at, make_uint2(unit.x, unit.z), bytes, run->flag);
        else
            banyan_device_store_unit(places[i] + at, make_uint2(unit.x, unit.z), bytes);
    }
}

/* Units of a thread that are in flight at the same time, at a distance of a warp's lanes. */
#define PACKETS_UNITS 4
#define PACKETS_APART (8 * BANYAN_DEVICE_WARP)

/* Move whole units of one piece with aligned operands, to packets or to data. */
template <bool packs>
BANYAN_DEVICE_RARE bool packets_move_long(block_run run, const uint64_t *piece, uint64_t bytes)
{
    block_places places = block_places_of(piece, 0);
    const char *from = places[0];
    run.piece = piece;
    uint32_t thread = block_thread(), lane = thread % BANYAN_DEVICE_WARP;
    uint64_t at = 8 * (uint64_t)(PACKETS_UNITS * (thread - lane) + lane);
    BANYAN_DEVICE_LOOP
    for (; at < bytes; at += 8 * PACKETS_UNITS * (uint64_t)block_threads()) {
        uint4 units[PACKETS_UNITS] = {};
        block_wait wait = {};
        for (;;) {
            bool all = true;
            BANYAN_DEVICE_UNROLL
            for (int k = 0; k < PACKETS_UNITS; k++) {
                const char *unit = from + (packs ? 1 : 2) * (at + k * PACKETS_APART);
                if (at + k * PACKETS_APART >= bytes)
                    continue;
                if (packs) {
                    uint2 data = banyan_device_load<uint2>(unit);
                    units[k] = make_uint4(data.x, run.flag, data.y, run.flag);
                } else {
                    units[k] = banyan_device_load_packets(unit);
                }
            }
            BANYAN_DEVICE_UNROLL
            for (int k = 0; k < PACKETS_UNITS; k++)
                all &= at + k * PACKETS_APART >= bytes || packets_have_come(units[k], run.flag);
            if (all)
                break;
            if (!block_wait_on(&run, &wait, 0, 0))
                return true;
        }
        block_wait_ends(&wait);
        BANYAN_DEVICE_LOOP
        for (uint32_t i = 1; i <= run.step->destination_count; i++) {
            bool packets = places.is_packets(i);
            char *to = places[i];
            BANYAN_DEVICE_UNROLL
            for (int k = 0; k < PACKETS_UNITS; k++) {
                uint64_t unit = at + k * PACKETS_APART;
                if (unit < bytes && packets)
                    banyan_device_store_packets(to + 2 * unit, units[k]);
                else if (unit < bytes)
                    banyan_device_store<uint2>(to + unit, make_uint2(units[k].x, units[k].z));
            }
        }
    }
    return false;
}

BANYAN_DEVICE bool packets_is_long(const block_run *run, const uint64_t *piece)
{
    if ((piece[0] & (ENGINE_PAD | 7)) || piece[0] < 8 * PACKETS_UNITS * (uint64_t)block_threads())
        return false;
    block_places places = block_places_of(piece, 0);
    uint64_t addresses = 0;
    BANYAN_DEVICE_LOOP
    for (uint32_t i = 0; i < block_operand_count(run->step); i++)
        addresses |= (uintptr_t)places[i];
    return addresses % 16 == 0;
}

BANYAN_DEVICE bool packets_packs(const block_run *run)
{
    return run->step->kind == STEP_PACK || run->step->kind == STEP_POST_PACK;
}

BANYAN_DEVICE bool packets_units(block_run run, block_pieces pieces)
{
    block_units units = block_find_units(pieces);
    BANYAN_DEVICE_LOOP
    for (; units.find() && !run.ended; units.next += block_threads()) {
        const uint64_t *piece = run.piece = units.pieces.at;
        block_places places = block_places_of(piece, 0);
        if (piece[0] & ENGINE_PAD)
            run.ended = packets_pass_pad(run, piece, units.at(), units.bytes());
        else if (packets_packs(&run))
            packets_pack(&run, places, units.at(), units.bytes());
        else
            packets_take(&run, places, units.at(), units.bytes());
    }
    return run.ended;
}

/* Process long pieces one by one, and the rest together. True if the run has ended for this
 * thread. */
BANYAN_DEVICE bool packets_step(block_run run)
{
    block_pieces pieces = block_find_pieces(&run);
    BANYAN_DEVICE_LOOP
    for (; pieces.at < pieces.end && !run.ended && packets_is_long(&run, pieces.at);
         pieces.at += pieces.words)
        run.ended = packets_packs(&run) ? packets_move_long<true>(run, pieces.at, pieces.at[0])
                                        : packets_move_long<false>(run, pieces.at, pieces.at[0]);
    return run.ended || pieces.at >= pieces.end ? run.ended : packets_units(run, pieces);
}

#endif
