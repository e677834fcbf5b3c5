#include "memory/symmetric/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "core/containers.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif

/* Mappings of this process that several of its ranks may share. */
static pthread_mutex_t shared_lock = PTHREAD_MUTEX_INITIALIZER;
static ARRAY(struct shared_pages {
    char *address;
    size_t mapped_bytes;
    int users;
}) shared;

static struct shared_pages *shared_find(const void *address)
{
    for (size_t i = 0; i < shared.count; i++) {
        if (shared.data[i].address == address)
            return &shared.data[i];
    }
    return NULL;
}

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static long free_huge_pages(void)
{
    long count = 0;
    FILE *file = fopen("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "re");
    if (!file)
        return 0;
    if (fscanf(file, "%ld", &count) != 1)
        count = 0;
    fclose(file);
    return count;
}

banyan_status memory_check_machine(size_t bytes, const char *what)
{
    struct sysinfo info;
    if (sysinfo(&info) != 0)
        return BANYAN_OK;
    uint64_t machine = ((uint64_t)info.totalram + info.totalswap) * info.mem_unit;
    if (bytes <= machine)
        return BANYAN_OK;
    return error_set(BANYAN_ERR_NO_MEMORY,
                     "out of memory: %zu bytes of %s were asked for and the machine has %" PRIu64,
                     bytes, what, machine);
}

/* Map at a multiple of 2 MiB if the mapping is as long, so that huge pages can back it. */
static char *map_aligned(int fd, size_t bytes)
{
    size_t slack = bytes >= PAGES_HUGE_BYTES ? PAGES_HUGE_BYTES : 0;
    char *room =
        mmap(NULL, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return NULL;
    char *address = room;
    if (slack)
        address += -(uintptr_t)room & (PAGES_HUGE_BYTES - 1);
    if (mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        int error = errno;
        munmap(room, bytes + slack);
        errno = error;
        return NULL;
    }
    if (address > room)
        munmap(room, (size_t)(address - room));
    if (address < room + slack)
        munmap(address + bytes, (size_t)(room + slack - address));
    return address;
}

banyan_status pages_map(int fd, size_t mapped_bytes, pages *made)
{
    char *address = map_aligned(fd, mapped_bytes);
    if (!address) {
        if (errno == ENOMEM)
            return error_no_memory(mapped_bytes, "a mapping of shared memory");
        return error_set_errno("cannot map %zu bytes of shared memory", mapped_bytes);
    }
    *made = (pages){address, mapped_bytes};
    return BANYAN_OK;
}

static banyan_status create_file(size_t bytes, unsigned flags, int *fd)
{
    int file = memfd_create("banyan", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
    if (file < 0)
        return error_set_errno("memfd_create");
    int failed;
    do
        failed = ftruncate(file, (off_t)bytes);
    while (failed != 0 && errno == EINTR);
    /* Seal the size: peers rely on it, and nobody may truncate the memory. */
    if (failed != 0 || fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        banyan_status status =
            errno == EFBIG || errno == ENOMEM || errno == EINVAL
                ? error_no_memory(bytes, "shared memory")
                : error_set_errno("cannot make %zu bytes of shared memory", bytes);
        close(file);
        return status;
    }
    *fd = file;
    return BANYAN_OK;
}

/* Allocate from the machine's reserved huge pages, all at once: running out later would raise
 * SIGBUS. False when there are too few. */
static bool create_huge(size_t bytes, int *fd, pages *made)
{
    int file;
    if ((uint64_t)free_huge_pages() < bytes / PAGES_HUGE_BYTES)
        return false;
    if (create_file(bytes, MFD_HUGETLB | MFD_HUGE_2MB, &file) != BANYAN_OK)
        return false;
    if (fallocate(file, 0, 0, (off_t)bytes) != 0 || pages_map(file, bytes, made) != BANYAN_OK) {
        close(file);
        return false;
    }
    *fd = file;
    return true;
}

static banyan_status create_ordinary(size_t bytes, bool sparse, int *fd, pages *made)
{
    int file;
    RETURN_IF_FAILED(create_file(bytes, 0, &file));
    banyan_status status = pages_map(file, bytes, made);
    if (status != BANYAN_OK) {
        close(file);
        return status;
    }
    if (!sparse && bytes >= PAGES_HUGE_BYTES)
        (void)madvise(made->address, bytes, MADV_HUGEPAGE);
    *fd = file;
    return BANYAN_OK;
}

banyan_status pages_create(size_t bytes, bool sparse, int *fd, pages *made)
{
    RETURN_IF_FAILED(memory_check_machine(bytes, "shared memory"));
    bool large = bytes >= PAGES_HUGE_BYTES;
    size_t unit = large && !sparse ? PAGES_HUGE_BYTES : page_bytes();
    size_t rounded = (bytes + unit - 1) / unit * unit; /* the caller has checked for overflow */
    if (sparse || !large || !create_huge(rounded, fd, made))
        RETURN_IF_FAILED(create_ordinary(rounded, sparse, fd, made));
    pthread_mutex_lock(&shared_lock);
    bool kept = array_push(&shared, (struct shared_pages){made->address, made->mapped_bytes, 1});
    pthread_mutex_unlock(&shared_lock);
    if (!kept) {
        munmap(made->address, made->mapped_bytes);
        close(*fd);
        *made = (pages){0};
        return BANYAN_ERR_NO_MEMORY;
    }
    return BANYAN_OK;
}

banyan_status pages_share(const void *address, size_t mapped_bytes, pages *made)
{
    pthread_mutex_lock(&shared_lock);
    struct shared_pages *found = shared_find(address);
    bool same = found && found->mapped_bytes == mapped_bytes;
    if (same) {
        found->users++;
        *made = (pages){found->address, mapped_bytes};
    }
    pthread_mutex_unlock(&shared_lock);
    if (!same)
        return error_set(BANYAN_ERR_NOT_FOUND, "no shared memory of %zu bytes is mapped at %p",
                         mapped_bytes, address);
    return BANYAN_OK;
}

void pages_release(pages *mapped)
{
    if (!mapped->address)
        return;
    bool last = true;
    pthread_mutex_lock(&shared_lock);
    struct shared_pages *found = shared_find(mapped->address);
    if (found && --found->users > 0)
        last = false;
    else if (found)
        *found = shared.data[--shared.count];
    if (shared.count == 0)
        array_free(&shared);
    pthread_mutex_unlock(&shared_lock);
    if (last)
        munmap(mapped->address, mapped->mapped_bytes);
    *mapped = (pages){0};
}

/* For kernels before 5.14, which lack MADV_POPULATE: touch the pages without changing them. */
static void symmetric_pages_touch(char *address, size_t bytes, bool write)
{
    size_t step = page_bytes() - (uintptr_t)address % page_bytes();
    for (size_t i = 0; i < bytes; i += step, step = page_bytes()) {
        _Atomic char *byte = (_Atomic char *)(address + i);
        if (write)
            atomic_fetch_or_explicit(byte, 0, memory_order_relaxed);
        else
            (void)atomic_load_explicit(byte, memory_order_relaxed);
    }
}

void memory_prefault(void *address, size_t bytes, bool write)
{
    if (bytes == 0)
        return;
    uintptr_t low = (uintptr_t)address & ~(uintptr_t)(page_bytes() - 1);
    size_t span = (size_t)((uintptr_t)address + bytes - low);
    if (madvise((void *)low, span, write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0)
        return;
    if (errno == EINVAL)
        symmetric_pages_touch(address, bytes, write);
}
