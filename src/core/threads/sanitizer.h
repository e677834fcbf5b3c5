/* Detect sanitizer builds: sanitizers understand neither the memory accesses of intrinsics nor the
 * order of fences. */
#ifndef CORE_THREADS_SANITIZER_H
#define CORE_THREADS_SANITIZER_H

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SANITIZER_THREAD 1
#endif
#if __has_feature(address_sanitizer) || __has_feature(memory_sanitizer)
#define SANITIZER_MEMORY 1
#endif
#endif

#if defined(__SANITIZE_THREAD__) && !defined(SANITIZER_THREAD)
#define SANITIZER_THREAD 1
#endif
#if defined(__SANITIZE_ADDRESS__) && !defined(SANITIZER_MEMORY)
#define SANITIZER_MEMORY 1
#endif

#endif
