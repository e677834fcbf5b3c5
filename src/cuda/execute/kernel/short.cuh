/* Pieces that cannot keep all threads busy one by one: their words of 16 bytes, piece after piece,
 * are dealt to the threads in turn. Whole words, aligned. */
#ifndef CUDA_EXECUTE_KERNEL_SHORT_CUH
#define CUDA_EXECUTE_KERNEL_SHORT_CUH

#include "cuda/execute/kernel/block.cuh"

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

#endif
