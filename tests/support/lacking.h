/* One rank fails one of its allocations: all ranks must get the error, at once. A program that
 * includes this has its own allocator, which the libraries it loads use as well. */
#ifndef TESTS_SUPPORT_LACKING_H
#define TESTS_SUPPORT_LACKING_H

#include <dlfcn.h>

#include "core/deadline.h"
#include "core/threads/sanitizer.h"
#include "support/test.h"

#define LACKING 1 /* the rank */
#define LACK_ANY 0

/* Selects the n-th allocation of an array of this many elements, or of any, by this thread, in
 * this library or, without a name, in the program. */
static const char *lack_library;
static size_t lack_least_bytes; /* smaller ones never fail */
static _Thread_local struct {
    bool is_looking, has_lacked;
    size_t count;
    int n;
    uint64_t began_ns;
} lack;

extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_malloc(size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);

static inline bool lack_looks_at(const void *caller)
{
    Dl_info found, own;
    if (!dladdr(caller, &found))
        return false;
    if (lack_library)
        return strstr(found.dli_fname, lack_library) != NULL;
    return dladdr(&lack_library, &own) && own.dli_fbase == found.dli_fbase;
}

static inline bool lacks(size_t count, size_t bytes, const void *caller)
{
    if (!lack.is_looking || bytes < lack_least_bytes ||
        (lack.count != LACK_ANY && lack.count != count))
        return false;
    lack.is_looking = false; /* dladdr may allocate */
    lack.has_lacked = lack_looks_at(caller) && lack.n-- == 0;
    lack.is_looking = !lack.has_lacked;
    return lack.has_lacked;
}

/* Call it in main. False: the program is skipped, and has said so. */
static inline bool lack_is_possible(void)
{
#if defined(SANITIZER_MEMORY) || defined(SANITIZER_THREAD)
    printf("skipped: sanitizers have an allocator of their own\n");
    return false;
#else
    return true;
#endif
}

#if !defined(SANITIZER_MEMORY) && !defined(SANITIZER_THREAD)

BANYAN_API void *calloc(size_t count, size_t bytes)
{
    return lacks(count, count * bytes, __builtin_return_address(0)) ? NULL
                                                                    : __libc_calloc(count, bytes);
}

BANYAN_API void *malloc(size_t bytes)
{
    return lacks(1, bytes, __builtin_return_address(0)) ? NULL : __libc_malloc(bytes);
}

BANYAN_API void *realloc(void *old, size_t bytes)
{
    return lacks(1, bytes, __builtin_return_address(0)) ? NULL : __libc_realloc(old, bytes);
}

#endif

static inline void lack_begin(const banyan_world *world, size_t count, int n)
{
    lack.is_looking = banyan_world_rank(world) == LACKING;
    lack.has_lacked = false;
    lack.count = count;
    lack.n = n;
    lack.began_ns = time_now_ns();
}

/* True if an allocation failed on some rank. Then all ranks must have the expected status. */
static inline bool lack_end(banyan_world *world, banyan_status status, banyan_status expected)
{
    uint64_t took_ns = time_now_ns() - lack.began_ns;
    char sentence[512];
    lack.is_looking = false;
    snprintf(sentence, sizeof sentence, "%s", status == BANYAN_OK ? "" : banyan_last_error());
    uint8_t any = lack.has_lacked;
    CHECK_OK(banyan_world_broadcast(world, &any, sizeof any, LACKING));
    CHECK(status == (any ? expected : BANYAN_OK), "%s: %s", banyan_status_name(status), sentence);
    CHECK(!any || strstr(sentence, "memory"), "%s", sentence);
    CHECK(took_ns < 5 * NS_PER_S, "the others waited");
    return any;
}

#endif
