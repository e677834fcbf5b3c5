/* A rank's part of a run. Warps move tiles independently. Each has an equal part of every lane,
 * and begins with a different lane than its neighbours, so that all links are busy all the time. */
#include "cuda/copy/convert.cuh"
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
    int64_t to_step, from_step;
    const copy_dim *inner;
    unsigned inner_count, units;
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
    for (int i = move->outer_count - 1; i >= 0; i--) {
        uint64_t above = outer / dims[i].extent;
        int64_t index = (int64_t)(outer - above * dims[i].extent);
        found.to += index * dims[i].to;
        found.from += index * dims[i].from;
        outer = above;
    }
    found.to_step = cut->to;
    found.from_step = cut->from;
    found.inner = cut + 1;
    found.inner_count = move->inner_count;
    found.units = count * move->inner_units;
    return found;
}

/* Return the address of a unit of the tile. `inner` is the number of dimensions if it is known at
 * compile time: these are kept in registers; -1: as many as the tile has. */
template <int inner>
static __device__ __forceinline__ void unit_place(const tile &of, const copy_dim *kept,
                                                  unsigned unit, int64_t *to, int64_t *from)
{
    int64_t at_to = 0, at_from = 0;
    unsigned rest_of = unit;
    int count = inner < 0 ? (int)of.inner_count : inner;
    const copy_dim *dims = inner < 0 ? of.inner : kept;
#pragma unroll
    for (int i = count - 1; i >= 0; i--) {
        unsigned above = rest_of * dims[i].inverse >> COPY_INVERSE_SHIFT;
        unsigned index = rest_of - above * dims[i].extent;
        at_to += index * dims[i].to;
        at_from += index * dims[i].from;
        rest_of = above;
    }
    *to = at_to + rest_of * of.to_step;
    *from = at_from + rest_of * of.from_step;
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

#define CASTS_IN_FLIGHT 4

static __device__ void cast_tile(const tile &of, unsigned width, copy_cast cast, unsigned lane)
{
    for (unsigned first = lane; first < of.units; first += COPY_WARP * CASTS_IN_FLIGHT) {
        uint4 bits[CASTS_IN_FLIGHT];
        int64_t to[CASTS_IN_FLIGHT], from;
#pragma unroll
        for (int k = 0; k < CASTS_IN_FLIGHT; k++) {
            unsigned unit = first + (unsigned)k * COPY_WARP;
            unit_place<-1>(of, of.inner, unit, &to[k], &from);
            if (unit < of.units && width > 1)
                bits[k] = load_four(of.from + from, cast);
            else if (unit < of.units)
                cast_one(of.to + to[k], of.from + from, cast);
        }
#pragma unroll
        for (int k = 0; k < CASTS_IN_FLIGHT; k++)
            if (width > 1 && first + (unsigned)k * COPY_WARP < of.units)
                store_four(of.to + to[k], bits[k], cast);
    }
}

/* A step of a warp processes as many blocks as its lanes allow, with as many steps in flight as
 * make 32 blocks. Their scales are written together. */
template <unsigned kind, bool scales>
static __device__ __noinline__ void quantize_shared(const tile &of, bool round_up, unsigned lane)
{
    const int lanes = sharing<kind>::lanes, values_each = sharing<kind>::values;
    const unsigned blocks = COPY_WARP / lanes, block = lane / lanes, part = lane % lanes;
    for (unsigned first = 0; first < of.units; first += COPY_WARP) {
        uint4 bits[lanes];
        int64_t to[lanes], from;
        uint32_t mine = 0;
#pragma unroll
        for (int k = 0; k < lanes; k++) {
            unsigned unit = first + (unsigned)k * blocks + block;
            unit_place<-1>(of, of.inner, unit, &to[k], &from);
            bits[k] = make_uint4(0, 0, 0, 0);
            if (unit < of.units)
                bits[k] = load_word((const uint4 *)(of.from + from) + part);
        }
#pragma unroll
        for (int k = 0; k < lanes; k++) {
            uint32_t values[values_each];
            bool is_easy;
            unsigned unit = first + (unsigned)k * blocks + block;
            unpack<kind>(bits[k], values);
            uint32_t scale = shared_scale<kind>(values, round_up, &is_easy);
            if (scales) {
                uint32_t there = __shfl_sync(WHOLE_WARP, scale, (int)(lane % blocks) * lanes);
                mine = lane / blocks == (unsigned)k ? there : mine;
                continue;
            }
            if (unit >= of.units)
                continue;
            char *at = of.to + to[k] + part * values_each;
            if (is_easy) {
                store_shared<kind>(at, values, (uint8_t)scale);
            } else {
                unit_place<-1>(of, of.inner, unit, &to[k], &from);
                quantize_hard(at, 1, of.from + from + 16 * part, sharing<kind>::bytes, values_each,
                              kind, (uint8_t)scale);
            }
        }
        if (!scales || first + lane >= of.units)
            continue;
        unit_place<-1>(of, of.inner, first + lane, &to[0], &from);
        banyan_device_store<uint8_t>(of.to + to[0], (uint8_t)mine);
    }
}

template <unsigned kind>
static __device__ void quantize_any_shared(const tile &of, unsigned cast, unsigned lane)
{
    bool round_up = (cast & COPY_ROUND_UP) != 0;
    if (cast & COPY_TO_SCALES)
        quantize_shared<kind, true>(of, round_up, lane);
    else
        quantize_shared<kind, false>(of, round_up, lane);
}

static __device__ void quantize_alone(const tile &of, const copy_move *move, unsigned lane)
{
    for (unsigned unit = lane; unit < of.units; unit += COPY_WARP) {
        int64_t to, from;
        unit_place<-1>(of, of.inner, unit, &to, &from);
        quantize_block(of.to + to, of.from + from, move->to_step, move->from_step, move->cast);
    }
}

static __device__ void quantize_tile(const tile &of, const copy_move *move, unsigned lane)
{
    if (!(move->cast & COPY_SHARED))
        quantize_alone(of, move, lane);
    else if (move->cast & COPY_FROM_F32)
        quantize_any_shared<COPY_FROM_F32>(of, move->cast, lane);
    else if (move->cast & COPY_FROM_F16)
        quantize_any_shared<COPY_FROM_F16>(of, move->cast, lane);
    else
        quantize_any_shared<0>(of, move->cast, lane);
}

static __device__ char *element_of(const copy_walk_side *side, uint64_t elem)
{
    char *at = side->data;
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

static __device__ void convert_walk_tile(const copy_args *run, const copy_move *move,
                                         uint64_t number, unsigned lane)
{
    const copy_walk *walk = run->walks + move->first_dim;
    uint64_t first = number * COPY_TILE_UNITS;
    uint64_t end = walk->elems - first < COPY_TILE_UNITS ? walk->elems : first + COPY_TILE_UNITS;
    for (uint64_t elem = first + lane; elem < end; elem += COPY_WARP) {
        char *to = element_of(&walk->to, elem), *from = element_of(&walk->from, elem);
        if (move->cast & COPY_QUANTIZE)
            quantize_block(to, from, move->to_step, move->from_step, move->cast);
        else
            cast_one(to, from, (copy_cast)move->cast);
    }
}

static __device__ __noinline__ void convert_any(const copy_args *run, const copy_move *move,
                                                uint64_t number, unsigned lane)
{
    if (move->is_walk) {
        convert_walk_tile(run, move, number, lane);
        return;
    }
    tile of = tile_of(move, run->dims + move->first_dim, number);
    if (move->cast & COPY_QUANTIZE)
        quantize_tile(of, move, lane);
    else
        cast_tile(of, move->width, (copy_cast)move->cast, lane);
}

template <typename word>
static __device__ __forceinline__ void move_one(const copy_args *run, const copy_move *move,
                                                uint64_t number, unsigned lane)
{
    if (move->is_walk)
        walk_tile<word>(run->walks + move->first_dim, number, lane);
    else
        move_tile<word>(tile_of(move, run->dims + move->first_dim, number), lane);
}

template <bool converts>
static __device__ void move_span(const copy_args *run, const copy_span *span, unsigned lane)
{
    const copy_move *move = run->moves + span->move;
    uint64_t number = span->tile;
    for (uint64_t left = span->tiles; left > 0; left--) {
        for (; number == move->tiles; move++)
            number = 0;
        switch (converts && move->cast != COPY_AS_IT_IS ? 0 : move->width) {
        case 0:
            if (converts)
                convert_any(run, move, number, lane);
            break;
        case 16:
            move_one<uint4>(run, move, number, lane);
            break;
        case 8:
            move_one<uint2>(run, move, number, lane);
            break;
        case 4:
            move_one<uint32_t>(run, move, number, lane);
            break;
        case 2:
            move_one<uint16_t>(run, move, number, lane);
            break;
        default:
            move_one<uint8_t>(run, move, number, lane);
            break;
        }
        number++;
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

/* The kernel with conversions is separate, since it needs more registers. */
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
