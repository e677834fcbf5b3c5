/* The smallest possible copy service: four functions, dense tensors, and messages by an allgather
 * of the world. It can be made to fail. */
#ifndef TESTS_RESHARD_MAILBOX_H
#define TESTS_RESHARD_MAILBOX_H

#include <unistd.h>

#include "support/test.h"

#include "core/containers.h"

typedef struct mailbox {
    banyan_world *world;
    ARRAY(banyan_copy_op) sends;
    ARRAY(banyan_copy_op) recvs;
} mailbox;

/* The failure at this rank, and the number of runs so far. */
static _Thread_local struct mailbox_trouble {
    int fail_in_run;     /* counted from 1: this run delivers nothing and fails here; 0: none */
    int flip_bit_in_run; /* this run changes one bit of the first message to arrive here; 0: none */
    int end_in_run;      /* this process ends in the middle of this run; 0: none */
    int runs;
} mailbox_trouble;

static inline banyan_status mailbox_open(banyan_world *world, const banyan_copy_options *options,
                                         void **state)
{
    (void)options;
    mailbox *box = calloc(1, sizeof *box);
    box->world = world;
    *state = box;
    return BANYAN_OK;
}

static inline void mailbox_close(void *state)
{
    mailbox *box = state;
    array_free(&box->sends);
    array_free(&box->recvs);
    free(box);
}

static inline uint64_t mailbox_bytes(const banyan_copy_op *op)
{
    uint64_t bytes = banyan_dtype_bytes(op->tensor.dtype);
    int64_t dense = 1;
    for (int d = op->tensor.ndim - 1; d >= 0; d--) {
        CHECK(!op->tensor.strides || op->tensor.shape[d] == 1 || op->tensor.strides[d] == dense,
              "the mailbox was given strides");
        dense *= op->tensor.shape[d];
        bytes *= (uint64_t)op->tensor.shape[d];
    }
    return bytes;
}

/* The submitter's shapes are valid only until the run, so the dense size is kept. */
static inline banyan_copy_op mailbox_keep(const banyan_copy_op *op)
{
    banyan_copy_op kept = *op;
    kept.tensor.byte_offset += (uint64_t)(uintptr_t)op->tensor.data;
    kept.tensor.data = (void *)(uintptr_t)mailbox_bytes(op);
    kept.tensor.shape = kept.tensor.strides = NULL;
    return kept;
}

static inline void *mailbox_address(const banyan_copy_op *kept)
{
    return (void *)(uintptr_t)kept->tensor.byte_offset;
}

static inline size_t mailbox_size(const banyan_copy_op *kept)
{
    return (size_t)(uintptr_t)kept->tensor.data;
}

static inline banyan_status mailbox_submit_send(void *state, const banyan_send_op *op)
{
    mailbox *box = state;
    return array_push(&box->sends, mailbox_keep(op)) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

static inline banyan_status mailbox_submit_recv(void *state, const banyan_recv_op *op)
{
    mailbox *box = state;
    return array_push(&box->recvs, mailbox_keep(op)) ? BANYAN_OK : BANYAN_ERR_NO_MEMORY;
}

static inline banyan_status mailbox_deliver(mailbox *box, int source, bytes_reader *reader,
                                            size_t *delivered)
{
    int rank = banyan_world_rank(box->world);
    while (reader->left > 0) {
        int destination = (int)bytes_read_u32(reader);
        uint64_t task_id = bytes_read_u64(reader);
        uint32_t part = bytes_read_u32(reader);
        size_t bytes;
        const unsigned char *letter = bytes_read_blob(reader, &bytes);
        CHECK(!reader->failed);
        if (destination != rank)
            continue;
        const banyan_copy_op *found = NULL;
        for (size_t i = 0; i < box->recvs.count && !found; i++) {
            const banyan_copy_op *recv = &box->recvs.data[i];
            if (recv->peer == source && recv->task_id == task_id && recv->part == part)
                found = recv;
        }
        if (!found || mailbox_size(found) != bytes)
            return banyan_error_set(BANYAN_ERR_MISMATCH, "mailbox: rank %d expects no such letter",
                                    rank);
        memcpy(mailbox_address(found), letter, bytes);
        if (mailbox_trouble.runs == mailbox_trouble.flip_bit_in_run && *delivered == 0)
            ((unsigned char *)mailbox_address(found))[bytes / 2] ^= 0x10;
        ++*delivered;
    }
    return BANYAN_OK;
}

static inline banyan_status mailbox_run(void *state, void *stream)
{
    (void)stream;
    mailbox *box = state;
    mailbox_trouble.runs++;
    if (mailbox_trouble.runs == mailbox_trouble.end_in_run)
        _exit(0);
    bytes_writer writer = {0};
    for (size_t i = 0; i < box->sends.count; i++) {
        const banyan_copy_op *send = &box->sends.data[i];
        bytes_write_u32(&writer, (uint32_t)send->peer);
        bytes_write_u64(&writer, send->task_id);
        bytes_write_u32(&writer, send->part);
        bytes_write_blob(&writer, mailbox_address(send), mailbox_size(send));
    }
    size_t ranks = (size_t)banyan_world_size(box->world), delivered = 0;
    size_t *sizes = calloc(ranks, sizeof *sizes);
    void *all = NULL;
    banyan_status status =
        banyan_world_allgatherv(box->world, writer.data, writer.count, &all, sizes);
    bytes_writer_free(&writer);
    if (status == BANYAN_OK && mailbox_trouble.runs == mailbox_trouble.fail_in_run)
        status = banyan_error_set(BANYAN_ERR_SYSTEM, "the mailbox is full");
    const unsigned char *at = all;
    for (size_t source = 0; source < ranks && status == BANYAN_OK; source++) {
        bytes_reader reader = bytes_reader_of(at, sizes[source]);
        status = mailbox_deliver(box, (int)source, &reader, &delivered);
        at += sizes[source];
    }
    if (status == BANYAN_OK && delivered != box->recvs.count)
        status = banyan_error_set(BANYAN_ERR_MISMATCH, "mailbox: %zu letters of %zu came",
                                  delivered, box->recvs.count);
    free(all);
    free(sizes);
    box->sends.count = box->recvs.count = 0;
    return status;
}

static const banyan_copy_backend mailbox_backend = {
    .size = sizeof(banyan_copy_backend),
    .name = "mailbox",
    .open = mailbox_open,
    .close = mailbox_close,
    .submit_send = mailbox_submit_send,
    .submit_recv = mailbox_submit_recv,
    .run = mailbox_run,
};

#endif
