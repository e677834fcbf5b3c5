/* Banyan: memory that the other ranks of a node can reach.
 *
 * - Symmetric memory. All ranks allocate a buffer together, and every rank of the node maps all
 *   parts of it. A peer's part is an ordinary pointer. On GPUs, peers map it over NVLink or PCIe.
 * - Registered memory. A rank registers memory that it already has. Peers access ordinary memory
 *   through the kernel (process_vm_readv and process_vm_writev, "CMA") or through staging slots,
 *   which the owner fills and empties. Staging serves where CMA is not allowed or is slower. Banyan
 *   measures this once, at the first use; BANYAN_USER_MEMORY=cma|staging forces the choice.
 *
 * A memory handle names such memory to other ranks (transport.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_MEMORY_H
#define BANYAN_MEMORY_H

#include <banyan/world.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A symmetric buffer: one part for each rank. */
typedef struct banyan_memory banyan_memory;

/* Names memory of a rank to its peers. It is plain bytes: send it by any means. */
typedef struct banyan_memory_handle {
    int32_t rank;     /* owner, in the world of the buffer or registration */
    uint32_t kind;    /* enum banyan_memory_kind */
    uint64_t id;      /* number of the symmetric buffer or registration */
    uint64_t address; /* in the owner's address space */
    uint64_t bytes;   /* length of the memory */
} banyan_memory_handle;

/* One piece of a transfer between remote and local memory. */
typedef struct banyan_iovec {
    uint64_t offset; /* bytes into the remote memory, added to that of banyan_remote */
    void *local;     /* address in this process */
    size_t bytes;    /* length of the piece */
} banyan_iovec;

/* Kind of memory that a handle names. */
typedef enum banyan_memory_kind {
    BANYAN_MEMORY_SYMMETRIC = 1, /* every rank of the node maps it */
    BANYAN_MEMORY_USER = 2,      /* registered ordinary memory */
    BANYAN_MEMORY_DEVICE = 3     /* registered memory of a GPU */
} banyan_memory_kind;

/* Path by which peers access registered ordinary memory. */
typedef enum banyan_user_memory_path {
    BANYAN_USER_MEMORY_CMA = 1,    /* the kernel copies between the processes (CMA) */
    BANYAN_USER_MEMORY_STAGING = 2 /* through staging slots in shared memory */
} banyan_user_memory_path;

/* Allocate a symmetric buffer in host memory, with `bytes` for this rank. Ranks may pass different
 * sizes, including 0. The memory is zeroed and aligned to a page, or to 2 MiB if it has at least 2
 * MiB. Huge pages are used if the machine has them. The memory has no name in a file system, and
 * the kernel frees it when no process maps it. Collective. Errors: NO_MEMORY, SYSTEM. */
BANYAN_API banyan_status banyan_memory_alloc(banyan_world *world, size_t bytes,
                                             banyan_memory **memory);

/* Allocate a symmetric buffer on GPUs. Each rank passes its GPU (BANYAN_CUDA); several ranks may
 * pass the same one. On the host it is banyan_memory_alloc. Collective. Errors: NO_MEMORY, SYSTEM,
 * MISMATCH (some ranks pass the host and others a GPU), UNSUPPORTED (this build or machine has no
 * such device, or the GPUs of two ranks cannot reach each other). */
BANYAN_API banyan_status banyan_memory_alloc_on(banyan_world *world, DLDevice device, size_t bytes,
                                                banyan_memory **memory);

/* Make a symmetric buffer of GPU memory that the ranks have allocated themselves, by cudaMalloc,
 * PyTorch's allocator or others. Each rank passes its part; `bytes` may be 0. The memory still
 * belongs to the caller, who keeps it allocated until all ranks have freed the buffer. Collective.
 * Errors: INVALID (the memory is not on `device`), UNSUPPORTED (CUDA does not let peers map a part,
 * for example one of a stream-ordered pool; the message has the reason; or `device` is the host),
 * NO_MEMORY. */
BANYAN_API banyan_status banyan_memory_adopt(banyan_world *world, DLDevice device, void *address,
                                             size_t bytes, banyan_memory **memory);

/* Set `*count` to the number of GPUs that this process sees; BANYAN_CUDA takes numbers below it. If
 * a machine has more ranks than GPUs, banyan_world_local_rank modulo the count gives each rank one.
 * Any thread. Errors: UNSUPPORTED (this build has no CUDA, or the machine no driver). */
BANYAN_API banyan_status banyan_memory_count_gpus(int *count);

/* Return the device of this rank's part. Any thread. */
BANYAN_API DLDevice banyan_memory_device(const banyan_memory *memory);

/* Set `*device` to the device of an address: BANYAN_HOST unless a GPU driver knows the address. Any
 * thread. */
BANYAN_API banyan_status banyan_memory_locate(const void *address, DLDevice *device);

/* Copy `bytes` bytes within or between host memory and GPUs, symmetric or not. The copy is done
 * when the call returns. It is not ordered with any stream. Use it to initialize or inspect data,
 * not to move much of it. Any thread. */
BANYAN_API banyan_status banyan_memory_copy(void *to, const void *from, size_t bytes);

/* Free a symmetric buffer: unmap all parts at this rank. A part stays allocated while a peer still
 * maps it. NULL is ignored. Local. */
BANYAN_API void banyan_memory_free(banyan_memory *memory);

/* Return the address of this rank's part, or NULL if it has 0 bytes. Any thread. */
BANYAN_API void *banyan_memory_local(const banyan_memory *memory);

/* Return the size of this rank's part in bytes, as allocated by the caller. Any thread. */
BANYAN_API size_t banyan_memory_bytes(const banyan_memory *memory);

/* Set `*address` and `*bytes` to the part of `rank`, as mapped in this process. Local. Errors:
 * INVALID (no such rank), UNSUPPORTED (a rank of another node). */
BANYAN_API banyan_status banyan_memory_peer(const banyan_memory *memory, int rank, void **address,
                                            size_t *bytes);

/* Register memory at [address, address + bytes): ordinary memory, or GPU memory of any origin.
 * Peers may then access it until it is unregistered; do not free it earlier. Peers map GPU memory
 * when a copy between GPUs is prepared (copy.h), and use staging for memory that CUDA does not let
 * them map. A rank has at most 1,048,576 registrations. Local. Errors: INVALID (not a valid range),
 * UNSUPPORTED (memory managed by CUDA), NO_MEMORY. */
BANYAN_API banyan_status banyan_memory_register(banyan_world *world, void *address, size_t bytes,
                                                banyan_memory_handle *handle);

/* End a registration, after the last access by a peer. Local. Errors: INVALID (`handle` is not one
 * that banyan_memory_register returned, or is already unregistered). */
BANYAN_API banyan_status banyan_memory_unregister(banyan_world *world,
                                                  const banyan_memory_handle *handle);

/* Make a handle of local memory that lies entirely in one symmetric buffer, or in one registration,
 * of `world`. Local. Errors: NOT_FOUND (it does not), INVALID (not a valid range). */
BANYAN_API banyan_status banyan_memory_find(banyan_world *world, const void *address, size_t bytes,
                                            banyan_memory_handle *handle);

/* Set `*address` to the address at which this process maps the symmetric memory that a handle of
 * any rank names. Local. Errors: UNSUPPORTED (registered memory, or a rank of another node),
 * NOT_FOUND (the buffer is freed, or belongs to another world), INVALID (the handle exceeds its
 * buffer). */
BANYAN_API banyan_status banyan_memory_map(banyan_world *world, const banyan_memory_handle *handle,
                                           void **address);

/* Set `*path` to the path that peers use for ordinary memory. Long pieces and rows of a few KiB may
 * go by different paths; it is STAGING if one of them does. The first call in a world may measure
 * and is collective; later calls are local. */
BANYAN_API banyan_status banyan_memory_user_path(banyan_world *world,
                                                 banyan_user_memory_path *path);

#ifdef __cplusplus
}
#endif
#endif
