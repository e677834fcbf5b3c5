/* The owner's side of keys: map memory for peers, and answer their questions. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ucx/ucx.h"

banyan_status ucx_no_memory(const ucx *of, size_t bytes)
{
    return banyan_error_set(BANYAN_ERR_NO_MEMORY, "ucx: rank %d could not allocate %zu bytes",
                            of->rank, bytes);
}

static void key_message_sent(void *request, ucs_status_t status, void *message)
{
    (void)status; /* an endpoint's error is reported by its own callback */
    free(message);
    ucx_calls.ucp_request_free(request);
}

banyan_status ucx_send(ucx *of, int rank, unsigned number, const void *header, size_t header_bytes,
                       const void *payload, size_t bytes)
{
    ucp_ep_h endpoint;
    banyan_status status = ucx_connect(of, rank, &endpoint);
    if (status != BANYAN_OK)
        return status;
    char *message = malloc(header_bytes + bytes);
    if (!message)
        return ucx_no_memory(of, header_bytes + bytes);
    memcpy(message, header, header_bytes);
    if (bytes > 0)
        memcpy(message + header_bytes, payload, bytes);
    ucp_request_param_t params = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .cb = {.send = key_message_sent},
        .user_data = message,
        .flags = UCP_AM_SEND_FLAG_EAGER,
    };
    ucs_status_ptr_t request = ucx_calls.ucp_am_send_nbx(endpoint, number, message, header_bytes,
                                                         message + header_bytes, bytes, &params);
    if (!UCS_PTR_IS_PTR(request))
        free(message);
    if (UCS_PTR_IS_ERR(request))
        return banyan_error_set(BANYAN_ERR_PEER_LOST, "ucx: rank %d cannot send to rank %d: %s",
                                of->rank, rank,
                                ucx_calls.ucs_status_string(UCS_PTR_STATUS(request)));
    return BANYAN_OK;
}

static bool header_take(const ucx *of, const void *header, size_t bytes, ucx_key_message *message)
{
    if (bytes != sizeof *message)
        return false;
    memcpy(message, header, sizeof *message);
    return message->rank >= 0 && message->rank < of->size && message->id != 0;
}

static ucs_status_t question_arrived(void *argument, const void *header, size_t header_bytes,
                                     void *data, size_t bytes, const ucp_am_recv_param_t *params)
{
    (void)data;
    (void)bytes;
    (void)params;
    ucx *of = argument;
    ucx_key_message message;
    if (!header_take(of, header, header_bytes, &message))
        return UCS_OK;
    ucx_question *question = malloc(sizeof *question);
    if (!question)
        return UCS_OK; /* the peer's deadline ends its wait */
    *question = (ucx_question){of->questions, message.rank, message.kind, message.id};
    of->questions = question;
    return UCS_OK;
}

static ucs_status_t answer_arrived(void *argument, const void *header, size_t header_bytes,
                                   void *data, size_t bytes, const ucp_am_recv_param_t *params)
{
    ucx *of = argument;
    ucx_key_message message;
    if (!header_take(of, header, header_bytes, &message) ||
        (params->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV))
        return UCS_OK;
    const ucx_table *keys = &of->peers[message.rank].keys;
    ucx_key *key = (ucx_key *)(void *)ucx_table_find(keys, message.kind, message.id);
    if (!key || key->is_answered)
        return UCS_OK;
    key->answer = malloc(bytes + 1);
    key->status = key->answer ? (banyan_status)message.status : BANYAN_ERR_NO_MEMORY;
    if (key->answer) {
        memcpy(key->answer, data, bytes);
        key->answer[bytes] = '\0';
        key->answer_bytes = bytes;
    }
    key->address = message.address;
    key->bytes = message.bytes;
    key->is_on_host = message.is_on_host;
    key->is_answered = true;
    return UCS_OK;
}

static ucs_status_t end_arrived(void *argument, const void *header, size_t header_bytes, void *data,
                                size_t bytes, const ucp_am_recv_param_t *params)
{
    (void)data, (void)bytes, (void)params;
    ucx *of = argument;
    ucx_key_message message;
    if (!header_take(of, header, header_bytes, &message))
        return UCS_OK;
    ucx_peer *peer = &of->peers[message.rank];
    ucx_key *key = (ucx_key *)(void *)ucx_table_find(&peer->keys, message.kind, message.id);
    if (key && !key->has_ended) {
        key->has_ended = true;
        peer->ended++;
    }
    return UCS_OK;
}

banyan_status ucx_listen(ucx *of, unsigned number, ucp_am_recv_callback_t arrived)
{
    ucp_am_handler_param_t params = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = number,
        .cb = arrived,
        .arg = of,
    };
    ucs_status_t status = ucx_calls.ucp_worker_set_am_recv_handler(of->worker, &params);
    return status == UCS_OK ? BANYAN_OK : ucx_failed(of, "ucp_worker_set_am_recv_handler", status);
}

banyan_status ucx_keys_listen(ucx *of)
{
    banyan_status status = ucx_listen(of, UCX_QUESTION, question_arrived);
    if (status == BANYAN_OK)
        status = ucx_listen(of, UCX_ANSWER, answer_arrived);
    return status == BANYAN_OK ? ucx_listen(of, UCX_END, end_arrived) : status;
}

/* Own memory that is being mapped for peers. */
struct own_memory {
    ucx *of;
    ucx_mapping *mapping;
};

static banyan_status mapping_fill(ucx *of, ucx_mapping *mapping, void *address, uint64_t bytes)
{
    DLDevice device;
    banyan_status status = banyan_memory_locate(address, &device);
    if (status != BANYAN_OK)
        return status;
    mapping->address = (uint64_t)(uintptr_t)address;
    mapping->bytes = bytes;
    mapping->is_on_host = device.device_type == kDLCPU;
    if (!mapping->is_on_host && !of->has_cuda)
        return banyan_error_set(BANYAN_ERR_UNSUPPORTED,
                                "UCX of rank %d does not reach memory of GPUs", of->rank);
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
        .address = address,
        .length = (size_t)bytes,
    };
    ucs_status_t mapped =
        bytes > 0 ? ucx_calls.ucp_mem_map(of->context, &params, &mapping->memory) : UCS_OK;
    return mapped == UCS_OK ? BANYAN_OK : ucx_failed(of, "ucp_mem_map", mapped);
}

static void mapping_free(const ucx *of, ucx_mapping *mapping)
{
    if (mapping->memory)
        ucx_calls.ucp_mem_unmap(of->context, mapping->memory);
    free(mapping->askers);
    free(mapping);
}

static banyan_status mapping_make(void *argument, void *address, uint64_t bytes)
{
    struct own_memory *own = argument;
    ucx *of = own->of;
    banyan_status status = mapping_fill(of, own->mapping, address, bytes);
    if (status != BANYAN_OK || ucx_table_add(&of->mappings, &own->mapping->entry))
        return status;
    return ucx_no_memory(of, 2 * of->mappings.count * sizeof(ucx_entry *));
}

static ucx_mapping *mapping_find(const ucx *of, uint32_t kind, uint64_t id)
{
    return (ucx_mapping *)(void *)ucx_table_find(&of->mappings, kind, id);
}

const ucx_mapping *ucx_find_mapping(ucx *of, uint32_t kind, uint64_t id)
{
    return mapping_find(of, kind, id);
}

static banyan_status asker_add(const ucx *of, ucx_mapping *mapping, int rank)
{
    if (mapping->asker_count == mapping->asker_capacity) {
        size_t capacity = mapping->asker_capacity > 0 ? 2 * mapping->asker_capacity : 4;
        int *larger = realloc(mapping->askers, capacity * sizeof *larger);
        if (!larger)
            return ucx_no_memory(of, capacity * sizeof *larger);
        mapping->askers = larger;
        mapping->asker_capacity = capacity;
    }
    mapping->askers[mapping->asker_count++] = rank;
    return BANYAN_OK;
}

/* Find the memory, and map it unless it is mapped. */
static banyan_status mapping_take(ucx *of, const ucx_question *question, ucx_mapping **taken)
{
    struct own_memory own = {of, mapping_find(of, question->kind, question->id)};
    banyan_status status = BANYAN_OK;
    if (!own.mapping) {
        own.mapping = calloc(1, sizeof *own.mapping);
        if (!own.mapping)
            return ucx_no_memory(of, sizeof *own.mapping);
        own.mapping->entry = (ucx_entry){.id = question->id, .kind = question->kind};
        status = of->host->with_memory(of->host->context, question->kind, question->id,
                                       mapping_make, &own);
        if (status != BANYAN_OK)
            mapping_free(of, own.mapping);
    }
    *taken = own.mapping;
    return status;
}

/* Map the memory, and pack its key. */
static banyan_status key_pack(ucx *of, const ucx_question *question, ucx_key_message *answer,
                              void **packed, size_t *bytes)
{
    ucx_mapping *mapping = NULL;
    banyan_status found = mapping_take(of, question, &mapping);
    if (found == BANYAN_OK)
        found = asker_add(of, mapping, question->rank);
    if (found != BANYAN_OK)
        return found;
    answer->address = mapping->address;
    answer->bytes = mapping->bytes;
    answer->is_on_host = mapping->is_on_host;
    if (!mapping->memory)
        return BANYAN_OK;
    ucs_status_t status = ucx_calls.ucp_rkey_pack(of->context, mapping->memory, packed, bytes);
    return status == UCS_OK ? BANYAN_OK : ucx_failed(of, "ucp_rkey_pack", status);
}

/* If an answer cannot be sent, the peer's wait ends with its own endpoint's error or deadline. */
static void question_answer(ucx *of, const ucx_question *question)
{
    ucx_key_message answer = {.rank = of->rank, .kind = question->kind, .id = question->id};
    void *packed = NULL;
    size_t bytes = 0;
    banyan_status status = key_pack(of, question, &answer, &packed, &bytes);
    answer.status = (int32_t)status;
    if (status == BANYAN_OK) {
        ucx_send(of, question->rank, UCX_ANSWER, &answer, sizeof answer, packed, bytes);
    } else {
        char text[256];
        snprintf(text, sizeof text, "%s", banyan_last_error());
        ucx_send(of, question->rank, UCX_ANSWER, &answer, sizeof answer, text, strlen(text));
    }
    if (packed)
        ucx_calls.ucp_rkey_buffer_release(packed);
}

void ucx_answer_questions(ucx *of)
{
    while (of->questions) {
        ucx_question *question = of->questions;
        of->questions = question->next;
        question_answer(of, question);
        free(question);
    }
}

/* Tell the ranks that have the key; those that are lost need no report. */
static void mapping_report_end(ucx *of, const ucx_mapping *mapping)
{
    ucx_key_message end = {.rank = of->rank, .kind = mapping->entry.kind, .id = mapping->entry.id};
    for (size_t i = 0; i < mapping->asker_count; i++)
        if (of->peers[mapping->askers[i]].endpoint && !of->peers[mapping->askers[i]].has_failed)
            (void)ucx_send(of, mapping->askers[i], UCX_END, &end, sizeof end, NULL, 0);
}

void ucx_unmap(ucx *of, uint32_t kind, uint64_t id)
{
    pthread_mutex_lock(&of->lock);
    ucx_mapping *found = mapping_find(of, kind, id);
    if (found) {
        mapping_report_end(of, found);
        ucx_table_remove(&of->mappings, &found->entry);
        mapping_free(of, found);
    }
    pthread_mutex_unlock(&of->lock);
}

void ucx_key_free(ucx_key *key)
{
    if (key->rkey)
        ucx_calls.ucp_rkey_destroy(key->rkey);
    free(key->answer);
    free(key);
}

static bool end_mapping(ucx_entry *entry, void *context)
{
    mapping_free(context, (ucx_mapping *)(void *)entry);
    return false;
}

static bool end_key(ucx_entry *entry, void *context)
{
    (void)context;
    ucx_key_free((ucx_key *)(void *)entry);
    return false;
}

void ucx_keys_free(ucx *of)
{
    ucx_table_filter(&of->mappings, end_mapping, of);
    ucx_table_free(&of->mappings);
    for (int rank = 0; of->peers && rank < of->size; rank++) {
        ucx_table_filter(&of->peers[rank].keys, end_key, NULL);
        ucx_table_free(&of->peers[rank].keys);
    }
    while (of->questions) {
        ucx_question *next = of->questions->next;
        free(of->questions);
        of->questions = next;
    }
}
