/* A third kernel, between the quick one and the whole one: for programs that copy and add data
 * with signals between (pack_kind), 16 bytes at a time. It has little code to fetch. */
#ifndef CUDA_EXECUTE_KERNEL_DIRECT_CUH
#define CUDA_EXECUTE_KERNEL_DIRECT_CUH

#include "cuda/execute/kernel/begin.cuh"
#include "cuda/execute/kernel/sync.cuh"

/* Pieces that cannot keep all threads busy one by one: their words of 16 bytes, piece after piece,
 * are dealt to the threads in turn. Whole words, aligned. */
struct short_words {
    block_pieces pieces; /* the current piece first */
    uint64_t next;       /* next word in it, or behind its end */

    /* Like block_units::find. */
    BANYAN_DEVICE_MEMBER bool find(void)
    {
        BANYAN_DEVICE_LOOP
        for (; pieces.at < pieces.end; pieces.at += pieces.words) {
            if (next < count())
                return true;
            next -= count();
        }
        return false;
    }
    BANYAN_DEVICE_MEMBER uint64_t count(void) const { return pieces.at[0] / sizeof(uint4); }
    BANYAN_DEVICE_MEMBER uint64_t at(void) const { return next * sizeof(uint4); }
};

/* Words of a thread that are in flight at the same time. */
#define SHORT_BATCH 4

/* For one source. */
BANYAN_DEVICE void short_copy(block_pieces pieces, uint32_t places)
{
    short_words words = {pieces, block_thread()};
    BANYAN_DEVICE_LOOP
    for (bool more = true; more;) {
        uint4 word[SHORT_BATCH] = {};
        const uint64_t *of[SHORT_BATCH]; /* the piece of each word; NULL: none */
        uint64_t at[SHORT_BATCH];
        BANYAN_DEVICE_UNROLL
        for (int k = 0; k < SHORT_BATCH; k++) {
            more = words.find();
            of[k] = more ? words.pieces.at : NULL;
            at[k] = words.at();
            if (more)
                word[k] = banyan_device_load_once(block_places_of(of[k], 0)[0] + at[k]);
            words.next += more ? block_threads() : 0;
        }
        BANYAN_DEVICE_LOOP
        for (uint32_t i = 1; i <= places; i++) {
            BANYAN_DEVICE_UNROLL
            for (int k = 0; k < SHORT_BATCH; k++) {
                if (of[k])
                    banyan_device_store<uint4>(block_places_of(of[k], i)[0] + at[k], word[k]);
            }
        }
    }
}

/* A copy's destinations, starting with one and wrapping around. */
struct wrapped_places {
    block_places of;
    uint32_t count, first;

    BANYAN_DEVICE_MEMBER char *operator[](uint32_t i) const
    {
        uint32_t at = i + first;
        return of[at < count ? at : at - count];
    }
};

/* A copy that needs one access per thread goes to all peers at once, in a different order in every
 * thread block. A longer one goes to one peer after another: the thread blocks of all ranks
 * proceed to the next at about the same time, so that no two ranks write to one peer. Data that is
 * read again is in a cache by then. */
BANYAN_DEVICE void direct_copy(block_places to, uint32_t places, const char *from, uint64_t words)
{
    bool once = words <= BANYAN_DEVICE_COPY_UNROLL * (uint64_t)block_threads();
    uint32_t together = once ? places : 1;
    BANYAN_DEVICE_LOOP
    for (uint32_t i = 0; i < places; i += together) {
        wrapped_places some = {to, places, once ? blockIdx.x % places : i};
        banyan_device_copy_words<uint4, BANYAN_DEVICE_COPY_UNROLL>(some, together, from, 0, words,
                                                                   block_thread(), block_threads());
    }
}

/* A copy is long if every thread has more than one word. */
template <typename Element>
BANYAN_DEVICE void direct_piece(const engine_step *step, const uint64_t *piece, uint32_t thread,
                                uint32_t threads)
{
    uint32_t sources = step->source_count, places = step->destination_count;
    uint64_t words = piece[0] / sizeof(uint4);
    block_places from = block_places_of(piece, 0), to = block_places_of(piece, sources);
    if (step->kind == STEP_COPY && words > threads)
        direct_copy(to, places, from[0], words);
    else if (step->kind == STEP_COPY)
        banyan_device_copy_words<uint4, 1>(to, places, from[0], 0, words, thread, threads);
    else if (sources <= 2 && (int)Element::COUNT <= 4 && words > threads)
        banyan_device_reduce_wide<Element, BANYAN_DEVICE_SUM, (int)Element::COUNT <= 4 ? 2 : 1, 2>(
            to, places, from, sources, words, thread, threads);
    else
        banyan_device_reduce_wide<Element, BANYAN_DEVICE_SUM, 1, 4>(to, places, from, sources,
                                                                    words, thread, threads);
}

template <typename Element> BANYAN_DEVICE void direct_move(const block_run *run)
{
    const engine_step *step = run->step;
    block_pieces pieces = block_find_pieces(run);
    uint32_t thread = block_thread(), threads = block_threads();
    bool are_short =
        pieces.at + pieces.words < pieces.end && pieces.at[0] <= sizeof(uint4) * (uint64_t)threads;
    if (are_short && step->kind == STEP_COPY)
        return short_copy(pieces, step->destination_count);
    short_words words = {pieces, are_short ? thread : 0};
    BANYAN_DEVICE_LOOP
    while (are_short ? words.find() : words.pieces.at < pieces.end) {
        const uint64_t *piece = words.pieces.at;
        direct_piece<Element>(step, piece, are_short ? (uint32_t)words.next : thread,
                              are_short ? (uint32_t)words.count() : threads);
        words.next += are_short ? threads : 0;
        words.pieces.at += are_short ? 0 : pieces.words;
    }
}

/* POST_SIGNAL: for puts that copy engines have done (stages.h). */
BANYAN_DEVICE void direct_sync(block_run *run)
{
    const engine_step *step = run->step;
    uint32_t lane = block_thread();
    if (lane >= BANYAN_DEVICE_WARP)
        return;
    BANYAN_DEVICE_LOOP
    for (uint32_t i = lane; i < step->end_count && !run->ended; i += BANYAN_DEVICE_WARP) {
        const kernel_end *end = block_ends() + step->ends + i;
        if (step->kind == STEP_WAIT)
            sync_take_signal(run, end, i);
        else if (step->kind == STEP_SIGNAL)
            sync_signal(run, end);
        else
            banyan_device_add_release(end->outgoing, 1);
    }
    __syncwarp();
}

template <typename Element> BANYAN_DEVICE void direct(const kernel_args *args)
{
    block_run run = {};
    begin_run(args, &run);
    uint32_t count = block_section()->step_count;
    uint32_t end = args->end_step < count ? args->end_step : count;
    BANYAN_DEVICE_LOOP
    for (uint32_t at = args->first_step; at < end; at = run.step->jump) {
        run.step = block_steps() + at;
        uint32_t kind = run.step->kind;
        if (kind == STEP_SIGNAL || kind == STEP_WAIT || kind == STEP_POST_SIGNAL) {
            direct_sync(&run);
            continue;
        }
        if (kind == STEP_NOP || (run.step->relaxed & KERNEL_BARRIER_FIRST))
            block_barrier(&run);
        if ((kind == STEP_COPY || kind == STEP_COMBINE) && !run.ended)
            direct_move<Element>(&run);
    }
}

#endif
