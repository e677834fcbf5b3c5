#include "cuda/pipeline/nvshmem.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "core/module.h"
#include "cuda/memory/memory.h"
#include "cuda/runtime/foreign.h"

#define DEFAULT_LIBRARY "libnvshmem_host.so.3"
#define BLOCKS_MAX 64

typedef enum session_state {
    SESSION_NONE,
    SESSION_READY,
    SESSION_BROKEN /* a call did not return, or failed here and perhaps not on other ranks */
} session_state;

typedef struct session_block {
    char *memory; /* NULL: this rank could not allocate it */
    size_t bytes;
    bool is_free;
} session_block;

/* NVSHMEM's state belongs to the process, and so does this. All ranks make equal calls, so that
 * their lists of blocks are equal. */
static struct session {
    pthread_mutex_t lock;
    session_state state;
    int device, ranks, pe;
    nvshmem_functions functions;
    bool is_loaded;
    session_block blocks[BLOCKS_MAX];
    int block_count;
} session = {.lock = PTHREAD_MUTEX_INITIALIZER};

static banyan_status nvshmem_find_functions(void *library, const char *name)
{
    nvshmem_functions *all = &session.functions;
#define FIND(result, function, arguments)                                                          \
    *(void **)&all->function = dlsym(library, #function);                                          \
    if (!all->function)                                                                            \
        return banyan_error_set(BANYAN_ERR_UNSUPPORTED, "nvshmem: %s has no %s", name, #function);
    NVSHMEM_FUNCTIONS(FIND)
#undef FIND
#define LOOK_FOR(result, function, arguments) *(void **)&all->function = dlsym(library, #function);
    NVSHMEM_DEVICE_FUNCTIONS(LOOK_FOR)
#undef LOOK_FOR
    return BANYAN_OK;
}

static banyan_status nvshmem_load(void)
{
    const char *name = getenv("BANYAN_NVSHMEM");
    if (!name || !*name)
        name = DEFAULT_LIBRARY;
    if (session.is_loaded)
        return BANYAN_OK;
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                                "nvshmem: there is no NVSHMEM 3 (%s); BANYAN_NVSHMEM says where "
                                "its host library is",
                                dlerror());
    banyan_status status = nvshmem_find_functions(library, name);
    if (status != BANYAN_OK) {
        dlclose(library);
        return status;
    }
    session.is_loaded = true;
    return BANYAN_OK;
}

typedef struct process_token {
    uint64_t words[2];
} process_token;

static process_token own_token;
static pthread_once_t token_made = PTHREAD_ONCE_INIT;

static void make_token(void)
{
    if (getrandom(&own_token, sizeof own_token, 0) != sizeof own_token)
        own_token = (process_token){{(uint64_t)getpid(), (uint64_t)time(NULL)}};
}

/* Ranks that are threads of one process would deadlock on the session's lock. `all` has an entry
 * for each rank. Collective. */
static banyan_status check_processes(banyan_world *world, process_token *all)
{
    int ranks = banyan_world_size(world);
    pthread_once(&token_made, make_token);
    RETURN_IF_FAILED(banyan_world_allgather(world, &own_token, sizeof own_token, all));
    for (int rank = 1; rank < ranks; rank++)
        for (int other = 0; other < rank; other++)
            if (memcmp(&all[rank], &all[other], sizeof *all) == 0)
                return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                                        "nvshmem: ranks %d and %d are one process, and NVSHMEM "
                                        "wants one for each",
                                        other, rank);
    return BANYAN_OK;
}

typedef struct session_word {
    int32_t state, ranks, pe;
    uint64_t free_blocks; /* blocks that are large enough */
} session_word;

/* Agree on success, and exchange a word with all ranks. Collective. */
static banyan_status exchange_words(banyan_world *world, banyan_status mine, session_word *all)
{
    session_word said = {.state = (int32_t)session.state,
                         .ranks = session.ranks,
                         .pe = session.pe,
                         .free_blocks = all[0].free_blocks};
    RETURN_IF_FAILED(banyan_module_agree(world, mine));
    return banyan_world_allgather(world, &said, sizeof said, all);
}

/* Adopt an NVSHMEM that other code has initialized, if it has exactly these ranks. */
static banyan_status nvshmem_adopt(banyan_world *world, int device)
{
    const nvshmem_functions *all = &session.functions;
    if (all->nvshmemx_init_status() < NVSHMEM_STATUS_READY)
        return banyan_error_set(
            BANYAN_ERR_NVSHMEM,
            "nvshmem: should_init_nvshmem is false, and NVSHMEM is not initialised");
    int rank = banyan_world_rank(world), ranks = banyan_world_size(world);
    int pe = all->nvshmem_my_pe(), pes = all->nvshmem_n_pes();
    if (pe != rank || pes != ranks)
        return banyan_error_set(BANYAN_ERR_NVSHMEM,
                                "nvshmem: it has been initialised as rank %d of %d, and this is "
                                "rank %d of %d",
                                pe, pes, rank, ranks);
    session.state = SESSION_READY;
    session.device = device;
    session.ranks = pes;
    session.pe = pe;
    return BANYAN_OK;
}

static banyan_status nvshmem_check_own(banyan_world *world, int device, const nvshmem_start *start)
{
    if (session.state == SESSION_BROKEN)
        return banyan_error_set(
            BANYAN_ERR_UNSUPPORTED,
            "nvshmem: an earlier call of NVSHMEM failed or did not return in this process");
    if (session.state == SESSION_READY && session.device != device)
        return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                                "nvshmem: NVSHMEM has device %d in this process, and cannot have "
                                "device %d, too",
                                session.device, device);
    RETURN_IF_FAILED(nvshmem_load());
    if (start->is_there)
        return nvshmem_adopt(world, device);
    if (session.state == SESSION_READY)
        return BANYAN_OK;
    if (session.functions.nvshmemx_init_status() >= NVSHMEM_STATUS_READY)
        return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                                "nvshmem: other code has initialised NVSHMEM in this process");
    return BANYAN_OK;
}

static banyan_status nvshmem_check_all(const session_word *all, int ranks)
{
    for (int rank = 0; rank < ranks; rank++) {
        bool is_ready = all[rank].state == SESSION_READY;
        if (all[rank].state != all[0].state || (is_ready && all[rank].ranks != ranks))
            return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                                    "nvshmem: NVSHMEM has been initialised for other ranks: rank "
                                    "%d is one of %d, and this world has %d",
                                    rank, all[rank].ranks, ranks);
    }
    return BANYAN_OK;
}

static struct session_init {
    nvshmem_id id;
    nvshmem_attributes attributes;
    int rank, ranks;
} init;

static banyan_status nvshmem_call_init(void *argument)
{
    struct session_init *made = argument;
    const nvshmem_functions *all = &session.functions;
    nvshmem_attributes *attributes = &made->attributes;
    attributes->version = NVSHMEM_VERSION_OF(nvshmem_attributes);
    attributes->args.version = NVSHMEM_VERSION_OF(attributes->args);
    attributes->args.id_args.version = NVSHMEM_VERSION_OF(nvshmem_id_args);
    int result =
        all->nvshmemx_set_attr_uniqueid_args(made->rank, made->ranks, &made->id, attributes);
    if (result == 0)
        result = all->nvshmemx_hostlib_init_attr(NVSHMEM_WITH_ID, attributes);
    if (result == 0)
        return BANYAN_OK;
    return banyan_error_set(BANYAN_ERR_SYSTEM, "nvshmemx_hostlib_init_attr gave %d", result);
}

/* On one machine no network is needed. */
static void nvshmem_set_environment(const banyan_world *world, const nvshmem_start *start)
{
    setenv("NVSHMEM_DISABLE_NVLS", "1", 1);
    if (banyan_world_node_count(world) > 1) {
        if (start->sets_ibgda)
            setenv("NVSHMEM_IB_ENABLE_IBGDA", start->ibgda ? "1" : "0", 1);
        return;
    }
    setenv("NVSHMEM_REMOTE_TRANSPORT", "none", 0);
    setenv("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "lo", 0);
}

/* Share rank 0's id, or its failure. Collective. */
static banyan_status nvshmem_share_id(banyan_world *world)
{
    struct {
        int32_t result;
        nvshmem_id id;
    } given = {.id.version = NVSHMEM_VERSION_OF(nvshmem_id)};
    if (banyan_world_rank(world) == 0)
        given.result = session.functions.nvshmemx_get_uniqueid(&given.id);
    RETURN_IF_FAILED(banyan_world_broadcast(world, &given, sizeof given, 0));
    if (given.result != 0)
        return banyan_error_set(BANYAN_ERR_SYSTEM, "rank 0: nvshmemx_get_uniqueid gave %d",
                                given.result);
    init.id = given.id;
    return BANYAN_OK;
}

/* Collective. */
static banyan_status nvshmem_initialise(banyan_world *world, int device, const nvshmem_start *start)
{
    nvshmem_set_environment(world, start);
    RETURN_IF_FAILED(nvshmem_share_id(world));
    init.rank = banyan_world_rank(world);
    init.ranks = banyan_world_size(world);
    foreign_end end;
    banyan_status status = foreign_run_together(world, device, "nvshmemx_hostlib_init_attr",
                                                nvshmem_call_init, &init, &end);
    if (end == FOREIGN_NOT_CALLED)
        return status;
    session.state = SESSION_BROKEN;
    if (status != BANYAN_OK)
        return status;
    session.state = SESSION_READY;
    session.device = device;
    session.ranks = init.ranks;
    session.pe = session.functions.nvshmem_my_pe();
    return BANYAN_OK;
}

static uint64_t free_blocks(size_t bytes)
{
    uint64_t found = 0;
    for (int i = 0; i < session.block_count; i++) {
        const session_block *block = &session.blocks[i];
        if (block->memory && block->is_free && block->bytes >= bytes)
            found |= (uint64_t)1 << i;
    }
    return found;
}

static banyan_status call_malloc(void *argument)
{
    session_block *block = argument;
    block->memory = session.functions.nvshmem_malloc(block->bytes);
    return BANYAN_OK;
}

/* Collective. Lists stay equal on all ranks, even if a rank could not allocate the memory. */
static banyan_status nvshmem_add_block(banyan_world *world, size_t bytes, int *number)
{
    if (session.block_count == BLOCKS_MAX)
        return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                                "nvshmem: %d blocks of NVSHMEM's memory are in use", BLOCKS_MAX);
    *number = session.block_count;
    session_block *block = &session.blocks[*number];
    block->bytes = bytes;
    foreign_end end;
    banyan_status status =
        foreign_run_together(world, session.device, "nvshmem_malloc", call_malloc, block, &end);
    if (end == FOREIGN_NOT_CALLED)
        return status;
    session.block_count++;
    if (status != BANYAN_OK)
        session.state = SESSION_BROKEN;
    else if (!block->memory)
        status =
            banyan_error_set(BANYAN_ERR_NO_MEMORY,
                             "nvshmem_malloc has no %zu bytes (NVSHMEM_SYMMETRIC_SIZE)", bytes);
    return status;
}

/* Initialize on all ranks, and exchange the numbers of free blocks. Collective. */
static banyan_status get_ready(banyan_world *world, int device, const nvshmem_start *start,
                               size_t bytes, session_word *all)
{
    RETURN_IF_FAILED(exchange_words(world, nvshmem_check_own(world, device, start), all));
    RETURN_IF_FAILED(nvshmem_check_all(all, banyan_world_size(world)));
    banyan_status status =
        session.state == SESSION_READY ? BANYAN_OK : nvshmem_initialise(world, device, start);
    all[0].free_blocks = free_blocks(bytes);
    return exchange_words(world, status, all);
}

/* Find a free block of this size on all ranks: an existing or a new one. */
static banyan_status find_block(banyan_world *world, size_t bytes, const session_word *all,
                                int *number)
{
    uint64_t common = UINT64_MAX;
    for (int rank = 0; rank < banyan_world_size(world); rank++)
        common &= all[rank].free_blocks;
    if (common == 0)
        return nvshmem_add_block(world, bytes, number);
    *number = __builtin_ctzll(common);
    return BANYAN_OK;
}

/* Collective: ranks agree on every step. */
static banyan_status take_locked(banyan_world *world, int device, const nvshmem_start *start,
                                 size_t bytes, size_t zero_bytes, session_word *all,
                                 nvshmem_part *part)
{
    int number = 0, ranks = banyan_world_size(world);
    RETURN_IF_FAILED(get_ready(world, device, start, bytes, all));
    banyan_status status = find_block(world, bytes, all, &number);
    session_block *block = &session.blocks[number];
    if (status == BANYAN_OK) {
        block->is_free = true;
        status = bytes_fill(block->memory, 0, zero_bytes);
    }
    status = exchange_words(world, status, all);
    if (status != BANYAN_OK)
        return status;
    for (int rank = 0; rank < ranks; rank++)
        part->pes[rank] = all[rank].pe;
    part->functions = &session.functions;
    part->local = block->memory;
    part->block = number;
    block->is_free = false;
    return BANYAN_OK;
}

banyan_status nvshmem_take(banyan_world *world, int device, const nvshmem_start *start,
                           size_t bytes, size_t zero_bytes, nvshmem_part *part)
{
    size_t ranks = (size_t)banyan_world_size(world);
    process_token *tokens = calloc(ranks, sizeof *tokens);
    session_word *all = calloc(ranks, sizeof *all);
    nvshmem_part made = {.pes = calloc(ranks, sizeof *made.pes)};
    banyan_status status =
        tokens && all && made.pes
            ? BANYAN_OK
            : banyan_error_set(BANYAN_ERR_NO_MEMORY, "cuda: out of memory: %zu ranks", ranks);
    status = banyan_module_agree(world, status);
    if (status == BANYAN_OK)
        status = check_processes(world, tokens);
    if (status == BANYAN_OK) {
        pthread_mutex_lock(&session.lock);
        status = take_locked(world, device, start, bytes, zero_bytes, all, &made);
        pthread_mutex_unlock(&session.lock);
    }
    free(all);
    free(tokens);
    if (status == BANYAN_OK)
        *part = made;
    else
        free(made.pes);
    return status;
}

void nvshmem_give_back(nvshmem_part *part)
{
    if (!part->local)
        return;
    pthread_mutex_lock(&session.lock);
    session.blocks[part->block].is_free = true;
    pthread_mutex_unlock(&session.lock);
    free(part->pes);
    *part = (nvshmem_part){0};
}
