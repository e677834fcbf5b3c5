#include "execute/host/task.h"

#include <string.h>

#include "channel/multi_copy.h"
#include "channel/packet.h"
#include "execute/load/loaded.h"
#include "execute/shuffle/shuffle.h"
#include "memory/stream.h"

static uint32_t flag_of(const plan_run *of, const task *t, const step *s)
{
    return of->flag + (s->new_flags ? (uint32_t)t->iteration : 0);
}

static char *move_address(const plan_run *of, const task *t, const step *s, uint32_t operand)
{
    return of->placed->bases[s->operands[operand].base] + t->piece[1 + operand];
}

static void next_piece(task *t, const step *s)
{
    t->piece += step_piece_words(s);
    t->pieces_left--;
    t->done = 0;
    t->moved = true;
}

/* Destinations that one pass over the source writes. */
#define TOGETHER 16

/* In place, input and output are the same memory: a chunk whose destination is its source is not
 * copied. */
bool move_copy(const plan_run *of, task *t, const step *s)
{
    for (; t->pieces_left > 0; next_piece(t, s)) {
        for (uint32_t first = 1; first <= s->destination_count; first += TOGETHER) {
            void *to[TOGETHER];
            uint32_t left = s->destination_count + 1 - first;
            uint32_t count = left < TOGETHER ? left : TOGETHER;
            for (uint32_t i = 0; i < count; i++)
                to[i] = move_address(of, t, s, first + i);
            multi_copy_bytes(to, count, move_address(of, t, s, 0), t->piece[0], s->way);
        }
    }
    return true;
}

void move_doorbell(task *t, const step *s)
{
    if (!t->quiet)
        return;
    t->quiet = false;
    for (uint32_t i = 0; i < s->doorbell_count; i++)
        wake_up_doorbell(s->doorbells[i]);
}

static const char zeros[4096];

static bool pads_have_come(const plan_run *of, task *t, const step *s, uint32_t flag)
{
    char unwanted[512];
    uint64_t bytes = t->piece[0] & ~STEP_PAD;
    for (; t->index < s->source_count; t->index++, t->got = 0) {
        const char *from = move_address(of, t, s, t->index);
        while (s->operands[t->index].packets && t->got < bytes) {
            uint64_t left = bytes - t->got, some = left < sizeof unwanted ? left : sizeof unwanted;
            uint64_t come = packets_read(unwanted, from + packets_room(t->got), some, flag);
            t->got += come;
            t->moved |= come > 0;
            if (come < some)
                return false;
        }
    }
    return true;
}

static void write_pads(const plan_run *of, task *t, const step *s, uint32_t flag)
{
    uint64_t bytes = t->piece[0] & ~STEP_PAD;
    for (uint32_t i = s->source_count; i < step_operand_count(s); i++) {
        char *to = move_address(of, t, s, i);
        for (uint64_t done = 0, some; s->operands[i].packets && done < bytes; done += some) {
            some = bytes - done < sizeof zeros ? bytes - done : sizeof zeros;
            packets_write(to + packets_room(done), zeros, some, flag);
            t->quiet = true;
        }
    }
}

/* True when the pads are done. */
static bool pads_pass(const plan_run *of, task *t, const step *s, uint32_t flag)
{
    if (!pads_have_come(of, t, s, flag))
        return false;
    write_pads(of, t, s, flag);
    t->index = 0;
    return true;
}

bool move_pack(const plan_run *of, task *t, const step *s)
{
    uint32_t flag = flag_of(of, t, s);
    for (; t->pieces_left > 0; next_piece(t, s)) {
        if (t->piece[0] & STEP_PAD) {
            if (!pads_pass(of, t, s, flag))
                return false;
            continue;
        }
        for (uint32_t i = 1; i <= s->destination_count; i++)
            packets_write(move_address(of, t, s, i), move_address(of, t, s, 0), t->piece[0], flag);
    }
    t->quiet = true;
    return true;
}

/* Record `bytes` of progress. True when the piece is complete. */
static bool got_on(task *t, uint64_t bytes, uint64_t whole)
{
    t->done += bytes;
    t->moved |= bytes > 0;
    return t->done == whole;
}

bool move_unpack(const plan_run *of, task *t, const step *s)
{
    uint32_t flag = flag_of(of, t, s);
    for (; t->pieces_left > 0; next_piece(t, s)) {
        uint64_t bytes = t->piece[0];
        if (bytes & STEP_PAD) {
            if (!pads_pass(of, t, s, flag))
                return false;
            continue;
        }
        size_t come = packets_read(move_address(of, t, s, 1) + t->done,
                                   move_address(of, t, s, 0) + 2 * t->done, bytes - t->done, flag);
        if (!got_on(t, come, bytes))
            return false;
    }
    return true;
}

bool move_forward(const plan_run *of, task *t, const step *s)
{
    uint32_t flag = flag_of(of, t, s);
    for (; t->pieces_left > 0; next_piece(t, s)) {
        uint64_t bytes = t->piece[0];
        const char *from = move_address(of, t, s, 0) + 2 * t->done;
        size_t come = packets_forward(move_address(of, t, s, 1) + 2 * t->done, flag, from,
                                      bytes - t->done, flag);
        for (uint32_t i = 2; i <= s->destination_count; i++)
            packets_forward(move_address(of, t, s, i) + 2 * t->done, flag, from, come, flag);
        t->quiet |= come > 0;
        if (!got_on(t, come, bytes))
            return false;
    }
    return true;
}

/* Make the block of every source available: packets are read into the task's buffer as they
 * arrive. */
static bool gather_sources(const plan_run *of, task *t, const step *s, uint32_t flag,
                           uint64_t bytes, char **room)
{
    char *next = t->room;
    for (uint32_t i = 0; i < s->source_count; i++) {
        const char *from = move_address(of, t, s, i);
        if (!s->operands[i].packets) {
            t->sources[i] = from + t->done;
            t->index += i == t->index;
            continue;
        }
        t->sources[i] = next;
        next += s->block_bytes;
        if (i < t->index)
            continue;
        char *to = (char *)t->sources[i] + t->got;
        size_t come = packets_read(to, from + 2 * (t->done + t->got), bytes - t->got, flag);
        t->got += come;
        t->moved |= come > 0;
        if (t->got < bytes)
            return false;
        t->got = 0;
        t->index++;
    }
    *room = next;
    return true;
}

static void move_store_result(const plan_run *of, task *t, const step *s, uint32_t flag,
                              const char *reduced, uint64_t bytes)
{
    for (uint32_t i = s->source_count; i < step_operand_count(s); i++) {
        char *to = move_address(of, t, s, i);
        if (i == s->target)
            continue;
        if (s->operands[i].packets) {
            packets_write(to + 2 * t->done, reduced, bytes, flag);
            t->quiet = true;
        } else if (s->operands[i].past_cache) {
            stream_past_cache(to + t->done, reduced, bytes);
        } else {
            stream_copy(to + t->done, reduced, bytes);
        }
    }
}

bool move_combine(const plan_run *of, task *t, const step *s)
{
    uint32_t flag = flag_of(of, t, s);
    size_t elem_bytes = of->specialized->elem_bytes;
    for (; t->pieces_left > 0; next_piece(t, s)) {
        if (t->piece[0] & STEP_PAD) {
            if (!pads_pass(of, t, s, flag))
                return false;
            continue;
        }
        while (t->done < t->piece[0]) {
            uint64_t left = t->piece[0] - t->done,
                     bytes = left < s->block_bytes ? left : s->block_bytes;
            char *room;
            if (!gather_sources(of, t, s, flag, bytes, &room))
                return false;
            char *to =
                s->target == STEP_NO_TARGET ? room : move_address(of, t, s, s->target) + t->done;
            s->reduce(to, t->sources, s->source_count, bytes / elem_bytes);
            move_store_result(of, t, s, flag, to, bytes);
            t->done += bytes;
            t->index = 0;
            t->moved = true;
        }
    }
    if (s->streams)
        stream_fence();
    return true;
}

/* Wait for packets here, since the proxy must not wait for them. */
static bool packets_have_come(task *t, const char *packets, uint64_t bytes, uint32_t flag)
{
    while (t->done < bytes) {
        uint64_t left = bytes - t->done, most = left < t->room_bytes ? left : t->room_bytes;
        uint64_t come = packets_read(t->room, packets + 2 * t->done, most, flag);
        t->done += come;
        t->moved |= come > 0;
        if (come < most)
            return false;
    }
    return true;
}

/* Lock the channel: thread blocks of several workers may use it. */
bool move_request(const plan_run *of, channel_end *end, const port_request *request)
{
    if (of->loaded->shuffle)
        return shuffle_post(of, end, request);
    if (!of->shared)
        return channel_end_post(end, request);
    while (atomic_flag_test_and_set_explicit(&end->posting, memory_order_acquire))
        spin_pause();
    bool posted = channel_end_post(end, request);
    atomic_flag_clear_explicit(&end->posting, memory_order_release);
    return posted;
}

/* Post a pad as a few zeros at a time. Only puts have pads: packets that are forwarded lie in
 * scratch at both ends, and scratch has all bytes of all chunks. */
static bool post_pads(const plan_run *of, task *t, const step *s, port_request *request)
{
    uint64_t bytes = t->piece[0] & ~STEP_PAD;
    for (uint64_t some; t->done < bytes; t->done += some) {
        some = bytes - t->done < sizeof zeros ? bytes - t->done : sizeof zeros;
        request->source = zeros;
        request->destination = move_address(of, t, s, 1) + packets_room(t->done);
        request->bytes = some;
        if (!move_request(of, s->ends[0], request))
            return false;
        t->moved = true;
    }
    return true;
}

bool move_post(const plan_run *of, task *t, const step *s)
{
    channel_end *end = s->ends[0];
    port_request request = {
        .kind = s->kind == STEP_POST_COPY   ? PORT_PUT
                : s->kind == STEP_POST_PACK ? PORT_PUT_PACKETS
                                            : PORT_FORWARD_PACKETS,
        .flag = flag_of(of, t, s),
        .peer = end->wake_up,
    };
    if (end->remote) {
        const memory_extent *lies_in = &of->placed->remote[s->operands[1].base];
        request.memory = lies_in->id;
        request.memory_bytes = lies_in->bytes;
    }
    for (; t->pieces_left > 0; next_piece(t, s)) {
        if (t->piece[0] & STEP_PAD) {
            if (!post_pads(of, t, s, &request))
                return false;
            continue;
        }
        request.source = move_address(of, t, s, 0);
        request.destination = move_address(of, t, s, 1);
        request.bytes = t->piece[0];
        if (s->kind == STEP_POST_FORWARD &&
            !packets_have_come(t, request.source, request.bytes, request.flag))
            return false;
        if (!move_request(of, end, &request))
            return false;
    }
    return true;
}
