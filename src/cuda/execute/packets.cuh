/* Steps that read or write packets. Each thread waits for its own. */
#ifndef CUDA_EXECUTE_PACKETS_CUH
#define CUDA_EXECUTE_PACKETS_CUH

#include "cuda/execute/block.cuh"

/* A thread takes 8 bytes of data at a time, in two packets side by side; the last of a piece may
 * have fewer, and one packet then when they are 4 at most. Words as packets have them: data, flag,
 * data, flag. */

BANYAN_DEVICE uint32_t unit_bytes(uint64_t at, uint64_t bytes)
{
    return bytes - at < 8 ? (uint32_t)(bytes - at) : 8;
}

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

/* Units of a thread that are on their way at the same time, a warp's lanes apart. */
template <int UNITS> struct packets_units {
    enum { APART = UNITS > 1 ? BANYAN_DEVICE_WARP : 1 };
    uint4 of[UNITS];

    static BANYAN_DEVICE_MEMBER uint64_t first(void)
    {
        return 8 * (uint64_t)(UNITS * (block_thread() / APART * APART) + block_thread() % APART);
    }
    static BANYAN_DEVICE_MEMBER uint64_t stride(void)
    {
        return 8 * (uint64_t)(UNITS * block_threads());
    }
    /* False: the wait has ended in vain. */
    BANYAN_DEVICE_MEMBER bool wait(block_run *run, const char *from, uint64_t at, uint64_t bytes,
                                   uint32_t index)
    {
        block_wait wait = {};
        for (;;) {
            bool all = true;
            BANYAN_DEVICE_UNROLL
            for (int k = 0; k < UNITS; k++) {
                uint64_t unit = at + 8 * k * APART;
                if (unit < bytes)
                    of[k] = packets_load(from + 2 * unit, unit_bytes(unit, bytes), run->flag);
            }
            BANYAN_DEVICE_UNROLL
            for (int k = 0; k < UNITS; k++)
                all &= at + 8 * k * APART >= bytes || packets_have_come(of[k], run->flag);
            if (all)
                break;
            if (!block_wait_on(run, &wait, index, 0))
                return false;
        }
        block_wait_ends(&wait);
        return true;
    }
};

/* ---- behind the end of the message ---- */

/* Packets of nothing are waited for and passed on like others. */
BANYAN_DEVICE void packets_pass_pad(block_run *run, const uint64_t *piece)
{
    uint64_t bytes = piece[0] & ~ENGINE_PAD;
    block_places places = block_places_of(run->step, piece, 0);
    uint32_t sources = run->step->source_count, operands = block_operand_count(run->step);
    packets_units<1> unwanted = {};
    BANYAN_DEVICE_LOOP
    for (uint64_t at = unwanted.first(); at < bytes; at += unwanted.stride()) {
        BANYAN_DEVICE_LOOP
        for (uint32_t i = 0; i < sources; i++) {
            if (places.is_packets(i) && !unwanted.wait(run, places[i], at, bytes, i))
                return;
        }
        BANYAN_DEVICE_LOOP
        for (uint32_t i = sources; i < operands; i++) {
            if (places.is_packets(i))
                packets_store(places[i] + 2 * at, make_uint2(0, 0), unit_bytes(at, bytes),
                              run->flag);
        }
    }
}

/* ---- data to packets, and back ---- */

template <int UNITS> BANYAN_DEVICE void packets_pack(const block_run *run, const uint64_t *piece)
{
    typedef packets_units<UNITS> units;
    uint64_t bytes = piece[0];
    block_places places = block_places_of(run->step, piece, 0);
    const char *from = places[0];
    BANYAN_DEVICE_LOOP
    for (uint64_t at = units::first(); at < bytes; at += units::stride()) {
        uint2 data[UNITS] = {};
        BANYAN_DEVICE_UNROLL
        for (int k = 0; k < UNITS; k++) {
            uint64_t unit = at + 8 * k * units::APART;
            if (unit < bytes)
                data[k] = banyan_device_load_unit(from + unit, unit_bytes(unit, bytes));
        }
        BANYAN_DEVICE_LOOP
        for (uint32_t i = 1; i <= run->step->destination_count; i++) {
            char *to = places[i];
            BANYAN_DEVICE_UNROLL
            for (int k = 0; k < UNITS; k++) {
                uint64_t unit = at + 8 * k * units::APART;
                if (unit < bytes)
                    packets_store(to + 2 * unit, data[k], unit_bytes(unit, bytes), run->flag);
            }
        }
    }
}

/* To data, or to packets again. */
template <int UNITS> BANYAN_DEVICE void packets_take(block_run *run, const uint64_t *piece)
{
    packets_units<UNITS> units = {};
    uint64_t bytes = piece[0];
    block_places places = block_places_of(run->step, piece, 0);
    BANYAN_DEVICE_LOOP
    for (uint64_t at = units.first(); at < bytes; at += units.stride()) {
        if (!units.wait(run, places[0], at, bytes, 0))
            return;
        BANYAN_DEVICE_LOOP
        for (uint32_t i = 1; i <= run->step->destination_count; i++) {
            char *to = places[i];
            bool packets = places.is_packets(i);
            BANYAN_DEVICE_UNROLL
            for (int k = 0; k < UNITS; k++) {
                uint64_t unit = at + 8 * k * units.APART;
                uint2 data = make_uint2(units.of[k].x, units.of[k].z);
                if (unit < bytes && packets)
                    packets_store(to + 2 * unit, data, unit_bytes(unit, bytes), run->flag);
                else if (unit < bytes)
                    banyan_device_store_unit(to + unit, data, unit_bytes(unit, bytes));
            }
        }
    }
}

#define PACKETS_UNITS 4

BANYAN_DEVICE void packets_piece(block_run *run, const uint64_t *piece)
{
    bool packs = run->step->kind == STEP_PACK || run->step->kind == STEP_POST_PACK;
    bool few = (piece[0] & ~ENGINE_PAD) <= 8 * (uint64_t)block_threads();
    if (piece[0] & ENGINE_PAD)
        packets_pass_pad(run, piece);
    else if (packs)
        few ? packets_pack<1>(run, piece) : packets_pack<PACKETS_UNITS>(run, piece);
    else
        few ? packets_take<1>(run, piece) : packets_take<PACKETS_UNITS>(run, piece);
}

/* Steps are functions of their own, so that each has all registers; what they return is whether the
 * run has ended for this thread. */
BANYAN_DEVICE bool packets_step(block_run run)
{
    block_pieces pieces = block_find_pieces(&run);
    BANYAN_DEVICE_LOOP
    for (; pieces.at < pieces.end && !run.ended; pieces.at += pieces.words)
        packets_piece(&run, pieces.at);
    return run.ended;
}

#endif
