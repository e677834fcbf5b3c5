/* Compare tensors with their copies. A warp compares a chunk of one tensor at a time. Dense
 * tensors, and rows of whole units, are read in units of 16 bytes; others element by element. */
#include "cuda/publish/view.cuh"

#define UNITS_IN_FLIGHT 4

/* Return a bit for each element of a unit that differs. */
template <typename element> BANYAN_DEVICE uint32_t differ(const uint4 &a, const uint4 &b)
{
    const uint32_t x[] = {a.x ^ b.x, a.y ^ b.y, a.z ^ b.z, a.w ^ b.w};
    uint32_t bits = 0;
    BANYAN_DEVICE_UNROLL
    for (int i = 0; i < 4; i++) {
        if (sizeof(element) == 1)
            bits |= (uint32_t)((x[i] & 0xff) != 0) << 4 * i |
                    (uint32_t)((x[i] & 0xff00) != 0) << (4 * i + 1) |
                    (uint32_t)((x[i] & 0xff0000) != 0) << (4 * i + 2) |
                    (uint32_t)((x[i] & 0xff000000) != 0) << (4 * i + 3);
        else if (sizeof(element) == 2)
            bits |= (uint32_t)((x[i] & 0xffff) != 0) << 2 * i | (uint32_t)((x[i] & 0xffff0000) != 0)
                                                                    << (2 * i + 1);
        else
            bits |= (uint32_t)(x[i] != 0) << i * 4 / (int)sizeof(element);
    }
    return bits;
}

/* Compare elements one by one, and update those that differ. */
static __device__ uint32_t compare_elements(const char *live, char *kept, uint32_t elem_bytes,
                                            uint64_t count)
{
    uint32_t bits = 0;
    for (uint64_t e = 0; e < count; e++, live += elem_bytes, kept += elem_bytes) {
        uint32_t differs = 0;
        for (uint32_t i = 0; i < elem_bytes; i++)
            differs |= (uint32_t)(live[i] ^ kept[i]);
        if (differs != 0) {
            move_element(kept, live, elem_bytes);
            bits |= 1u << e;
        }
    }
    return bits;
}

/* Write a unit's bits to the map. Units of fewer than 8 bits share a byte: their lanes' bits are
 * combined. All lanes of the warp take part. */
BANYAN_DEVICE void put_bits(unsigned char *map, uint64_t map_units, uint32_t each, uint64_t unit,
                            uint32_t bits, unsigned lane)
{
    if (each == 16) {
        if (unit < map_units)
            ((uint16_t *)map)[unit] = (uint16_t)bits;
        return;
    }
    unsigned sharing = 8 / each;
    bits <<= each * (lane % sharing);
    for (unsigned d = 1; d < sharing; d *= 2)
        bits |= __shfl_sync(ALL_LANES, bits, (int)(lane ^ d));
    if (lane % sharing == 0 && unit < map_units)
        map[unit / sharing] = (unsigned char)bits;
}

/* Update a lane's unit if it or its neighbour's differs: memory with error correction reads the
 * sectors that are written in part. All lanes of the warp take part. */
BANYAN_DEVICE void update_unit(char *kept, const uint4 &live, uint32_t bits, unsigned lane)
{
    if (bits | (uint32_t)__shfl_sync(ALL_LANES, bits, (int)(lane ^ 1)))
        *(uint4 *)kept = live;
}

/* A whole chunk of a dense tensor. */
template <typename element>
BANYAN_DEVICE uint32_t compare_dense(const changes_pair &pair, uint64_t first, unsigned lane)
{
    const char *live = pair.live.data + 16 * (first + lane);
    char *kept = pair.kept + 16 * (first + lane);
    unsigned char *map = pair.map;
    uint32_t changed = 0;
    for (uint32_t done = 0; done < CHANGES_CHUNK; done += CHANGES_WARP * UNITS_IN_FLIGHT) {
        uint4 a[UNITS_IN_FLIGHT], b[UNITS_IN_FLIGHT];
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < UNITS_IN_FLIGHT; k++)
            a[k] = banyan_device_load_once(live + 16 * (done + k * CHANGES_WARP));
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < UNITS_IN_FLIGHT; k++)
            b[k] = banyan_device_load_once(kept + 16 * (done + k * CHANGES_WARP));
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < UNITS_IN_FLIGHT; k++) {
            uint32_t bits = differ<element>(a[k], b[k]);
            update_unit(kept + 16 * (done + k * CHANGES_WARP), a[k], bits, lane);
            changed += (uint32_t)__popc(bits);
            put_bits(map, UINT64_MAX, 16 / sizeof(element), first + done + k * CHANGES_WARP + lane,
                     bits, lane);
        }
    }
    return changed;
}

/* Units of 16 bytes. Return the number of elements of this lane's units that differ. */
template <typename element>
BANYAN_DEVICE uint32_t compare_chunk(const changes_pair &pair, uint64_t chunk, unsigned lane)
{
    uint64_t first = chunk * CHANGES_CHUNK, full = pair.live.count;
    uint64_t end = first + CHANGES_CHUNK < pair.map_units ? first + CHANGES_CHUNK : pair.map_units;
    bool dense = pair.live.ndim <= 1;
    uint32_t changed = 0;
    if (dense && first + CHANGES_CHUNK <= full)
        return compare_dense<element>(pair, first, lane);
    for (; first < end; first += CHANGES_WARP * UNITS_IN_FLIGHT) {
        uint4 live[UNITS_IN_FLIGHT], kept[UNITS_IN_FLIGHT];
        BANYAN_DEVICE_UNROLL
        for (int k = 0; k < UNITS_IN_FLIGHT; k++) {
            uint64_t unit = first + (uint64_t)k * CHANGES_WARP + lane;
            live[k] = kept[k] = make_uint4(0, 0, 0, 0);
            if (unit >= full)
                continue;
            live[k] = banyan_device_load_once(dense ? pair.live.data + 16 * unit
                                                    : view_at(pair.live, unit));
            kept[k] = banyan_device_load_once(pair.kept + 16 * unit);
        }
        BANYAN_DEVICE_UNROLL
        for (int k = 0; k < UNITS_IN_FLIGHT; k++) {
            uint64_t unit = first + (uint64_t)k * CHANGES_WARP + lane;
            uint32_t bits = differ<element>(live[k], kept[k]);
            if (bits)
                *(uint4 *)(pair.kept + 16 * unit) = live[k];
            uint64_t rest = unit == full ? pair.elems - full * pair.unit_elems : 0;
            if (rest > 0) /* the elements of the last unit, which is not whole */
                bits = compare_elements(pair.live.data + 16 * unit, pair.kept + 16 * unit,
                                        sizeof(element), rest);
            changed += (uint32_t)__popc(bits);
            put_bits(pair.map, pair.map_units, pair.unit_elems, unit, bits, lane);
        }
    }
    return changed;
}

/* Units of one element. */
static __device__ uint32_t compare_chunk_of_elements(const changes_pair &pair, uint64_t chunk,
                                                     unsigned lane)
{
    uint64_t first = chunk * CHANGES_CHUNK;
    uint64_t end = first + CHANGES_CHUNK < pair.map_units ? first + CHANGES_CHUNK : pair.map_units;
    uint32_t changed = 0;
    for (; first < end; first += CHANGES_WARP) {
        uint64_t unit = first + lane;
        uint32_t bits = 0;
        if (unit < pair.elems)
            bits = compare_elements(view_at(pair.live, unit), pair.kept + unit * pair.elem_bytes,
                                    pair.elem_bytes, 1);
        changed += bits;
        put_bits(pair.map, pair.map_units, pair.unit_elems, unit, bits, lane);
    }
    return changed;
}

BANYAN_DEVICE uint32_t compare_any(const changes_pair &pair, uint64_t chunk, unsigned lane)
{
    if (!pair.wide)
        return compare_chunk_of_elements(pair, chunk, lane);
    switch (pair.elem_bytes) {
    case 1:
        return compare_chunk<uint8_t>(pair, chunk, lane);
    case 2:
        return compare_chunk<uint16_t>(pair, chunk, lane);
    case 4:
        return compare_chunk<uint32_t>(pair, chunk, lane);
    case 8:
        return compare_chunk<uint2>(pair, chunk, lane);
    default:
        return compare_chunk<uint4>(pair, chunk, lane);
    }
}

static __global__ void __launch_bounds__(CHANGES_THREADS_MAX, 4)
    find_changes(const __grid_constant__ changes_find_args args)
{
    unsigned lane = view_lane();
    uint64_t i = 0;
    for (uint64_t chunk = view_warp(); chunk < args.chunks; chunk += view_warps()) {
        i += view_find(args.pairs + i, args.count - i, &changes_pair::first_chunk, chunk);
        const changes_pair &pair = args.pairs[i];
        uint32_t changed = compare_any(pair, chunk - pair.first_chunk, lane);
        uint64_t all = warp_sum(changed, lane);
        if (lane == 0 && all > 0)
            banyan_device_take(args.changed + i, all);
    }
}

const void *changes_find_kernel(void)
{
    return DEVICE_KERNEL(find_changes, changes_find_args);
}

static __global__ void __launch_bounds__(CHANGES_THREADS_MAX)
    merge_maps(const __grid_constant__ changes_merge_args args)
{
    uint64_t all = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < args.words; i += all)
        args.into[i] |= args.from[i];
}

const void *changes_merge_kernel(void)
{
    return DEVICE_KERNEL(merge_maps, changes_merge_args);
}
