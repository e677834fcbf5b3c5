/* Banyan: status codes, errors, log, element types, rank sets and requests.
 *
 * Conventions of all headers:
 *
 * - Errors. A function that can fail returns a banyan_status. On failure, banyan_last_error() has a
 *   message with the names and numbers involved, and output arguments have no defined value.
 *   Comments write error codes without their prefix: INVALID is BANYAN_ERR_INVALID.
 * - NULL. A pointer argument must not be NULL unless its comment allows it.
 * - Ownership. An object that a function creates, opens, loads or allocates belongs to the caller.
 *   The caller passes it to the matching `_destroy`, `_close` or `_free` function when no other
 *   call uses it any more. Text and arrays that a comment describes as "free with free()" belong to
 *   the caller. Strings in returned structs belong to the object that they describe.
 * - Calls. "Collective": every rank of the world calls the function, in the same order (world.h).
 *   "Local": the function involves this rank alone. Only the thread that drives the world makes
 *   collective and local calls. "Any thread": the function may be called from any thread,
 *   concurrently with other calls.
 * - Options. An option struct begins with its size. Initialize it with its BANYAN_…_INIT macro,
 *   which sets the size and the defaults, in C99 and later and in C++11 and later:
 *
 *       banyan_comm_options options = BANYAN_COMM_OPTIONS_INIT;
 *       options.workers = 4;
 *
 *   Members that an _INIT macro does not name are 0. Calls that take options keep no pointer to the
 *   struct. The size lets a struct grow: for a program compiled with an older header, the library
 *   uses the defaults for the members that the program does not know.
 * - Streams. Calls that run work take a stream. On the host, pass NULL; the call returns when this
 *   rank's part is done. On a GPU, pass a CUDA stream (cudaStream_t; NULL: the default stream). The
 *   call enqueues the work in stream order and returns. The stream may be in CUDA graph capture.
 * - Units. `_bytes`, `_ns` and `_elems` in a name are its unit. A rank is a number from 0.
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

/* Version of the headers. banyan_version returns that of the library. */
#define BANYAN_VERSION_MAJOR 0
#define BANYAN_VERSION_MINOR 1
#define BANYAN_VERSION_PATCH 0

/* Marks a function of the library. */
#define BANYAN_API __attribute__((visibility("default")))

/* Result of a call. banyan_last_error() has the message for people. */
typedef enum banyan_status {
    BANYAN_OK = 0,
    BANYAN_ERR_INVALID,     /* an argument is out of range or contradicts another argument */
    BANYAN_ERR_NO_MEMORY,   /* out of memory or address space */
    BANYAN_ERR_SYSTEM,      /* a system call failed; the message has its name and errno */
    BANYAN_ERR_TIMEOUT,     /* a wait passed its deadline */
    BANYAN_ERR_PEER_LOST,   /* a process of the world died or left */
    BANYAN_ERR_ABORTED,     /* a process of the world called banyan_world_abort */
    BANYAN_ERR_UNSUPPORTED, /* this machine or build lacks a feature that the call needs */
    BANYAN_ERR_FORMAT,      /* a file or message is malformed */
    BANYAN_ERR_MISMATCH,    /* two ranks, or the two sides of a transfer, disagree */
    BANYAN_ERR_NOT_FOUND,   /* no object has this name or index */
    BANYAN_ERR_CORRUPT,     /* received data differs from the data sent (checksum) */
    BANYAN_ERR_REFUSED,     /* a peer did not prove that it belongs to the job */
    BANYAN_ERR_NVSHMEM      /* NVSHMEM is missing or failed to start */
} banyan_status;

/* Return the name of the constant, for example "BANYAN_ERR_TIMEOUT", or "BANYAN_ERR_UNKNOWN" for
 * another value. The string is static. Any thread. */
BANYAN_API const char *banyan_status_name(banyan_status status);

/* Return the message of the last Banyan call that failed on this thread, or "" if none failed. A
 * successful call does not clear it. The text is valid until the next failing call on this thread.
 * Any thread. */
BANYAN_API const char *banyan_last_error(void);

/* Set this thread's error message and return `status`. Backends, services and transforms outside
 * Banyan report their errors with it. `format` is printf's; the arguments may include
 * banyan_last_error(). The message is cut at 4,095 bytes, and control characters are escaped. Any
 * thread. */
BANYAN_API banyan_status banyan_error_set(banyan_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* Return the library's version, for example "0.1.0". The string is static. Any thread. */
BANYAN_API const char *banyan_version(void);

/* ---- log ---- */

/* Importance of a line of the log, the most important first. */
typedef enum banyan_log_level {
    BANYAN_LOG_ERROR = 0,
    BANYAN_LOG_WARN,
    BANYAN_LOG_INFO,
    BANYAN_LOG_DEBUG
} banyan_log_level;

/* Receive one line of the log, without a newline. `message` is valid during the call. Banyan holds
 * a lock meanwhile, so the function must not call Banyan. */
typedef void (*banyan_log_fn)(banyan_log_level level, const char *message, void *context);

/* Send log lines to `fn`, or to stderr if `fn` is NULL (the default). `context` is passed to `fn`.
 * The environment variable BANYAN_LOG=error|warn|info|debug sets the level for the process; the
 * default is warn. If it has another value, a warning that names it comes before any other line.
 * Any thread; `fn` is called by one thread at a time, which may be a thread of Banyan's. */
BANYAN_API void banyan_log_set(banyan_log_fn fn, void *context);

/* ---- interrupts ---- */

/* Return true to end the wait of the calling thread. Called with no lock held; the function may
 * call banyan_world_abort, but no function that waits. */
typedef bool (*banyan_interrupt_fn)(void *context);

/* Let `fn` end waits, for example when the user has pressed Ctrl-C; NULL (the default) lets nothing
 * end them early. A thread that waits on the host, in any call, calls `fn` about every 50 ms. If it
 * returns true, the call returns ABORTED on this rank, and its world ends on all ranks, as after
 * banyan_world_abort. `context` is passed to `fn`. Set it while no call waits. */
BANYAN_API void banyan_interrupt_set(banyan_interrupt_fn fn, void *context);

/* ---- option structs ---- */

/* For the _INIT macros. C++ has no compound literals and, before C++20, no designated initializers.
 * There an _INIT macro is an expression that sets the members one by one. */
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

/* DLPack 1.1's codes for the 8-bit floats. Older dlpack.h headers do not define them. */
#define BANYAN_DL_FLOAT8_E4M3FN 10U
#define BANYAN_DL_FLOAT8_E5M2 12U
#define BANYAN_DL_FLOAT8_E8M0FNU 14U

/* Element types as values of DLDataType. */
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

/* Return the bytes of one element (all lanes), or 0 if the type does not fill whole bytes. Any
 * thread. */
BANYAN_API size_t banyan_dtype_bytes(DLDataType dtype);

/* Return the type's name in safetensors ("BF16", "F8_E4M3", "I64"), or "?" if it has none there.
 * The string is static. Any thread. */
BANYAN_API const char *banyan_dtype_name(DLDataType dtype);

/* Find a type by name, in any case: safetensors' ("BF16") or PyTorch's ("bfloat16",
 * "torch.bfloat16"). Errors: NOT_FOUND (unknown name). Any thread. */
BANYAN_API banyan_status banyan_dtype_parse(const char *name, DLDataType *dtype);

/* True if code, bits and lanes are equal. Any thread. */
BANYAN_API bool banyan_dtype_equal(DLDataType a, DLDataType b);

/* Reduction of elements. */
typedef enum banyan_reduce_op {
    BANYAN_SUM = 0,
    BANYAN_MIN,
    BANYAN_MAX,
    BANYAN_PROD,
    BANYAN_AVG /* of the calls of a communicator (collective.h); plans and programs have none */
} banyan_reduce_op;

/* Return "sum", "min", "max", "prod" or "avg", or "?" for another value. The string is static. Any
 * thread. */
BANYAN_API const char *banyan_reduce_op_name(banyan_reduce_op op);

/* Find a reduction by its name, as banyan_reduce_op_name spells it. Errors: NOT_FOUND (unknown
 * name). Any thread. */
BANYAN_API banyan_status banyan_reduce_op_parse(const char *name, banyan_reduce_op *op);

/* ---- devices ---- */

/* Device where memory lies and work runs: the host, or the GPU that has the number `id` in this
 * process. A zero-initialized device (type 0) means the host. */
#define BANYAN_HOST (BANYAN_VALUE(DLDevice){kDLCPU, 0})
#define BANYAN_CUDA(id) (BANYAN_VALUE(DLDevice){kDLCUDA, (id)})

/* ---- sets of ranks ---- */

/* Maximum number of ranks in a world. */
#define BANYAN_MAX_RANKS 1048576

/* Number of levels of a rank set. */
#define BANYAN_RANK_SET_LEVELS 4

/* The ranks first + Σ i[k]·stride[k] for 0 ≤ i[k] < count[k]. One or several axes of a device mesh
 * form such a set. Its size in memory does not depend on the number of ranks. Level 0 varies
 * slowest. An unused level has count 1. No rank may occur twice. A zero-initialized struct is the
 * empty set. */
typedef struct banyan_rank_set {
    int first;
    int count[BANYAN_RANK_SET_LEVELS];
    int stride[BANYAN_RANK_SET_LEVELS];
} banyan_rank_set;

/* Return the set that contains `rank` alone. Any thread. */
BANYAN_API banyan_rank_set banyan_rank_set_one(int rank);

/* Return the number of ranks in the set. Any thread. */
BANYAN_API int64_t banyan_rank_set_size(const banyan_rank_set *set);

/* Return the rank at `index` in the set's order. `index` must be from 0 to the size - 1. Any
 * thread. */
BANYAN_API int banyan_rank_set_at(const banyan_rank_set *set, int64_t index);

/* Return the index of `rank` in the set's order, or -1 if the set does not contain it. Any thread.
 */
BANYAN_API int64_t banyan_rank_set_find(const banyan_rank_set *set, int rank);

/* ---- requests ---- */

/* Work that a call started and that continues after the call returned. */
typedef struct banyan_request banyan_request;

/* Set `*done` to true if the work has ended. The call does not wait. Return the status of the work
 * if it has ended, otherwise BANYAN_OK; repeated calls return it again. Only the thread that
 * started the work may call this. */
BANYAN_API banyan_status banyan_request_test(banyan_request *request, bool *done);

/* Wait until the work has ended, free the request and return the status of the work. Call it
 * exactly once for each request, from the thread that started the work. An interrupt of this wait
 * (banyan_interrupt_set) ends the world of the work. */
BANYAN_API banyan_status banyan_request_wait(banyan_request *request);

#ifdef __cplusplus
}
#endif
#endif
