/* The processor's vector instructions, for loops compiled once per level, and its maker, for cache
 * effects. */
#ifndef CORE_THREADS_CPU_H
#define CORE_THREADS_CPU_H

/* Each level includes those before it. Processors other than x86-64 are at the baseline. */
typedef enum cpu_level { CPU_BASELINE, CPU_AVX2, CPU_AVX512, CPU_LEVELS } cpu_level;

/* Arguments of __attribute__((target(…))) for a level's functions. F16C is older than AVX2, and
 * every AVX2 processor has it; compilers still need it named. */
#define CPU_AVX2_TARGET "avx2,f16c"
#define CPU_AVX512_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c"

/* Return the processor's level, or the lower one in BANYAN_CPU. Any thread. */
cpu_level cpu_level_get(void);

/* Return AMD's processor family: 0x17 is the first two generations of EPYC, 0x19 the third and
 * fourth, 0x1a the fifth. 0 for other makers, or when BANYAN_CPU is baseline. Any thread. */
unsigned cpu_amd_family(void);

#endif
