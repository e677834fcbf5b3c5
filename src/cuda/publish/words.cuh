/* Bytes at any address, which a warp loads and stores as words. */
#ifndef CUDA_PUBLISH_WORDS_CUH
#define CUDA_PUBLISH_WORDS_CUH

#include "cuda/publish/view.cuh"

/* Return the i-th word of some bytes, whose first one may lie anywhere. Reads aligned words that
 * have at least one of the bytes; others may lie in the last word that is returned. */
BANYAN_DEVICE uint32_t word_at(const unsigned char *from, uint32_t bytes, uint32_t i)
{
    uint32_t offset = (uint32_t)((uintptr_t)from & 3);
    const uint32_t *words = (const uint32_t *)(from - offset);
    if (4 * i >= bytes)
        return 0;
    uint32_t low = words[i], high = 0;
    if (offset > 0 && 4 * (i + 1) - offset < bytes)
        high = words[i + 1];
    return __funnelshift_r(low, high, 8 * offset);
}

/* Store bytes of shared memory. Other warps may have bytes of the first and the last word. All
 * lanes of the warp call it. */
BANYAN_DEVICE void store_words(const uint32_t *words, unsigned char *to, uint32_t bytes,
                               unsigned lane)
{
    uint32_t offset = (uint32_t)((uintptr_t)to & 3);
    to -= offset;
    bytes += offset;
    BANYAN_DEVICE_LOOP
    for (uint32_t at = 4 * lane; at < bytes; at += 4 * CHANGES_WARP) {
        uint32_t i = at / 4, word = words[i];
        if (offset > 0)
            word = __funnelshift_r(i > 0 ? words[i - 1] : 0, word, 32 - 8 * offset);
        if (at >= offset && at + 4 <= bytes) {
            *(uint32_t *)(to + at) = word;
            continue;
        }
        for (uint32_t k = 0; k < 4; k++)
            if (at + k >= offset && at + k < bytes)
                to[at + k] = (unsigned char)(word >> 8 * k);
    }
}

#endif
