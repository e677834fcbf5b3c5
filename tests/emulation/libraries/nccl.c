/* NCCL for emulated devices. A communicator is a memory file that its ranks map, with a slot for
 * each rank and a mailbox for each pair. A collective, or a group of sends and receives, is a
 * kernel of emulated streams. It waits for the other ranks' like a real one, until its
 * communicator is aborted. EMULATED_NCCL_FAILS=n: rank n of each communicator cannot start it, and
 * the others wait, as with the real library. */
#include "cuda/copy/nccl/library.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/types/float_bits.h"
#include "cuda.h"

#define RANKS_MAX 16
#define SLOT_BYTES ((size_t)64 << 10)
#define HEADER_BYTES ((size_t)4096)
#define MAIL_BYTES ((size_t)16 << 10)
#define MAIL_AT (HEADER_BYTES + RANKS_MAX * SLOT_BYTES)
#define FILE_BYTES (MAIL_AT + RANKS_MAX * RANKS_MAX * sizeof(mailbox))

enum { SYSTEM_ERROR = 2, INTERNAL_ERROR = 3, INVALID_USAGE = 5 };

/* The emulated driver declares this as well. */
struct emulated_kernel {
    void (*call)(const void *args);
    size_t args_bytes;
};

/* From one rank to another: full when more has been written than read. */
typedef struct mailbox {
    atomic_ullong written, read;
    size_t bytes;
    char data[MAIL_BYTES];
} mailbox;

typedef struct emulated_comm {
    char *file;
    int rank, ranks;
    uint64_t barriers;
    atomic_bool aborted;
    bool fails;
    struct group *groups; /* queued groups, which graphs may contain */
} emulated_comm;

typedef struct message {
    char *data;
    size_t bytes;
    int peer;
    bool is_send;
} message;

/* All messages are in progress at once, but only the first to each peer, and from it. */
typedef struct group {
    struct group *next;
    emulated_comm *comm;
    void *stream;
    size_t count;
    message messages[];
} group;

static CUresult (*launch)(CUfunction kernel, unsigned, unsigned, unsigned, unsigned, unsigned,
                          unsigned, unsigned, CUstream stream, void **params, void **extra);
static const char *last_error = "";

/* Number of arrivals: at the communicator, and at its barriers. */
static atomic_ullong *arrivals(const emulated_comm *comm, int which)
{
    return (atomic_ullong *)(void *)comm->file + which;
}

static char *slot_of(const emulated_comm *comm, int rank)
{
    return comm->file + HEADER_BYTES + (size_t)rank * SLOT_BYTES;
}

/* False: aborted. */
static bool barrier(emulated_comm *comm)
{
    uint64_t all = ++comm->barriers * (uint64_t)comm->ranks;
    atomic_fetch_add(arrivals(comm, 1), 1);
    while (atomic_load(arrivals(comm, 1)) < all) {
        if (atomic_load(&comm->aborted))
            return false;
        sched_yield();
    }
    return true;
}

/* By one thread. */
static int launch_one(const struct emulated_kernel *kernel, void *args, void *stream)
{
    void *params[] = {args};
    CUresult result =
        launch((CUfunction)(uintptr_t)kernel, 1, 1, 1, 1, 1, 1, 0, (CUstream)stream, params, NULL);
    return result == CUDA_SUCCESS ? NCCL_SUCCESS : INTERNAL_ERROR;
}

int ncclGetUniqueId(nccl_unique_id *id)
{
    int fd = memfd_create("nccl", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)FILE_BYTES) != 0)
        return SYSTEM_ERROR;
    snprintf(id->bytes, sizeof id->bytes, "/proc/%d/fd/%d", (int)getpid(), fd);
    return NCCL_SUCCESS;
}

static bool must_fail(int rank)
{
    const char *failing = getenv("EMULATED_NCCL_FAILS");
    return failing && atoi(failing) == rank;
}

static bool find_driver(void)
{
    void *library = dlopen(EMULATED_DRIVER, RTLD_NOW | RTLD_NOLOAD);
    if (library)
        *(void **)&launch = dlsym(library, "cuLaunchKernel");
    return launch != NULL;
}

/* Never waits. */
int ncclCommInitRankConfig(void **made, int ranks, nccl_unique_id id, int rank, nccl_config *config)
{
    emulated_comm *comm = calloc(1, sizeof *comm);
    int fd = open(id.bytes, O_RDWR | O_CLOEXEC);
    if (!comm || fd < 0 || config->blocking || ranks > RANKS_MAX || !find_driver())
        return SYSTEM_ERROR;
    comm->file = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (comm->file == MAP_FAILED)
        return SYSTEM_ERROR;
    comm->rank = rank;
    comm->ranks = ranks;
    comm->fails = must_fail(rank);
    if (comm->fails)
        last_error = "the emulated network of this rank is down";
    else
        atomic_fetch_add(arrivals(comm, 0), 1);
    *made = comm;
    return NCCL_IN_PROGRESS;
}

int ncclCommGetAsyncError(void *given, int *error)
{
    const emulated_comm *comm = given;
    bool all = atomic_load(arrivals(comm, 0)) == (uint64_t)comm->ranks;
    *error = comm->fails ? SYSTEM_ERROR : all ? NCCL_SUCCESS : NCCL_IN_PROGRESS;
    return NCCL_SUCCESS;
}

int ncclCommFinalize(void *comm)
{
    (void)comm;
    return NCCL_SUCCESS;
}

static void free_groups(emulated_comm *comm)
{
    for (group *at = comm->groups, *next; at; at = next) {
        next = at->next;
        free(at);
    }
}

int ncclCommDestroy(void *given)
{
    emulated_comm *comm = given;
    munmap(comm->file, FILE_BYTES);
    free_groups(comm);
    free(comm);
    return NCCL_SUCCESS;
}

/* Running kernels still read it. */
int ncclCommAbort(void *given)
{
    emulated_comm *comm = given;
    atomic_store(&comm->aborted, true);
    return NCCL_SUCCESS;
}

const char *ncclGetErrorString(int error)
{
    return error == SYSTEM_ERROR ? "unhandled system error" : "invalid usage";
}

const char *ncclGetLastError(void *comm)
{
    (void)comm;
    return last_error;
}

typedef enum { ALLREDUCE, ALLGATHER, REDUCESCATTER } collective_kind;

typedef struct collective {
    emulated_comm *comm;
    collective_kind kind;
    int type;
    const char *from;
    char *to;
    size_t count; /* elements, as NCCL counts them */
} collective;

static size_t bytes_of(int type)
{
    return type == NCCL_F32 ? 4 : 2;
}

static float load(int type, const char *from, size_t i)
{
    uint32_t wide;
    uint16_t half;
    if (type == NCCL_F32) {
        memcpy(&wide, from + i * 4, sizeof wide);
        return f32_of_bits(wide);
    }
    memcpy(&half, from + i * 2, sizeof half);
    return f32_of_bits(type == NCCL_BF16 ? f32_of_bf16(half) : f32_of_f16(half));
}

static void store(int type, char *to, size_t i, float value)
{
    uint32_t wide = f32_bits(value);
    uint16_t half = (uint16_t)(type == NCCL_BF16 ? bf16_of_f32(wide) : f16_of_f32(wide));
    if (type == NCCL_F32)
        memcpy(to + i * 4, &wide, sizeof wide);
    else
        memcpy(to + i * 2, &half, sizeof half);
}

/* Add all ranks' slots, element by element in rank order. */
static void add_up(const collective *of, char *to, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float sum = load(of->type, slot_of(of->comm, 0), i);
        for (int rank = 1; rank < of->comm->ranks; rank++)
            sum += load(of->type, slot_of(of->comm, rank), i);
        store(of->type, to, i, sum);
    }
}

/* Exchange `count` elements of every rank from `from` on, at most a slot. False: aborted. */
static bool exchange(const collective *of, const char *from, char *to, size_t count, bool adds)
{
    size_t bytes = count * bytes_of(of->type), whole = of->count * bytes_of(of->type);
    memcpy(slot_of(of->comm, of->comm->rank), from, bytes);
    if (!barrier(of->comm))
        return false;
    if (to && adds)
        add_up(of, to, count);
    for (int rank = 0; to && !adds && rank < of->comm->ranks; rank++)
        memcpy(to + (size_t)rank * whole, slot_of(of->comm, rank), bytes);
    return barrier(of->comm);
}

static void run_collective(const void *given)
{
    const collective *of = given;
    size_t elem = bytes_of(of->type), most = SLOT_BYTES / elem;
    int parts = of->kind == REDUCESCATTER ? of->comm->ranks : 1;
    for (int part = 0; part < parts; part++) {
        bool is_mine = of->kind != REDUCESCATTER || part == of->comm->rank;
        for (size_t at = 0; at < of->count; at += most) {
            size_t count = of->count - at < most ? of->count - at : most;
            const char *from = of->from + ((size_t)part * of->count + at) * elem;
            if (!exchange(of, from, is_mine ? of->to + at * elem : NULL, count,
                          of->kind != ALLGATHER))
                return;
        }
    }
}

static int queue(collective what, void *stream)
{
    static const struct emulated_kernel kernel = {run_collective, sizeof(collective)};
    return launch_one(&kernel, &what, stream);
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, void *comm,
                  void *stream)
{
    return op == NCCL_SUM ? queue((collective){comm, ALLREDUCE, type, from, to, count}, stream)
                          : INVALID_USAGE;
}

int ncclAllGather(const void *from, void *to, size_t count, int type, void *comm, void *stream)
{
    return queue((collective){comm, ALLGATHER, type, from, to, count}, stream);
}

int ncclReduceScatter(const void *from, void *to, size_t count, int type, int op, void *comm,
                      void *stream)
{
    return op == NCCL_SUM ? queue((collective){comm, REDUCESCATTER, type, from, to, count}, stream)
                          : INVALID_USAGE;
}

/* The group that this thread is collecting. */
static _Thread_local int depth;
static _Thread_local group *collected;

/* Transfer one mailbox; false: not yet. */
static bool advance(const emulated_comm *comm, const message *of, size_t *done)
{
    int from = of->is_send ? comm->rank : of->peer, to = of->is_send ? of->peer : comm->rank;
    mailbox *mail = (mailbox *)(void *)(comm->file + MAIL_AT) + from * RANKS_MAX + to;
    bool is_full = atomic_load(&mail->written) > atomic_load(&mail->read);
    if (is_full == of->is_send)
        return false;
    if (of->is_send) {
        size_t left = of->bytes - *done;
        mail->bytes = left < MAIL_BYTES ? left : MAIL_BYTES;
        memcpy(mail->data, of->data + *done, mail->bytes);
        *done += mail->bytes;
        atomic_fetch_add(&mail->written, 1);
    } else {
        if (mail->bytes > of->bytes - *done)
            abort(); /* sender and receiver mean different messages */
        memcpy(of->data + *done, mail->data, mail->bytes);
        *done += mail->bytes;
        atomic_fetch_add(&mail->read, 1);
    }
    return true;
}

/* Return the number of unfinished messages. */
static size_t advance_all(const group *of, size_t *done, bool *any)
{
    bool taken[2][RANKS_MAX] = {{false}};
    size_t left = 0;
    *any = false;
    for (size_t i = 0; i < of->count; i++) {
        const message *at = &of->messages[i];
        if (done[i] == at->bytes)
            continue;
        if (!taken[at->is_send][at->peer])
            *any |= advance(of->comm, at, &done[i]);
        taken[at->is_send][at->peer] = true;
        left += done[i] < at->bytes;
    }
    return left;
}

static void run_group(const void *given)
{
    const group *of = *(group *const *)given;
    size_t *done = calloc(of->count, sizeof *done);
    bool any;
    while (advance_all(of, done, &any) > 0 && !atomic_load(&of->comm->aborted)) {
        if (!any)
            sched_yield();
    }
    free(done);
}

int ncclGroupStart(void)
{
    depth++;
    return NCCL_SUCCESS;
}

int ncclGroupEnd(void)
{
    static const struct emulated_kernel kernel = {run_group, sizeof(group *)};
    group *made = collected;
    if (--depth > 0 || !made)
        return NCCL_SUCCESS;
    collected = NULL;
    made->next = made->comm->groups;
    made->comm->groups = made;
    return launch_one(&kernel, &made, made->stream);
}

static int collect(message what, void *comm, void *stream)
{
    size_t count = collected ? collected->count : 0;
    group *grown = realloc(collected, sizeof *grown + (count + 1) * sizeof what);
    if (!grown)
        return SYSTEM_ERROR;
    collected = grown;
    if (count == 0)
        *grown = (group){.comm = comm, .stream = stream};
    grown->messages[grown->count++] = what;
    return NCCL_SUCCESS;
}

static int add_message(message what, void *comm, void *stream)
{
    ncclGroupStart();
    int result = collect(what, comm, stream);
    int ended = ncclGroupEnd();
    return result == NCCL_SUCCESS ? ended : result;
}

int ncclSend(const void *from, size_t count, int type, int peer, void *comm, void *stream)
{
    message what = {(char *)(uintptr_t)from, count, peer, true};
    return type == NCCL_BYTES ? add_message(what, comm, stream) : INVALID_USAGE;
}

int ncclRecv(void *to, size_t count, int type, int peer, void *comm, void *stream)
{
    message what = {to, count, peer, false};
    return type == NCCL_BYTES ? add_message(what, comm, stream) : INVALID_USAGE;
}
