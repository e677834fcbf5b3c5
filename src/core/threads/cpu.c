#include "core/threads/cpu.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "core/log.h"

static cpu_level level_of_processor(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return CPU_AVX512;
    if (__builtin_cpu_supports("avx2"))
        return CPU_AVX2;
#endif
    return CPU_BASELINE;
}

static cpu_level level_wanted(void)
{
    static const char *const names[CPU_LEVELS] = {"baseline", "avx2", "avx512"};
    const char *wanted = getenv("BANYAN_CPU");
    if (!wanted || wanted[0] == '\0')
        return CPU_AVX512;
    for (int level = 0; level < CPU_LEVELS; level++) {
        if (strcmp(wanted, names[level]) == 0)
            return (cpu_level)level;
    }
    log_warn("BANYAN_CPU is \"%s\", not baseline, avx2 or avx512: ignored", wanted);
    return CPU_AVX512;
}

cpu_level cpu_level_get(void)
{
    static _Atomic int known = CPU_LEVELS;
    int level = atomic_load_explicit(&known, memory_order_relaxed);
    if (level == CPU_LEVELS) {
        cpu_level has = level_of_processor(), wanted = level_wanted();
        level = (int)(has < wanted ? has : wanted);
        atomic_store_explicit(&known, level, memory_order_relaxed);
    }
    return (cpu_level)level;
}

#if defined(__x86_64__)
static unsigned family_of_processor(void)
{
    unsigned signature, unused;
    if (cpu_level_get() == CPU_BASELINE || !__builtin_cpu_is("amd") ||
        !__get_cpuid(1, &signature, &unused, &unused, &unused))
        return 0;
    unsigned family = signature >> 8 & 0xf, extended = signature >> 20 & 0xff;
    return family == 0xf ? family + extended : family;
}
#else
static unsigned family_of_processor(void)
{
    return 0;
}
#endif

unsigned cpu_amd_family(void)
{
    static _Atomic unsigned known = UINT_MAX;
    unsigned family = atomic_load_explicit(&known, memory_order_relaxed);
    if (family == UINT_MAX) {
        family = family_of_processor();
        atomic_store_explicit(&known, family, memory_order_relaxed);
    }
    return family;
}
