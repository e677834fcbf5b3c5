/* Which vector instructions loops may use that are compiled several times, and whose caches they
 * meet. */
#ifndef CORE_THREADS_CPU_H
#define CORE_THREADS_CPU_H

/* Each has what the ones before it have. Other processors than x86-64 are at the baseline. */
typedef enum cpu_level { CPU_BASELINE, CPU_AVX2, CPU_AVX512, CPU_LEVELS } cpu_level;

/* What functions for a level are compiled with, as __attribute__((target(…))). F16C is older than
 * AVX2: no processor has the latter alone, but compilers want to be told. */
#define CPU_AVX2_TARGET "avx2,f16c"
#define CPU_AVX512_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c"

/* The processor's, or a lower one that BANYAN_CPU asks for. Any thread. */
cpu_level cpu_level_get(void);

/* 0x17 is AMD's first two generations of EPYC, 0x19 the third and fourth, 0x1a the fifth; 0: it is
 * not AMD's, or is to be taken for any (BANYAN_CPU is baseline). Any thread. */
unsigned cpu_amd_family(void);

#endif
