/* Banyan: status, errors, log, element types, sets of ranks, requests.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_CORE_H
#define BANYAN_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <dlpack/dlpack.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BANYAN_VERSION_MAJOR 0
#define BANYAN_VERSION_MINOR 1
#define BANYAN_VERSION_PATCH 0

#define BANYAN_API __attribute__((visibility("default")))

/* What a call came to. Every public function that can fail returns one of these; the sentence for a
 * person is in banyan_last_error(). */
typedef enum banyan_status {
    BANYAN_OK = 0,
    BANYAN_ERR_INVALID,     /* an argument is out of its range or contradicts another */
    BANYAN_ERR_NO_MEMORY,   /* memory or address space ran out */
    BANYAN_ERR_SYSTEM,      /* a system call failed; the sentence has its name and errno */
    BANYAN_ERR_TIMEOUT,     /* a wait passed its deadline */
    BANYAN_ERR_PEER_LOST,   /* a process of the world has died or left */
    BANYAN_ERR_ABORTED,     /* a process of the world called banyan_world_abort */
    BANYAN_ERR_UNSUPPORTED, /* this machine or build lacks what was asked for */
    BANYAN_ERR_FORMAT,      /* a file or message is malformed */
    BANYAN_ERR_MISMATCH,    /* two ranks, or two sides of a transfer, disagree */
    BANYAN_ERR_NOT_FOUND,   /* a named thing does not exist */
    BANYAN_ERR_CORRUPT,     /* data arrived changed (checksum) */
    BANYAN_ERR_REFUSED,     /* a peer could not prove that it belongs to the job */
    BANYAN_ERR_NVSHMEM      /* NVSHMEM is not there, or did not start */
} banyan_status;

/* The constant's name, "BANYAN_ERR_TIMEOUT" for example. Any thread. */
BANYAN_API const char *banyan_status_name(banyan_status status);

/* The sentence that explains the last failure of a Banyan call on this thread, with the names and
 * numbers in it; empty when there was none. Valid until the next failing call on this thread. */
BANYAN_API const char *banyan_last_error(void);

/* Set that sentence and return `status`: for backends, services and transforms written outside
 * Banyan. printf's format; the arguments may include banyan_last_error(). Any thread. */
BANYAN_API banyan_status banyan_error_set(banyan_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* "0.1.0". Any thread. */
BANYAN_API const char *banyan_version(void);

/* ---- log ---- */

typedef enum banyan_log_level {
    BANYAN_LOG_ERROR = 0,
    BANYAN_LOG_WARN,
    BANYAN_LOG_INFO,
    BANYAN_LOG_DEBUG
} banyan_log_level;

typedef void (*banyan_log_fn)(banyan_log_level level, const char *message, void *context);

/* Send log lines to `fn` instead of stderr (NULL: back to stderr). BANYAN_LOG=error|warn|info|debug
 * sets the level, warn by default; another value is named in a warning before the first line. Any
 * thread; `fn` may be called from Banyan's own threads. */
BANYAN_API void banyan_log_set(banyan_log_fn fn, void *context);

/* ---- structs as values ---- */

/* Options begin with their size, and BANYAN_…_INIT are their defaults, in C from C99 and in C++
 * from C++11 on:
 *
 *     banyan_comm_options options = BANYAN_COMM_OPTIONS_INIT;
 *     options.workers = 4;
 *
 * Members that an _INIT does not name are 0. C++ has no compound literals and, before C++20, no
 * designators: there an _INIT is an expression, which sets the members one by one. */
#ifdef __cplusplus
#define BANYAN_VALUE(type) type
#define BANYAN_MEMBER(name, ...) banyan_init.name = __VA_ARGS__
#define BANYAN_INIT_WITH(type, ...)                                                                \
    ([]() -> type {                                                                                \
        type banyan_init = type();                                                                 \
        banyan_init.size = sizeof(type), __VA_ARGS__;                                              \
        return banyan_init;                                                                        \
    }())
#define BANYAN_INIT(type) BANYAN_INIT_WITH(type, (void)0)
#else
#define BANYAN_VALUE(type) (type)
#define BANYAN_MEMBER(name, ...) .name = __VA_ARGS__
#define BANYAN_INIT_WITH(type, ...)                                                                \
    {                                                                                              \
        .size = sizeof(type), __VA_ARGS__                                                          \
    }
#define BANYAN_INIT(type)                                                                          \
    {                                                                                              \
        .size = sizeof(type)                                                                       \
    }
#endif

/* ---- element types ---- */

/* DLPack 1.1's codes for the 8-bit floats, which older dlpack.h headers lack. */
#define BANYAN_DL_FLOAT8_E4M3FN 10U
#define BANYAN_DL_FLOAT8_E5M2 12U
#define BANYAN_DL_FLOAT8_E8M0FNU 14U

#define BANYAN_F32 (BANYAN_VALUE(DLDataType){kDLFloat, 32, 1})
#define BANYAN_F16 (BANYAN_VALUE(DLDataType){kDLFloat, 16, 1})
#define BANYAN_BF16 (BANYAN_VALUE(DLDataType){kDLBfloat, 16, 1})
#define BANYAN_F8_E4M3 (BANYAN_VALUE(DLDataType){BANYAN_DL_FLOAT8_E4M3FN, 8, 1})
#define BANYAN_F8_E5M2 (BANYAN_VALUE(DLDataType){BANYAN_DL_FLOAT8_E5M2, 8, 1})
#define BANYAN_F8_E8M0 (BANYAN_VALUE(DLDataType){BANYAN_DL_FLOAT8_E8M0FNU, 8, 1})
#define BANYAN_I32 (BANYAN_VALUE(DLDataType){kDLInt, 32, 1})
#define BANYAN_I64 (BANYAN_VALUE(DLDataType){kDLInt, 64, 1})
#define BANYAN_U8 (BANYAN_VALUE(DLDataType){kDLUInt, 8, 1})
#define BANYAN_U32 (BANYAN_VALUE(DLDataType){kDLUInt, 32, 1})

/* Bytes of one element; 0 for a type that does not fill whole bytes. Any thread. */
BANYAN_API size_t banyan_dtype_bytes(DLDataType dtype);

/* safetensors' name of the type ("BF16", "F8_E4M3", "I64"), or "?" for one it has no name for. */
BANYAN_API const char *banyan_dtype_name(DLDataType dtype);

/* The type of a name as safetensors ("BF16"), PyTorch ("bfloat16", "torch.bfloat16") or people
 * ("bf16") write it. BANYAN_ERR_NOT_FOUND for any other. */
BANYAN_API banyan_status banyan_dtype_parse(const char *name, DLDataType *dtype);

/* Same code, bits and lanes. */
BANYAN_API bool banyan_dtype_equal(DLDataType a, DLDataType b);

/* How elements are reduced. */
typedef enum banyan_reduce_op { BANYAN_SUM = 0, BANYAN_MIN, BANYAN_MAX } banyan_reduce_op;

/* "sum", "min", "max"; NOT_FOUND for another name. Any thread. */
BANYAN_API const char *banyan_reduce_op_name(banyan_reduce_op op);
BANYAN_API banyan_status banyan_reduce_op_parse(const char *name, banyan_reduce_op *op);

/* ---- devices and streams ---- */

/* Where memory lies and work is done. A device that is not named (type 0) is the host. */
#define BANYAN_HOST (BANYAN_VALUE(DLDevice){kDLCPU, 0})
#define BANYAN_CUDA(id) (BANYAN_VALUE(DLDevice){kDLCUDA, (id)})

/* Calls that run something take a stream. On the host it is NULL, and they return when this rank's
 * part is done. On a GPU it is a CUDA stream (cudaStream_t; NULL: the default one): the work begins
 * after what the stream has queued, the call returns when it is queued, what is queued later comes
 * after it, and the stream may be captured in a CUDA graph. */

/* ---- sets of ranks ---- */

/* Ranks of the largest world. */
#define BANYAN_MAX_RANKS 1048576

#define BANYAN_RANK_SET_LEVELS 4

/* The ranks first + Σ i[k]·stride[k], 0 ≤ i[k] < count[k]: what a mesh axis, or several, span.
 * Nothing in it grows with the number of ranks. Levels go from the slowest to the fastest; a level
 * that is not used has count 1. The set must not name a rank twice. A zeroed struct is the empty
 * set. */
typedef struct banyan_rank_set {
    int first;
    int count[BANYAN_RANK_SET_LEVELS];
    int stride[BANYAN_RANK_SET_LEVELS];
} banyan_rank_set;

/* The set of one rank; how many ranks a set has. */
BANYAN_API banyan_rank_set banyan_rank_set_one(int rank);
BANYAN_API int64_t banyan_rank_set_size(const banyan_rank_set *set);

/* The index-th rank, in the order of the levels; `index` must be below the size. */
BANYAN_API int banyan_rank_set_at(const banyan_rank_set *set, int64_t index);

/* Where `rank` stands in the set's order, or -1 when it is not in it. */
BANYAN_API int64_t banyan_rank_set_find(const banyan_rank_set *set, int rank);

/* ---- requests ---- */

/* Work that was started and is waited for later. */
typedef struct banyan_request banyan_request;

/* Has the work ended? `done` is set at once, without waiting. When it has ended the status is the
 * work's own and stays readable until the request is waited for. The thread that started the work.
 */
BANYAN_API banyan_status banyan_request_test(banyan_request *request, bool *done);

/* Wait for the work, free the request and return the work's status. Once per request. */
BANYAN_API banyan_status banyan_request_wait(banyan_request *request);

#ifdef __cplusplus
}
#endif
#endif
