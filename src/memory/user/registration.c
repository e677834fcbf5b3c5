/* Ordinary memory that peers may access, and the search for the buffer or registration of a
 * pointer. */
#include <inttypes.h>

#include "core/error.h"
#include "memory/device.h"
#include "memory/symmetric/symmetric.h"

/* Peers may be reading the entry, so it is empty while it changes. */
static void entry_show(registration_entry *entry, const registration *what)
{
    atomic_store_explicit(&entry->id, 0, memory_order_seq_cst);
    if (!what->live || what->kind != BANYAN_MEMORY_USER)
        return;
    atomic_store_explicit(&entry->address, what->address, memory_order_release);
    atomic_store_explicit(&entry->bytes, what->bytes, memory_order_release);
    atomic_store_explicit(&entry->id, what->id, memory_order_release);
}

static size_t registration_index_of(uint64_t id)
{
    return (size_t)(id & UINT32_MAX) - 1;
}

static bool range_covers(uint64_t address, uint64_t bytes, const banyan_memory_handle *handle)
{
    return handle->address >= address && handle->address - address <= bytes &&
           handle->bytes <= bytes - (handle->address - address);
}

void registrations_show(memory_space *space, registration_entry *shown)
{
    pthread_rwlock_wrlock(&space->lock);
    for (size_t i = 0; i < space->registrations.count; i++)
        entry_show(&shown[i], &space->registrations.data[i]);
    space->shown = shown;
    pthread_rwlock_unlock(&space->lock);
}

const registration *registration_find(const memory_space *space, uint32_t kind, uint64_t id)
{
    size_t index = registration_index_of(id);
    if (index >= space->registrations.count)
        return NULL;
    const registration *found = &space->registrations.data[index];
    return found->live && found->id == id && found->kind == kind ? found : NULL;
}

bool registration_covers(const memory_space *space, const banyan_memory_handle *handle)
{
    const registration *found = registration_find(space, handle->kind, handle->id);
    return found && range_covers(found->address, found->bytes, handle);
}

bool registration_shown_covers(registration_entry *shown, const banyan_memory_handle *handle)
{
    size_t index = registration_index_of(handle->id);
    if (handle->kind != BANYAN_MEMORY_USER || index >= REGISTRATIONS_MAX)
        return false;
    registration_entry *entry = &shown[index];
    if (atomic_load_explicit(&entry->id, memory_order_acquire) != handle->id)
        return false;
    uint64_t address = atomic_load_explicit(&entry->address, memory_order_acquire);
    uint64_t bytes = atomic_load_explicit(&entry->bytes, memory_order_acquire);
    return range_covers(address, bytes, handle) &&
           atomic_load_explicit(&entry->id, memory_order_acquire) == handle->id;
}

banyan_status registration_missing(const memory_space *space, const banyan_memory_handle *handle)
{
    return error_set(BANYAN_ERR_INVALID,
                     "rank %d asked for %" PRIu64 " bytes at %#" PRIx64
                     " of rank %d, which has not registered them (id %#" PRIx64 ")",
                     space->rank, handle->bytes, handle->address, handle->rank, handle->id);
}

/* With the lock held: take a free entry, with a new id. */
static banyan_status registration_take_place(memory_space *space, size_t *index)
{
    if (space->first_free != 0) {
        *index = space->first_free - 1;
        space->first_free = space->registrations.data[*index].next_free;
        return BANYAN_OK;
    }
    if (space->registrations.count == REGISTRATIONS_MAX)
        return error_set(
            BANYAN_ERR_NO_MEMORY,
            "rank %d has %zu registrations, which is the limit: register larger blocks",
            space->rank, REGISTRATIONS_MAX);
    size_t fresh = space->registrations.count;
    if (!array_push(&space->registrations, (registration){.id = fresh + 1}))
        return BANYAN_ERR_NO_MEMORY;
    *index = fresh;
    return BANYAN_OK;
}

static void give_back_place(memory_space *space, size_t index)
{
    registration *gone = &space->registrations.data[index];
    gone->live = false;
    gone->next_free = space->first_free;
    space->first_free = index + 1;
    if (space->shown)
        entry_show(&space->shown[index], gone);
}

static banyan_status registration_add(memory_space *space, banyan_memory_kind kind,
                                      uintptr_t address, size_t bytes, uint64_t *id)
{
    size_t index = 0;
    RETURN_IF_FAILED(registration_take_place(space, &index));
    registration *made = &space->registrations.data[index];
    made->id += UINT64_C(1) << 32;
    made->address = address;
    made->bytes = bytes;
    made->kind = kind;
    if (!spans_add(&space->registration_spans, address, address + bytes, made->id)) {
        give_back_place(space, index);
        return BANYAN_ERR_NO_MEMORY;
    }
    made->live = true;
    if (space->shown)
        entry_show(&space->shown[index], made);
    *id = made->id;
    return BANYAN_OK;
}

static banyan_memory_handle handle_of(const memory_space *space, banyan_memory_kind kind,
                                      uint64_t id, const void *address, size_t bytes)
{
    return (banyan_memory_handle){
        .rank = space->rank,
        .kind = kind,
        .id = id,
        .address = (uint64_t)(uintptr_t)address,
        .bytes = bytes,
    };
}

static banyan_status check_range(const memory_space *space, const void *address, size_t bytes)
{
    if ((!address && bytes > 0) || bytes > UINTPTR_MAX - (uintptr_t)address)
        return error_set(BANYAN_ERR_INVALID, "rank %d: there is no memory of %zu bytes at %p",
                         space->rank, bytes, address);
    return BANYAN_OK;
}

/* Find out whether memory is ordinary or a GPU's. */
static banyan_status registration_find_kind(const memory_space *space, const void *address,
                                            size_t bytes, banyan_memory_kind *kind)
{
    DLDevice device = BANYAN_HOST;
    if (bytes > 0)
        RETURN_IF_FAILED(banyan_memory_locate(address, &device));
    if (device.device_type == kDLCUDAManaged)
        return error_set(BANYAN_ERR_UNSUPPORTED,
                         "rank %d: the memory at %p is managed by CUDA, which peers cannot map: "
                         "copy it to memory of a device",
                         space->rank, address);
    *kind = device_is_host(device) ? BANYAN_MEMORY_USER : BANYAN_MEMORY_DEVICE;
    return BANYAN_OK;
}

banyan_status banyan_memory_register(banyan_world *world, void *address, size_t bytes,
                                     banyan_memory_handle *handle)
{
    memory_space *space;
    RETURN_IF_FAILED(memory_space_of(world, &space));
    RETURN_IF_FAILED(check_range(space, address, bytes));
    uint64_t id;
    banyan_memory_kind kind = BANYAN_MEMORY_USER;
    RETURN_IF_FAILED(registration_find_kind(space, address, bytes, &kind));
    pthread_rwlock_wrlock(&space->lock);
    banyan_status status = registration_add(space, kind, (uintptr_t)address, bytes, &id);
    pthread_rwlock_unlock(&space->lock);
    if (status == BANYAN_OK)
        *handle = handle_of(space, kind, id, address, bytes);
    return status;
}

banyan_status banyan_memory_unregister(banyan_world *world, const banyan_memory_handle *handle)
{
    memory_space *space;
    RETURN_IF_FAILED(memory_space_of(world, &space));
    pthread_rwlock_wrlock(&space->lock);
    bool known = handle->rank == space->rank && registration_covers(space, handle);
    size_t index = known ? registration_index_of(handle->id) : 0;
    /* A handle to a part, as banyan_memory_find makes them, does not name the whole registration.
     */
    known = known && space->registrations.data[index].bytes == handle->bytes;
    if (known) {
        spans_remove(&space->registration_spans, space->registrations.data[index].address,
                     handle->id);
        give_back_place(space, index);
    }
    pthread_rwlock_unlock(&space->lock);
    if (known && space->watcher)
        space->watcher(space->watcher_context, handle->kind, handle->id);
    if (known)
        memory_shares_forget(space, handle->id);
    if (!known)
        return error_set(BANYAN_ERR_INVALID,
                         "rank %d has not registered %" PRIu64 " bytes at %#" PRIx64
                         " under the id %#" PRIx64,
                         space->rank, handle->bytes, handle->address, handle->id);
    return BANYAN_OK;
}

banyan_status banyan_memory_find(banyan_world *world, const void *address, size_t bytes,
                                 banyan_memory_handle *handle)
{
    memory_space *space;
    RETURN_IF_FAILED(memory_space_of(world, &space));
    RETURN_IF_FAILED(check_range(space, address, bytes));
    uintptr_t start = (uintptr_t)address;
    const span *found = spans_find(&space->buffer_spans, start, start + bytes);
    banyan_memory_kind kind = BANYAN_MEMORY_SYMMETRIC;
    if (!found) {
        found = spans_find(&space->registration_spans, start, start + bytes);
        if (found)
            kind = space->registrations.data[registration_index_of(found->id)].kind;
    }
    if (!found)
        return error_set(BANYAN_ERR_NOT_FOUND,
                         "rank %d: %zu bytes at %p lie in no symmetric buffer and no registration",
                         space->rank, bytes, address);
    *handle = handle_of(space, kind, found->id, address, bytes);
    return BANYAN_OK;
}

void registrations_free(memory_space *space)
{
    array_free(&space->registrations);
    spans_free(&space->registration_spans);
}
