/* Declarations that the emulated driver's memory files share. */
#ifndef EMULATION_MEMORY_H
#define EMULATION_MEMORY_H

#include <stddef.h>
#include <sys/types.h>

#include "state.h"

#define GRANULE ((size_t)2 << 20)
#define DEVICE_BYTES ((size_t)4 << 30)

#pragma GCC visibility push(hidden)

/* Guards everything that is declared here. */
extern pthread_mutex_t memory_lock;

typedef struct physical {
    int fd, device, users;
    size_t bytes;
    CUmemAllocationHandleType types; /* permitted export types */
    struct multicast *multicast;     /* NULL: it is memory, not a multicast object */
} physical;

CUresult physical_make(int device, size_t bytes, CUmemAllocationHandleType types, physical **made);
void physical_drop(physical *of);
physical *physical_of(CUmemGenericAllocationHandle handle);
size_t physical_free_bytes(int device);

/* The name of memory for other processes: its file, as its creator has opened it. */
typedef struct file_name {
    pid_t pid;
    int fd, device;
    size_t bytes;
} file_name;

int file_open(const file_name *name);

/* If the file is a multicast object's, make `of` one. False: it could not be mapped. */
bool multicast_import(physical *of);
void multicast_drop(struct multicast *old);
/* True if all devices have been added. */
bool multicast_is_whole(const struct multicast *object);

typedef enum range_kind {
    RANGE_MAPPED, /* by cuMemMap */
    RANGE_PLAIN,  /* cuMemAlloc */
    RANGE_POOL,   /* cuMemAllocAsync */
    RANGE_IPC     /* a peer's, of cuMemAlloc there */
} range_kind;

/* A range of addresses of this process. */
typedef struct range {
    char *base;
    size_t bytes;
    physical *of;
    range_kind kind;
    bool accessible;
    struct range *next;
} range;

range *range_at(CUdeviceptr address);
range *range_add(char *base, size_t bytes, physical *of);
void range_remove(range *old);
/* Free the memory of a context that is destroyed. */
void ranges_drop_plain(CUdevice device);

#pragma GCC visibility pop

#endif
