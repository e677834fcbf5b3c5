/* One rank lacks memory for one of the module's allocations: all ranks must be told, at once. Of
 * the emulated driver's module, into which the allocator of the program that includes this comes.
 */
#ifndef TESTS_CUDA_LACKING_H
#define TESTS_CUDA_LACKING_H

#include <dlfcn.h>

#include "core/deadline.h"
#include "support/test.h"

#define LACKING 1 /* the rank */
#define LACK_ANY 0

/* Of the arrays of so many elements, or of any, that the module allocates in this thread, the n-th.
 */
static _Thread_local struct {
    bool is_looking, has_lacked;
    size_t count;
    int n;
    uint64_t began_ns;
} lack;

extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_malloc(size_t bytes);

static inline bool lacks(size_t count, const void *caller)
{
    Dl_info found;
    if (!lack.is_looking || (lack.count != LACK_ANY && lack.count != count) ||
        !dladdr(caller, &found) || !strstr(found.dli_fname, "libbanyan_cuda") || lack.n-- != 0)
        return false;
    lack.has_lacked = true;
    return true;
}

BANYAN_API void *calloc(size_t count, size_t bytes)
{
    return lacks(count, __builtin_return_address(0)) ? NULL : __libc_calloc(count, bytes);
}

BANYAN_API void *malloc(size_t bytes)
{
    return lacks(1, __builtin_return_address(0)) ? NULL : __libc_malloc(bytes);
}

static inline void lack_begin(const banyan_world *world, size_t count, int n)
{
    lack.is_looking = banyan_world_rank(world) == LACKING;
    lack.has_lacked = false;
    lack.count = count;
    lack.n = n;
    lack.began_ns = time_now_ns();
}

/* Did a rank lack it? Then that is what all were told. */
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
