/* A rank's part of a run. Warps move tiles independently. Each has an equal part of every lane,
 * and begins with a different lane than its neighbours, so that all links are busy all the time. */
#include "cuda/copy/convert.cuh"
#include "cuda/copy/shift.cuh"
#include "cuda/copy/waiting.cuh"
#include "cuda/runtime/device.cuh"

#define UNITS_IN_FLIGHT 8

/* Usually the partner has arrived already. */
static __device__ __forceinline__ bool wait_for(const copy_args *run, const copy_lane *lane,
                                                bool finishing, uint64_t wanted)
{
    const uint64_t *counter = finishing ? lane->my_finished : lane->my_entered;
    if (banyan_device_load_acquire(counter) >= wanted)
        return true;
    waiter of = {run->shared, run->reports, run->timeout_ns,
                 report_what((uint32_t)lane->peer, finishing)};
    return wait_for_count(&of, counter, wanted);
}

/* A tile of a box: `units` units, whose positions follow from the inner dimensions and then
 * `step`. */
typedef struct tile {
    char *to;
    const char *from;
    char *scales;
    int64_t to_step, from_step, scale_step;
    const copy_dim *inner;
    unsigned inner_count, units;
    unsigned first; /* place in the dimension that is divided */
} tile;

static __device__ __forceinline__ tile tile_of(const copy_move *move, const copy_dim *dims,
                                               uint64_t number)
{
    const copy_dim *cut = dims + move->outer_count;
    uint64_t outer = number;
    unsigned first = 0, count = cut->extent;
    tile found;
    if (move->chunks > 1) {
        outer = number / move->chunks;
        first = (unsigned)(number - outer * move->chunks) * move->chunk;
        count = cut->extent - first < move->chunk ? cut->extent - first : move->chunk;
    }
    found.to = move->to + (int64_t)first * cut->to;
    found.from = move->from + (int64_t)first * cut->from;
    found.scales = move->scales + (int64_t)first * cut->scale;
    found.first = first;
    BANYAN_DEVICE_LOOP
    for (int i = move->outer_count - 1; i >= 0; i--) {
        uint64_t above = outer / dims[i].extent;
        int64_t index = (int64_t)(outer - above * dims[i].extent);
        found.to += index * dims[i].to;
        found.from += index * dims[i].from;
        found.scales += index * dims[i].scale;
        outer = above;
    }
    found.to_step = cut->to;
    found.from_step = cut->from;
    found.scale_step = cut->scale;
    found.inner = cut + 1;
    found.inner_count = move->inner_count;
    found.units = count * move->inner_units;
    return found;
}

/* Tiles [number, end) of a move. */
typedef struct tiles {
    const copy_args *run;
    const copy_move *move;
    uint64_t number, end;
    unsigned lane;
} tiles;

static __device__ __forceinline__ tile next_tile(tiles *of)
{
    return tile_of(of->move, of->run->dims + of->move->first_dim, of->number++);
}

/* One dimension of a unit's place. */
static __device__ __forceinline__ void place_in(const copy_dim *dim, unsigned *rest_of, int64_t *to,
                                                int64_t *from)
{
    unsigned above = *rest_of * dim->inverse >> COPY_INVERSE_SHIFT;
    unsigned index = *rest_of - above * dim->extent;
    *to += index * dim->to;
    *from += index * dim->from;
    *rest_of = above;
}

/* Return the address of a unit of the tile. `inner` is the number of dimensions if it is known at
 * compile time: these are kept in registers; -1: as many as the tile has. Then the loop stays one:
 * a kernel that is too long waits for its instructions. */
template <int inner>
static __device__ __forceinline__ void unit_place(const tile &of, const copy_dim *kept,
                                                  unsigned unit, int64_t *to, int64_t *from)
{
    int64_t at_to = 0, at_from = 0;
    unsigned rest_of = unit;
    if (inner < 0) {
        BANYAN_DEVICE_LOOP
        for (int i = (int)of.inner_count - 1; i >= 0; i--)
            place_in(of.inner + i, &rest_of, &at_to, &at_from);
    } else {
        BANYAN_DEVICE_UNROLL
        for (int i = inner - 1; i >= 0; i--)
            place_in(kept + i, &rest_of, &at_to, &at_from);
    }
    *to = at_to + rest_of * of.to_step;
    *from = at_from + rest_of * of.from_step;
}

/* Return the place of a unit in the fastest dimension. */
template <int inner>
static __device__ __forceinline__ unsigned place_in_run(const tile &of, unsigned unit)
{
    if (inner == 0)
        return of.first + unit;
    const copy_dim *run = of.inner + of.inner_count - 1;
    return unit - (unit * run->inverse >> COPY_INVERSE_SHIFT) * run->extent;
}

template <typename word, int inner>
static __device__ __forceinline__ void move_units(const tile &of, unsigned lane)
{
    copy_dim kept[inner > 0 ? inner : 1];
#pragma unroll
    for (int i = 0; i < inner; i++)
        kept[i] = of.inner[i];
    for (unsigned first = lane; first < of.units; first += COPY_WARP * UNITS_IN_FLIGHT) {
        word words[UNITS_IN_FLIGHT];
        int64_t to[UNITS_IN_FLIGHT], from;
#pragma unroll
        for (int k = 0; k < UNITS_IN_FLIGHT; k++) {
            unsigned unit = first + (unsigned)k * COPY_WARP;
            unit_place<inner>(of, kept, unit, &to[k], &from);
            if (unit < of.units)
                words[k] = load_word((const word *)(of.from + from));
        }
#pragma unroll
        for (int k = 0; k < UNITS_IN_FLIGHT; k++)
            if (first + (unsigned)k * COPY_WARP < of.units)
                banyan_device_store<word>(of.to + to[k], words[k]);
    }
}

template <typename word> static __device__ void move_tile(const tile &of, unsigned lane)
{
    switch (of.inner_count) {
    case 0:
        move_units<word, 0>(of, lane);
        break;
    case 1:
        move_units<word, 1>(of, lane);
        break;
    case 2:
        move_units<word, 2>(of, lane);
        break;
    default:
        move_units<word, -1>(of, lane);
        break;
    }
}

template <int inner, int count>
static __device__ __forceinline__ void cast_units(const tile &of, unsigned width, copy_cast cast,
                                                  unsigned lane)
{
    for (unsigned first = lane; first < of.units; first += COPY_WARP * count) {
        uint4 bits[count];
        int64_t to[count], from;
#pragma unroll
        for (int k = 0; k < count; k++) {
            unsigned unit = first + (unsigned)k * COPY_WARP;
            unit_place<inner>(of, of.inner, unit, &to[k], &from);
            if (unit < of.units && width > 1)
                bits[k] = load_four(of.from + from, cast);
            else if (unit < of.units)
                cast_one(of.to + to[k], of.from + from, cast);
        }
#pragma unroll
        for (int k = 0; k < count; k++)
            if (width > 1 && first + (unsigned)k * COPY_WARP < of.units)
                store_four(of.to + to[k], bits[k], cast);
    }
}

static __device__ __noinline__ void cast_tiles(tiles of)
{
    copy_cast cast = (copy_cast)of.move->cast;
    while (of.number < of.end) {
        tile next = next_tile(&of);
        if (next.inner_count > 0)
            cast_units<-1, 4>(next, of.move->width, cast, of.lane);
        else if (is_from_f32(cast))
            cast_units<0, 4>(next, of.move->width, cast, of.lane);
        else
            cast_units<0, 8>(next, of.move->width, cast, of.lane);
    }
}

/* The places of a block, as offsets from the tile's. */
struct block_place {
    int64_t to, from, scale;
};

static __device__ __forceinline__ block_place place_of_block(const tile &of, unsigned unit)
{
    block_place found = {0, 0, 0};
    BANYAN_DEVICE_LOOP
    for (int i = (int)of.inner_count - 1; i >= 0; i--) {
        const copy_dim *dim = of.inner + i;
        unsigned above = unit * dim->inverse >> COPY_INVERSE_SHIFT;
        unsigned index = unit - above * dim->extent;
        found.to += index * dim->to;
        found.from += index * dim->from;
        found.scale += index * dim->scale;
        unit = above;
    }
    found.to += unit * of.to_step;
    found.from += unit * of.from_step;
    found.scale += unit * of.scale_step;
    return found;
}

/* Where a step of a warp writes. */
enum { TO_ELEMENTS = 1, TO_SCALES = 2 };

/* Read 32 blocks at a time, as many at once as there are groups of lanes. Each lane then has one
 * block's maximum and computes its scale, and the lanes that share the block get it from there. Two
 * groups of 32 blocks are in flight if a value has two bytes. */
template <unsigned kind, int writes>
static __device__ __forceinline__ void quantize_shared(const tile &of, bool round_up, unsigned lane)
{
    const int lanes = sharing<kind>::lanes, groups = 8 / lanes;
    const unsigned blocks = COPY_WARP / lanes, block = lane / lanes, part = lane % lanes;
    const unsigned own = part * blocks + block; /* the unit of a group whose scale is this lane's */
    for (unsigned first = 0; first < of.units; first += COPY_WARP * groups) {
        uint4 bits[groups][lanes];
        block_place place[groups];
#pragma unroll
        for (int g = 0; g < groups; g++) {
            unsigned group = first + (unsigned)g * COPY_WARP;
            place[g] = place_of_block(of, group + own);
#pragma unroll
            for (int k = 0; k < lanes; k++) {
                int64_t from = __shfl_sync(WHOLE_WARP, place[g].from, (int)(lane - part) + k);
                bits[g][k] = make_uint4(0, 0, 0, 0);
                if (group + (unsigned)k * blocks + block < of.units)
                    bits[g][k] = load_word((const uint4 *)(of.from + from) + part);
            }
        }
#pragma unroll
        for (int g = 0; g < groups; g++) {
            unsigned group = first + (unsigned)g * COPY_WARP;
            bool is_easy;
            uint32_t scale = own_scale<kind>(bits[g], round_up, &is_easy);
            if ((writes & TO_SCALES) && group + own < of.units)
                banyan_device_store<uint8_t>(writes & TO_ELEMENTS ? of.scales + place[g].scale
                                                                  : of.to + place[g].to,
                                             (uint8_t)scale);
            if (!(writes & TO_ELEMENTS))
                continue;
            uint32_t factor = F32_POWER(E8M0_BIAS - (int)scale);
            bool all_easy = !__any_sync(WHOLE_WARP, !is_easy);
#pragma unroll
            for (int k = 0; k < lanes; k++) {
                int from_lane = (int)(lane - part) + k;
                char *to = of.to + __shfl_sync(WHOLE_WARP, place[g].to, from_lane);
                uint32_t by = __shfl_sync(WHOLE_WARP, factor, from_lane);
                bool is_whole = group + (unsigned)k * blocks + block < of.units;
                if (is_whole)
                    store_shared<kind>(to, part, bits[g][k], f32_of_bits(by));
            }
            if (all_easy)
                continue;
            for (int k = 0; k < lanes; k++) {
                int from_lane = (int)(lane - part) + k;
                char *to = of.to + __shfl_sync(WHOLE_WARP, place[g].to, from_lane);
                const char *from = of.from + __shfl_sync(WHOLE_WARP, place[g].from, from_lane);
                uint32_t hard = __shfl_sync(WHOLE_WARP, scale | (uint32_t)!is_easy << 8, from_lane);
                if (hard >> 8 && group + (unsigned)k * blocks + block < of.units)
                    quantize_hard(to + part * sharing<kind>::values, 1, from + 16 * part,
                                  sharing<kind>::bytes, sharing<kind>::values, kind, (uint8_t)hard);
            }
        }
    }
}

template <unsigned kind, int writes> static __device__ __noinline__ void quantize_tiles_as(tiles of)
{
    bool round_up = (of.move->cast & COPY_ROUND_UP) != 0;
    while (of.number < of.end)
        quantize_shared<kind, writes>(next_tile(&of), round_up, of.lane);
}

template <unsigned kind> static __device__ __forceinline__ void quantize_tiles_of(const tiles &of)
{
    if (of.move->cast & COPY_TO_BOTH)
        quantize_tiles_as<kind, TO_ELEMENTS | TO_SCALES>(of);
    else if (of.move->cast & COPY_TO_SCALES)
        quantize_tiles_as<kind, TO_SCALES>(of);
    else
        quantize_tiles_as<kind, TO_ELEMENTS>(of);
}

static __device__ __noinline__ void quantize_tiles_alone(tiles of)
{
    const copy_move *move = of.move;
    while (of.number < of.end) {
        tile next = next_tile(&of);
        for (unsigned unit = of.lane; unit < next.units; unit += COPY_WARP) {
            int64_t to, from;
            unit_place<-1>(next, next.inner, unit, &to, &from);
            quantize_block(next.to + to, next.from + from, move->to_step, move->from_step,
                           move->cast);
        }
    }
}

static __device__ __forceinline__ void quantize_tiles(const tiles &of)
{
    if (!(of.move->cast & COPY_SHARED))
        quantize_tiles_alone(of);
    else if (of.move->cast & COPY_FROM_F32)
        quantize_tiles_of<COPY_FROM_F32>(of);
    else if (of.move->cast & COPY_FROM_F16)
        quantize_tiles_of<COPY_FROM_F16>(of);
    else
        quantize_tiles_of<0>(of);
}

static __device__ char *element_of(const copy_walk_side *side, uint64_t elem)
{
    char *at = side->data;
    BANYAN_DEVICE_LOOP
    for (int i = (int)side->count - 1; i >= 0; i--) {
        uint64_t above = elem / side->extent[i];
        at += (int64_t)(elem - above * side->extent[i]) * side->stride[i];
        elem = above;
    }
    return at;
}

template <typename word>
static __device__ void walk_tile(const copy_walk *walk, uint64_t number, unsigned lane)
{
    uint64_t units = walk->elems * walk->elem_units, first = number * COPY_TILE_UNITS;
    uint64_t end = units - first < COPY_TILE_UNITS ? units : first + COPY_TILE_UNITS;
    for (uint64_t unit = first + lane; unit < end; unit += COPY_WARP) {
        uint64_t elem = unit / walk->elem_units, part = unit - elem * walk->elem_units;
        const word *from = (const word *)element_of(&walk->from, elem) + part;
        banyan_device_store<word>((word *)element_of(&walk->to, elem) + part, load_word(from));
    }
}

static __device__ __noinline__ void convert_walk_tiles(tiles of)
{
    const copy_move *move = of.move;
    const copy_walk *walk = of.run->walks + move->first_dim;
    uint64_t first = of.number * COPY_TILE_UNITS, most = of.end * COPY_TILE_UNITS;
    uint64_t end = walk->elems < most ? walk->elems : most;
    for (uint64_t elem = first + of.lane; elem < end; elem += COPY_WARP) {
        char *to = element_of(&walk->to, elem), *from = element_of(&walk->from, elem);
        if (move->cast & COPY_QUANTIZE)
            quantize_block(to, from, move->to_step, move->from_step, move->cast);
        else
            cast_one(to, from, (copy_cast)move->cast);
    }
}

static __device__ __forceinline__ void convert_tiles(const tiles &of)
{
    if (of.move->is_walk)
        convert_walk_tiles(of);
    else if (of.move->cast & COPY_QUANTIZE)
        quantize_tiles(of);
    else
        cast_tiles(of);
}

template <typename word> static __device__ __forceinline__ void move_tiles(tiles of)
{
    const copy_move *move = of.move;
    while (of.number < of.end) {
        if (move->is_walk)
            walk_tile<word>(of.run->walks + move->first_dim, of.number++, of.lane);
        else
            move_tile<word>(next_tile(&of), of.lane);
    }
}

#define WORDS_IN_FLIGHT 4

/* Move units that are aligned words of the destination, with the run's bytes in them. A word comes
 * from two aligned words of the source. Neither lies outside of the words that have bytes of the
 * run. The second one is usually the first one of the next lane. */
template <int inner>
static __device__ __forceinline__ void move_words(const tile &of, uint64_t run_bytes, unsigned lane)
{
    for (unsigned first = 0; first < of.units; first += COPY_WARP * WORDS_IN_FLIGHT) {
        uint4 low[WORDS_IN_FLIGHT], high[WORDS_IN_FLIGHT];
        char *to[WORDS_IN_FLIGHT];
        /* First byte, end, distance of the source, and whether `high` is not the next lane's. */
        uint32_t cut[WORDS_IN_FLIGHT];
#pragma unroll
        for (int k = 0; k < WORDS_IN_FLIGHT; k++) {
            unsigned unit = first + (unsigned)k * COPY_WARP + lane;
            int64_t at_to, at_from;
            unit_place<inner>(of, of.inner, unit, &at_to, &at_from);
            uint64_t before = 16 * (uint64_t)place_in_run<inner>(of, unit);
            uint64_t dest = (uint64_t)(uintptr_t)(of.to + at_to);
            uint64_t source = (uint64_t)(uintptr_t)(of.from + at_from);
            uint64_t skew = dest & 15, begin = source - before, end = begin + run_bytes;
            uint64_t word = source - skew; /* of the source, as far as it is in the run */
            bool is_used = unit < of.units && word < end;
            uint64_t lowest = begin & ~(uint64_t)15, highest = (end - 1) & ~(uint64_t)15;
            uint64_t one = word & ~(uint64_t)15, other = (word + 15) & ~(uint64_t)15;
            one = one < lowest ? lowest : one;
            other = other > highest ? highest : other;
            uint64_t next = __shfl_sync(WHOLE_WARP, is_used ? one : 1, (int)(lane + 1) % COPY_WARP);
            bool is_apart = lane == COPY_WARP - 1 || next != other;
            cut[k] = 0;
            to[k] = (char *)(uintptr_t)(dest - skew);
            low[k] = high[k] = make_uint4(0, 0, 0, 0);
            if (!is_used)
                continue;
            uint32_t from_byte = word < begin ? (uint32_t)(begin - word) : 0;
            uint32_t to_byte = end - word < 16 ? (uint32_t)(end - word) : 16;
            low[k] = load_word((const uint4 *)(uintptr_t)one);
            if (is_apart)
                high[k] = load_word((const uint4 *)(uintptr_t)other);
            cut[k] =
                from_byte | to_byte << 8 | (uint32_t)(word & 15) << 16 | (uint32_t)is_apart << 24;
        }
#pragma unroll
        for (int k = 0; k < WORDS_IN_FLIGHT; k++) {
            unsigned from_byte = cut[k] & 0xff, to_byte = cut[k] >> 8 & 0xff;
            uint4 next = make_uint4(__shfl_sync(WHOLE_WARP, low[k].x, (int)(lane + 1) % COPY_WARP),
                                    __shfl_sync(WHOLE_WARP, low[k].y, (int)(lane + 1) % COPY_WARP),
                                    __shfl_sync(WHOLE_WARP, low[k].z, (int)(lane + 1) % COPY_WARP),
                                    __shfl_sync(WHOLE_WARP, low[k].w, (int)(lane + 1) % COPY_WARP));
            if (to_byte == 0)
                continue;
            uint4 word = put_together(low[k], cut[k] >> 24 ? high[k] : next, cut[k] >> 16 & 15);
            if (to_byte - from_byte == 16)
                banyan_device_store<uint4>(to[k], word);
            else
                store_bytes(to[k], word, from_byte, to_byte);
        }
    }
}

static __device__ __noinline__ void move_run_tiles(tiles of)
{
    uint64_t run_bytes = of.move->run_bytes;
    while (of.number < of.end) {
        tile next = next_tile(&of);
        if (next.inner_count == 0)
            move_words<0>(next, run_bytes, of.lane);
        else
            move_words<-1>(next, run_bytes, of.lane);
    }
}

/* Apart from the loop that calls it, so that its registers are not that loop's. */
template <typename word> static __device__ __noinline__ void move_tiles_apart(tiles of)
{
    move_tiles<word>(of);
}

template <bool converts, typename word>
static __device__ __forceinline__ void move_tiles_as(const tiles &of)
{
    if (converts)
        move_tiles_apart<word>(of);
    else
        move_tiles<word>(of);
}

template <bool converts> static __device__ __forceinline__ void move_tiles_of(const tiles &of)
{
    switch (converts && of.move->cast != COPY_AS_IT_IS ? 0 : of.move->width) {
    case 0:
        if (converts)
            convert_tiles(of);
        break;
    case 16:
        if (converts && of.move->run_bytes > 0)
            move_run_tiles(of);
        else
            move_tiles_as<converts, uint4>(of);
        break;
    case 8:
        move_tiles_as<converts, uint2>(of);
        break;
    case 4:
        move_tiles_as<converts, uint32_t>(of);
        break;
    case 2:
        move_tiles_as<converts, uint16_t>(of);
        break;
    default:
        move_tiles_as<converts, uint8_t>(of);
        break;
    }
}

template <bool converts>
static __device__ void move_span(const copy_args *run, const copy_span *span, unsigned lane)
{
    const copy_move *move = run->moves + span->move;
    uint64_t number = span->tile, left = span->tiles;
    for (; left > 0; move++, number = 0) {
        uint64_t behind = move->tiles - number, count = left < behind ? left : behind;
        move_tiles_of<converts>(tiles{run, move, number, number + count, lane});
        left -= count;
    }
}

/* Check whether the partner has entered. All lanes of the warp get the result, and the ordering of
 * the acquire. */
static __device__ bool has_entered(const copy_args *run, const copy_lane *lane, bool wait,
                                   unsigned warp_lane)
{
    int entered = 1;
    if (!lane->runs)
        return true;
    if (warp_lane == 0) {
        uint64_t wanted = *lane->runs + 1;
        entered = wait ? wait_for(run, lane, false, wanted)
                       : banyan_device_load_acquire(lane->my_entered) >= wanted;
    }
    entered = __shfl_sync(0xffffffffu, entered, 0);
    __syncwarp();
    return entered != 0;
}

/* Move data for partners that have arrived first, then for the others as they arrive. */
template <bool converts> static __device__ void move_all(const copy_args *run)
{
    unsigned lane = threadIdx.x % COPY_WARP, count = run->lane_count;
    unsigned warps_a_block = blockDim.x / COPY_WARP;
    unsigned warp = blockIdx.x * warps_a_block + threadIdx.x / COPY_WARP;
    unsigned warps = gridDim.x * warps_a_block;
    uint64_t moved = 0;
    for (int wait = 0; wait < 2; wait++) {
        for (unsigned k = 0; k < count; k++) {
            unsigned i = (k + warp) % count;
            const copy_span *span = run->spans + (uint64_t)i * warps + warp;
            if ((moved >> i & 1) || span->tiles == 0)
                continue;
            if (has_entered(run, run->lanes + i, wait, lane)) {
                move_span<converts>(run, span, lane);
                moved |= (uint64_t)1 << i;
            } else if (wait) {
                return;
            }
        }
    }
}

static __device__ void signal_entered(const copy_args *run)
{
    for (unsigned i = threadIdx.x; i < run->lane_count; i += blockDim.x) {
        const copy_lane *lane = run->lanes + i;
        if (lane->runs)
            banyan_device_store_release(lane->their_entered, *lane->runs + 1);
    }
}

static __device__ void wait_for_partners(const copy_args *run)
{
    for (unsigned i = threadIdx.x; i < run->lane_count; i += blockDim.x)
        if (run->lanes[i].by_engine)
            wait_for(run, run->lanes + i, false, *run->lanes[i].runs + 1);
}

/* Called by the last thread block to arrive here, after all data that this rank moved is in
 * place. */
static __device__ void finish(const copy_args *run)
{
    if (banyan_device_load<uint32_t>(&run->shared->failed) != 0)
        return;
    for (unsigned i = threadIdx.x; i < run->lane_count; i += blockDim.x) {
        const copy_lane *lane = run->lanes + i;
        if (!lane->runs)
            continue;
        uint64_t number = *lane->runs + 1;
        banyan_device_store_release(lane->their_finished, number);
        if (!lane->receives || wait_for(run, lane, true, number))
            *lane->runs = number;
    }
    if (threadIdx.x == 0)
        run->shared->blocks_done = 0;
}

/* The kernel with conversions and runs is separate, since it needs more registers. */
template <bool converts>
static __global__ void __launch_bounds__(COPY_THREADS_MAX, 2)
    copy_kernel(const __grid_constant__ copy_args args)
{
    const copy_args *run = &args;
    if (banyan_device_load<uint32_t>(&run->shared->failed) != 0)
        return;
    if ((run->phases & COPY_ENTER) && blockIdx.x == 0)
        signal_entered(run);
    if (run->phases & COPY_WAIT)
        wait_for_partners(run);
    if (run->phases & COPY_MOVE)
        move_all<converts>(run);
    if (!(run->phases & COPY_FINISH))
        return;
    __syncthreads();
    int is_last = 0;
    if (threadIdx.x == 0)
        is_last = banyan_device_barrier(&run->shared->blocks_done, 1) + 1 == gridDim.x;
    if (__syncthreads_or(is_last))
        finish(run);
}

const void *copy_kernel_symbol(bool converts)
{
    return converts ? DEVICE_KERNEL(copy_kernel<true>, copy_args)
                    : DEVICE_KERNEL(copy_kernel<false>, copy_args);
}
