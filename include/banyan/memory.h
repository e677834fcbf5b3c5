/* Banyan: memory that the peers of a node can reach.
 *
 * Symmetric buffers are allocated by all ranks together and mapped by every rank of the node: a
 * peer's part is an ordinary pointer. Ordinary memory can be registered; peers then read and write
 * it through the kernel (process_vm_readv, process_vm_writev) or, where that is not allowed or not
 * as fast, through staging slots that its owner empties and fills. Which one is measured once, when
 * it is first needed, and can be forced with BANYAN_USER_MEMORY=cma|staging.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef BANYAN_MEMORY_H
#define BANYAN_MEMORY_H

#include <banyan/world.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A symmetric buffer. */
typedef struct banyan_memory banyan_memory;

/* How a peer names memory of another rank: plain bytes that may be sent. */
typedef struct banyan_memory_handle {
    int32_t rank;     /* in the world where it was made */
    uint32_t kind;    /* enum banyan_memory_kind */
    uint64_t id;      /* of the symmetric buffer or registration */
    uint64_t address; /* in the owner's address space */
    uint64_t bytes;
} banyan_memory_handle;

/* Bytes of a peer's memory and their place here. */
typedef struct banyan_iovec {
    uint64_t offset; /* into the remote memory, added to its own */
    void *local;
    size_t bytes;
} banyan_iovec;

typedef enum banyan_memory_kind {
    BANYAN_MEMORY_SYMMETRIC = 1, /* mapped by every rank of the node */
    BANYAN_MEMORY_USER = 2,      /* registered ordinary memory */
    BANYAN_MEMORY_DEVICE = 3     /* registered memory of a GPU */
} banyan_memory_kind;

/* How peers reach registered ordinary memory. */
typedef enum banyan_user_memory_path {
    BANYAN_USER_MEMORY_CMA = 1,
    BANYAN_USER_MEMORY_STAGING = 2
} banyan_user_memory_path;

/* Allocate `bytes` on this rank, zeroed, aligned to a page (2 MiB when it is as long) and mapped by
 * all ranks of the node. Ranks may ask for different sizes, 0 included. It has no name in any file
 * system and ends with the last process that maps it. Huge pages are used where the machine has
 * them. Collective. Errors: NO_MEMORY, SYSTEM. */
BANYAN_API banyan_status banyan_memory_alloc(banyan_world *world, size_t bytes,
                                             banyan_memory **memory);

/* The same on a GPU, whose ranks map each other's parts over NVLink or PCIe: every rank names its
 * GPU (BANYAN_CUDA), and several may name the same. On the host it is banyan_memory_alloc.
 * Collective. UNSUPPORTED: this build or machine has no such device, or two ranks' GPUs cannot
 * reach each other. */
BANYAN_API banyan_status banyan_memory_alloc_on(banyan_world *world, DLDevice device, size_t bytes,
                                                banyan_memory **memory);

/* A symmetric buffer of memory on GPUs that the callers have allocated, of any origin (cudaMalloc,
 * PyTorch's allocator, …), every rank its part; 0 bytes are allowed. It stays the callers': they
 * keep it allocated until all ranks have freed the buffer. Collective. UNSUPPORTED, saying why,
 * when CUDA lets peers not map one of the parts (it is of a stream-ordered pool, say); INVALID when
 * it lies elsewhere than on the device. */
BANYAN_API banyan_status banyan_memory_adopt(banyan_world *world, DLDevice device, void *address,
                                             size_t bytes, banyan_memory **memory);

/* Where this rank's part lies. */
BANYAN_API DLDevice banyan_memory_device(const banyan_memory *memory);

/* Where any memory of this process lies: BANYAN_HOST for all that no GPU driver knows. Any thread.
 */
BANYAN_API banyan_status banyan_memory_locate(const void *address, DLDevice *device);

/* Copy between any memory of this process, the host's or a GPU's, symmetric or not; done when it
 * returns, and not ordered with any stream: for data that is put somewhere or looked at, not for
 * moving it fast. Any thread. */
BANYAN_API banyan_status banyan_memory_copy(void *to, const void *from, size_t bytes);

/* Unmap everywhere here. Local; peers that still map a part keep it. NULL is ignored. */
BANYAN_API void banyan_memory_free(banyan_memory *memory);

/* This rank's part, and its size as asked for. */
BANYAN_API void *banyan_memory_local(const banyan_memory *memory);
BANYAN_API size_t banyan_memory_bytes(const banyan_memory *memory);

/* Rank's part, as mapped here, and its size. UNSUPPORTED for a rank of another node. */
BANYAN_API banyan_status banyan_memory_peer(const banyan_memory *memory, int rank, void **address,
                                            size_t *bytes);

/* Let peers reach [address, address + bytes) of ordinary memory, or of one GPU's memory of any
 * origin, until it is unregistered. The caller keeps it allocated that long. Peers map a GPU's when
 * a copy between GPUs is prepared, and stage what CUDA lets nobody map. UNSUPPORTED for managed
 * memory. Local. */
BANYAN_API banyan_status banyan_memory_register(banyan_world *world, void *address, size_t bytes,
                                                banyan_memory_handle *handle);

/* Local; a handle that is not registered is INVALID. */
BANYAN_API banyan_status banyan_memory_unregister(banyan_world *world,
                                                  const banyan_memory_handle *handle);

/* The handle of local memory that lies in a symmetric buffer or a registration of `world`, whole.
 * NOT_FOUND when it does not. Local. */
BANYAN_API banyan_status banyan_memory_find(banyan_world *world, const void *address, size_t bytes,
                                            banyan_memory_handle *handle);

/* Where a peer's symmetric memory is mapped in this process. UNSUPPORTED for registered memory and
 * for another node's, NOT_FOUND for a buffer that is freed or was never here, INVALID for a handle
 * that reaches out of its buffer. Local. */
BANYAN_API banyan_status banyan_memory_map(banyan_world *world, const banyan_memory_handle *handle,
                                           void **address);

/* Which path serves ordinary memory here. Collective the first time (it is measured), local then.
 */
BANYAN_API banyan_status banyan_memory_user_path(banyan_world *world,
                                                 banyan_user_memory_path *path);

#ifdef __cplusplus
}
#endif
#endif
