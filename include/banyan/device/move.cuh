/* Banyan in kernels: threads that move and reduce bytes together.
 *
 * A function moves bytes by `threads` threads together. Each thread calls it with its number
 * `thread` and does its share. The threads may belong to one thread block or to many. No function
 * here waits, and moved data is visible to others only after a barrier and a signal. Any alignment
 * and size is allowed; moves take 16 bytes at a time if all addresses agree in their last four
 * bits.
 *
 * `Places` and `Sources` are arrays of addresses, or any objects with an operator[].
 *
 * In the code below, a variable that is loaded under a condition is first set to zero. Otherwise it
 * would occupy its registers from one loop to the next.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef BANYAN_DEVICE_MOVE_CUH
#define BANYAN_DEVICE_MOVE_CUH

#include <banyan/device/reduce.cuh>

template <typename T> BANYAN_DEVICE T banyan_device_load_word(const char *from)
{
    return banyan_device_load<T>(from);
}

template <> BANYAN_DEVICE_MEMBER uint4 banyan_device_load_word<uint4>(const char *from)
{
    return banyan_device_load_once(from);
}

/* A warp takes UNROLL words for each of its lanes at a time, so that each thread has that many
 * loads in flight, at distances known at compile time. The source is read once. A place that is
 * the source itself is skipped. */
template <typename T, int UNROLL, typename Places>
BANYAN_DEVICE void banyan_device_copy_words(Places to, uint32_t places, const char *from,
                                            uint64_t skip, uint64_t words, uint32_t thread,
                                            uint32_t threads)
{
    const uint32_t apart = UNROLL > 1 ? BANYAN_DEVICE_WARP : 1;
    uint64_t first = UNROLL * (thread / apart * apart) + thread % apart;
    BANYAN_DEVICE_LOOP
    for (; first < words; first += UNROLL * threads) {
        T word[UNROLL] = {};
        uint64_t at = skip + first * sizeof(T);
        uint32_t left = words - first < UNROLL * apart ? (uint32_t)(words - first) : UNROLL * apart;
        BANYAN_DEVICE_UNROLL
        for (uint32_t k = 0; k < UNROLL; k++) {
            if (k * apart < left)
                word[k] = banyan_device_load_word<T>(from + at + k * apart * sizeof(T));
        }
        BANYAN_DEVICE_LOOP
        for (uint32_t i = 0; i < places; i++) {
            char *place = to[i];
            if (place == from)
                continue;
            place += at;
            BANYAN_DEVICE_UNROLL
            for (uint32_t k = 0; k < UNROLL; k++) {
                if (k * apart < left)
                    banyan_device_store<T>(place + k * apart * sizeof(T), word[k]);
            }
        }
    }
}

/* Words that a thread copies at a time. A small number of words is distributed over all threads. */
#define BANYAN_DEVICE_COPY_UNROLL 8

template <typename T, typename Places>
BANYAN_DEVICE void banyan_device_copy_in(Places to, uint32_t places, const char *from,
                                         uint64_t bytes, uint32_t thread, uint32_t threads)
{
    uint64_t head = (0 - (uintptr_t)from) & (sizeof(T) - 1);
    head = head < bytes ? head : bytes;
    uint64_t words = (bytes - head) / sizeof(T), tail = head + words * sizeof(T);
    if (words <= threads || threads % BANYAN_DEVICE_WARP != 0)
        banyan_device_copy_words<T, 1>(to, places, from, head, words, thread, threads);
    else
        banyan_device_copy_words<T, BANYAN_DEVICE_COPY_UNROLL>(to, places, from, head, words,
                                                               thread, threads);
    if (head == 0 && tail == bytes)
        return;
    banyan_device_copy_words<uint8_t, 1>(to, places, from, 0, head, thread, threads);
    banyan_device_copy_words<uint8_t, 1>(to, places, from, tail, bytes - tail, thread, threads);
}

typedef struct banyan_device_place {
    char *address;
    BANYAN_DEVICE_MEMBER char *operator[](uint32_t) const { return address; }
} banyan_device_place;

/* Copy to one place, in words of 8, 4, 2 or 1 bytes, as the addresses permit. */
BANYAN_DEVICE_RARE void banyan_device_copy_narrow(char *to, const char *from, uint64_t bytes,
                                                  uint32_t thread, uint32_t threads)
{
    banyan_device_place place = {to};
    uint32_t differ = (uint32_t)((uintptr_t)to ^ (uintptr_t)from);
    if (differ % 8 == 0)
        banyan_device_copy_in<uint2>(place, 1, from, bytes, thread, threads);
    else if (differ % 4 == 0)
        banyan_device_copy_in<uint32_t>(place, 1, from, bytes, thread, threads);
    else if (differ % 2 == 0)
        banyan_device_copy_in<uint16_t>(place, 1, from, bytes, thread, threads);
    else
        banyan_device_copy_in<uint8_t>(place, 1, from, bytes, thread, threads);
}

/* Copy the bytes to several places. */
template <typename Places>
BANYAN_DEVICE void banyan_device_copy_each(Places to, uint32_t places, const void *source,
                                           uint64_t bytes, uint32_t thread, uint32_t threads)
{
    const char *from = (const char *)source;
    uintptr_t differ = 0;
    BANYAN_DEVICE_LOOP
    for (uint32_t i = 0; i < places; i++)
        differ |= (uintptr_t)to[i] ^ (uintptr_t)from;
    if (differ % sizeof(uint4) == 0)
        return banyan_device_copy_in<uint4>(to, places, from, bytes, thread, threads);
    BANYAN_DEVICE_LOOP
    for (uint32_t i = 0; i < places; i++)
        banyan_device_copy_narrow(to[i], from, bytes, thread, threads);
}

BANYAN_DEVICE void banyan_device_copy(void *to, const void *from, uint64_t bytes, uint32_t thread,
                                      uint32_t threads)
{
    banyan_device_place place = {(char *)to};
    banyan_device_copy_each(place, 1, from, bytes, thread, threads);
}

/* A unit is 8 bytes at any address, or the rest of a buffer. */

/* Bytes beyond `bytes` (1 to 8) are zeros. */
BANYAN_DEVICE uint2 banyan_device_load_unit(const char *from, uint32_t bytes)
{
    if (bytes == 8 && ((uintptr_t)from & 7) == 0)
        return banyan_device_load<uint2>(from);
    uint64_t value = 0;
    bool words = ((uintptr_t)from & 3) == 0;
    BANYAN_DEVICE_LOOP
    for (uint32_t at = 0; at < bytes;) {
        bool word = words && bytes - at >= 4;
        uint32_t some =
            word ? banyan_device_load<uint32_t>(from + at) : banyan_device_load<uint8_t>(from + at);
        value |= (uint64_t)some << 8 * at;
        at += word ? 4 : 1;
    }
    return make_uint2((uint32_t)value, (uint32_t)(value >> 32));
}

BANYAN_DEVICE void banyan_device_store_unit(char *to, uint2 value, uint32_t bytes)
{
    if (bytes == 8 && ((uintptr_t)to & 7) == 0)
        return banyan_device_store<uint2>(to, value);
    bool words = ((uintptr_t)to & 3) == 0;
    uint64_t rest = (uint64_t)value.y << 32 | value.x;
    BANYAN_DEVICE_LOOP
    for (uint32_t at = 0; at < bytes;) {
        bool word = words && bytes - at >= 4;
        if (word)
            banyan_device_store<uint32_t>(to + at, (uint32_t)rest);
        else
            banyan_device_store<uint8_t>(to + at, (uint8_t)rest);
        rest = word ? rest >> 32 : rest >> 8;
        at += word ? 4 : 1;
    }
}

/* Two units side by side. */
template <typename Element> struct banyan_device_wide_sums {
    banyan_device_sums<Element> low, high;

    BANYAN_DEVICE_MEMBER void begin(uint4 first)
    {
        low.begin(make_uint2(first.x, first.y));
        high.begin(make_uint2(first.z, first.w));
    }
    template <banyan_device_op op> BANYAN_DEVICE_MEMBER void add(uint4 next)
    {
        low.template add<op>(make_uint2(next.x, next.y));
        high.template add<op>(make_uint2(next.z, next.w));
    }
    BANYAN_DEVICE_MEMBER uint4 end() const
    {
        uint2 a = low.end(), b = high.end();
        return make_uint4(a.x, a.y, b.x, b.y);
    }
};

/* Reduce 16 bytes at a time, with UNITS × BATCH loads in flight: BATCH sources, of UNITS places
 * each, as in copies. */
template <typename Element, banyan_device_op op, int UNITS, int BATCH, typename Sources,
          typename Places>
BANYAN_DEVICE void banyan_device_reduce_wide(Places to, uint32_t places, Sources from,
                                             uint32_t sources, uint64_t words, uint32_t thread,
                                             uint32_t threads)
{
    const uint32_t apart = UNITS > 1 ? BANYAN_DEVICE_WARP : 1;
    uint64_t first = UNITS * (thread / apart * apart) + thread % apart;
    BANYAN_DEVICE_LOOP
    for (; first < words; first += UNITS * threads) {
        banyan_device_wide_sums<Element> sums[UNITS] = {};
        uint64_t at = first * sizeof(uint4);
        bool more = words - first > apart; /* a second unit exists */
        BANYAN_DEVICE_LOOP
        for (uint32_t i = 0; i < sources; i += BATCH) {
            uint4 word[BATCH][UNITS] = {};
            BANYAN_DEVICE_UNROLL
            for (uint32_t k = 0; k < BATCH; k++) {
                if (i + k >= sources)
                    continue;
                const char *source = from[i + k] + at;
                word[k][0] = banyan_device_load_once(source);
                if (UNITS > 1 && more)
                    word[k][UNITS - 1] = banyan_device_load_once(source + apart * sizeof(uint4));
            }
            BANYAN_DEVICE_UNROLL
            for (uint32_t k = 0; k < BATCH; k++) {
                BANYAN_DEVICE_UNROLL
                for (uint32_t u = 0; u < UNITS; u++) {
                    if (i + k == 0)
                        sums[u].begin(word[k][u]);
                    else if (i + k < sources)
                        sums[u].template add<op>(word[k][u]);
                }
            }
        }
        uint4 reduced[UNITS];
        BANYAN_DEVICE_UNROLL
        for (uint32_t u = 0; u < UNITS; u++)
            reduced[u] = sums[u].end();
        BANYAN_DEVICE_LOOP
        for (uint32_t i = 0; i < places; i++) {
            char *place = to[i] + at;
            banyan_device_store<uint4>(place, reduced[0]);
            if (UNITS > 1 && more)
                banyan_device_store<uint4>(place + apart * sizeof(uint4), reduced[UNITS - 1]);
        }
    }
}

/* Reduce 8 bytes at a time, from byte `at` on. */
template <typename Element, banyan_device_op op, typename Sources, typename Places>
BANYAN_DEVICE_RARE void banyan_device_reduce_units(Places to, uint32_t places, Sources from,
                                                   uint32_t sources, uint64_t at, uint64_t bytes,
                                                   uint32_t thread, uint32_t threads)
{
    BANYAN_DEVICE_LOOP
    for (at += 8 * (uint64_t)thread; at < bytes; at += 8 * (uint64_t)threads) {
        uint32_t some = bytes - at < 8 ? (uint32_t)(bytes - at) : 8;
        banyan_device_sums<Element> sums = {};
        sums.begin(banyan_device_load_unit(from[0] + at, some));
        BANYAN_DEVICE_LOOP
        for (uint32_t i = 1; i < sources; i++)
            sums.template add<op>(banyan_device_load_unit(from[i] + at, some));
        uint2 reduced = sums.end();
        BANYAN_DEVICE_LOOP
        for (uint32_t i = 0; i < places; i++)
            banyan_device_store_unit(to[i] + at, reduced, some);
    }
}

/* Reduce the sources in their order, to several places. A place may be a source. `bytes` is a
 * multiple of the element size. */
template <typename Element, banyan_device_op op, typename Sources, typename Places>
BANYAN_DEVICE void banyan_device_reduce_each(Places to, uint32_t places, Sources from,
                                             uint32_t sources, uint64_t bytes, uint32_t thread,
                                             uint32_t threads)
{
    uintptr_t addresses = 0;
    BANYAN_DEVICE_LOOP
    for (uint32_t i = 0; i < sources; i++)
        addresses |= (uintptr_t)from[i];
    BANYAN_DEVICE_LOOP
    for (uint32_t i = 0; i < places; i++)
        addresses |= (uintptr_t)to[i];
    uint64_t words = addresses % sizeof(uint4) == 0 ? bytes / sizeof(uint4) : 0;
    const bool small = (int)Element::COUNT <= 4; /* accumulators: two units fit into registers */
    if (small && sources <= 2 && words > threads && threads % BANYAN_DEVICE_WARP == 0)
        banyan_device_reduce_wide<Element, op, small ? 2 : 1, 2>(to, places, from, sources, words,
                                                                 thread, threads);
    else if (words > 0)
        banyan_device_reduce_wide<Element, op, 1, 4>(to, places, from, sources, words, thread,
                                                     threads);
    if (words * sizeof(uint4) < bytes)
        banyan_device_reduce_units<Element, op>(to, places, from, sources, words * sizeof(uint4),
                                                bytes, thread, threads);
}

#endif
