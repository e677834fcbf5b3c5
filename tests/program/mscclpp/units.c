/* Programs of MSCCL++ with one operation or few. */
#include "program/mscclpp/program.h"

static void write_barrier(banyan_program *program, int ranks)
{
    (void)ranks;
    banyan_program_barrier(program, 0, (const int[]){0, 1}, 2);
}

static void write_copy(banyan_program *program, int ranks)
{
    (void)ranks;
    banyan_program_copy(program, 0, OUT(0, 0, 1), IN(0, 0, 1), BANYAN_TB(0));
}

static void write_copy_packets(banyan_program *program, int ranks)
{
    (void)ranks;
    banyan_program_copy_packets(program, 0, banyan_program_scratch(program, 0, 1), IN(0, 0, 1),
                                BANYAN_TB(0));
}

static void write_unpack_packets(banyan_program *program, int ranks)
{
    (void)ranks;
    banyan_chunk packets = banyan_program_scratch(program, 0, 1);
    banyan_program_copy_packets(program, 0, packets, IN(0, 0, 1), BANYAN_TB(0));
    banyan_program_unpack_packets(program, 0, OUT(0, 0, 1), packets, BANYAN_TB(0));
}

static void write_loop(banyan_program *program, int ranks)
{
    banyan_program_loop_begin(program, 1 << 20, 1);
    write_copy(program, ranks);
    banyan_program_loop_end(program);
}

static void write_group_copy(banyan_program *program, int ranks)
{
    (void)ranks;
    banyan_program_group *group =
        banyan_program_group_create(program, (const int[]){0, 1, 2, 3}, 4);
    banyan_program_copy(program, 0, OUT(0, 0, 1), IN(0, 0, 1), BANYAN_TB_GROUP(group));
}

static void write_reduce(banyan_program *program, int ranks)
{
    (void)ranks;
    banyan_program_reduce(program, 0, IN(0, 0, 1), CHUNKS(IN(0, 1, 2)), 1, OUT(0, 0, 1), BANYAN_SUM,
                          BANYAN_TB(0));
}

static void write_reduces(banyan_program *program, int ranks)
{
    write_reduce(program, ranks);
    banyan_program_reduce(program, 0, IN(0, 0, 1), CHUNKS(IN(0, 2, 3)), 1, OUT(0, 0, 1), BANYAN_SUM,
                          BANYAN_TB(0));
}

static void write_group_reduce(banyan_program *program, int ranks)
{
    (void)ranks;
    banyan_program_group *group =
        banyan_program_group_create(program, (const int[]){0, 1, 2, 3}, 4);
    banyan_program_reduce(program, 0, IN(0, 0, 1), CHUNKS(IN(0, 1, 2)), 1, OUT(0, 0, 1), BANYAN_SUM,
                          BANYAN_TB_GROUP(group));
}

static banyan_chunk part(banyan_program *program, banyan_chunk of, uint64_t index)
{
    return banyan_program_slice(program, of, index, index + 1);
}

static void write_reduce_packets(banyan_program *program, int ranks)
{
    (void)ranks;
    banyan_chunk s = banyan_program_scratch(program, 0, 3);
    banyan_program_reduce_packets(program, 0, part(program, s, 0), CHUNKS(part(program, s, 1)), 1,
                                  part(program, s, 2), BANYAN_SUM, BANYAN_TB(0));
}

static void write_reduces_of_packets(banyan_program *program, int ranks)
{
    (void)ranks;
    banyan_chunk s = banyan_program_scratch(program, 0, 4);
    for (uint64_t i = 1; i < 3; i++)
        banyan_program_reduce_packets(program, 0, part(program, s, 0), CHUNKS(part(program, s, i)),
                                      1, part(program, s, 3), BANYAN_SUM, BANYAN_TB(0));
}

static void write_reduce_and_copy_packets(banyan_program *program, int ranks)
{
    (void)ranks;
    banyan_chunk s = banyan_program_scratch(program, 0, 2);
    banyan_program_reduce_packets(program, 0, IN(0, 0, 1), CHUNKS(part(program, s, 0)), 1,
                                  BANYAN_IN_SOURCE, BANYAN_SUM, BANYAN_TB(0));
    banyan_program_copy_packets(program, 0, part(program, s, 1), IN(0, 0, 1), BANYAN_TB(0));
}

/* Both ranks are ready for each other; each waits with all its threads. */
static void signal_and_wait(banyan_program_memory_channel *channel)
{
    banyan_program_memory_signal_relaxed(channel, 0, BANYAN_SYNC_BOTH);
    banyan_program_memory_wait_relaxed(channel, 0, BANYAN_SYNC_BOTH);
}

/* Each rank's writes are visible to the other. */
static void finish(banyan_program_memory_channel *channel)
{
    banyan_program_memory_signal(channel, 0, BANYAN_SYNC_BEFORE);
    banyan_program_memory_wait(channel, 0, BANYAN_SYNC_AFTER);
}

static void write_gets(banyan_program *program, int times)
{
    for (int rank = 0; rank < 2; rank++) {
        banyan_program_memory_channel *channel =
            banyan_program_memory_channel_create(program, 1 - rank, rank);
        signal_and_wait(channel);
        for (int i = 0; i < times; i++)
            banyan_program_memory_get(channel, IN(rank, 0, 1), IN(1 - rank, 1, 2), BANYAN_TB(0));
        finish(channel);
    }
}

static void write_get(banyan_program *program, int ranks)
{
    (void)ranks;
    write_gets(program, 1);
}

static void write_get_twice(banyan_program *program, int ranks)
{
    (void)ranks;
    write_gets(program, 2);
}

static void write_put(banyan_program *program, int ranks)
{
    (void)ranks;
    for (int rank = 0; rank < 2; rank++) {
        banyan_program_memory_channel *channel =
            banyan_program_memory_channel_create(program, 1 - rank, rank);
        signal_and_wait(channel);
        banyan_program_memory_put(channel, IN(1 - rank, 1, 2), IN(rank, 0, 1), BANYAN_TB(0));
        finish(channel);
    }
}

static void write_puts(banyan_program *program, int ranks)
{
    (void)ranks;
    for (int rank = 0; rank < 2; rank++) {
        banyan_program_memory_channel *first =
            banyan_program_memory_channel_create(program, 1 - rank, rank);
        banyan_program_memory_channel *second =
            banyan_program_memory_channel_create(program, 1 - rank, rank);
        signal_and_wait(first);
        banyan_program_memory_put(first, IN(1 - rank, 1, 2), IN(rank, 0, 1), BANYAN_TB(0));
        banyan_program_memory_put(second, IN(1 - rank, 0, 1), IN(rank, 1, 2), BANYAN_TB(0));
        finish(second);
    }
}

static void write_put_packets(banyan_program *program, int ranks)
{
    banyan_chunk packets[2];
    for (int rank = 0; rank < ranks; rank++)
        packets[rank] = banyan_program_scratch(program, rank, 1);
    for (int rank = 0; rank < 2; rank++) {
        banyan_program_memory_channel *channel =
            banyan_program_memory_channel_create(program, 1 - rank, rank);
        banyan_program_memory_put_packets(channel, packets[1 - rank], IN(rank, 0, 1), BANYAN_TB(0));
    }
}

static void write_read_put_packets(banyan_program *program, int ranks)
{
    banyan_chunk packets[2];
    for (int rank = 0; rank < ranks; rank++)
        packets[rank] = banyan_program_scratch(program, rank, 2);
    for (int rank = 0; rank < 2; rank++) {
        banyan_program_memory_channel *channel =
            banyan_program_memory_channel_create(program, 1 - rank, rank);
        banyan_program_memory_read_put_packets(channel, part(program, packets[1 - rank], 1),
                                               part(program, packets[rank], 0), BANYAN_TB(0));
    }
}

static void write_read_reduce(banyan_program *program, int ranks)
{
    (void)ranks;
    for (int rank = 0; rank < 2; rank++) {
        banyan_program_memory_channel *channel =
            banyan_program_memory_channel_create(program, 1 - rank, rank);
        signal_and_wait(channel);
        banyan_program_memory_reduce(channel, IN(rank, 0, 1), CHUNKS(IN(1 - rank, 1, 2)), 1,
                                     OUT(rank, 0, 1), BANYAN_SUM, BANYAN_TB(0));
        finish(channel);
    }
}

static void write_read_reduces(banyan_program *program, int ranks)
{
    (void)ranks;
    for (int rank = 0; rank < 2; rank++) {
        banyan_program_memory_channel *channel =
            banyan_program_memory_channel_create(program, 1 - rank, rank);
        signal_and_wait(channel);
        for (uint64_t i = 0; i < 2; i++)
            banyan_program_memory_reduce(channel, IN(rank, 0, 1), CHUNKS(IN(1 - rank, i, i + 1)), 1,
                                         OUT(rank, 0, 1), BANYAN_SUM, BANYAN_TB(0));
        finish(channel);
    }
}

static void write_reduce_and_put(banyan_program *program, banyan_program_by by)
{
    for (int rank = 0; rank < 2; rank++) {
        banyan_program_memory_channel *channel =
            banyan_program_memory_channel_create(program, 1 - rank, rank);
        signal_and_wait(channel);
        banyan_program_reduce(program, rank, IN(rank, 0, 1), CHUNKS(IN(rank, 1, 2)), 1,
                              OUT(rank, 0, 1), BANYAN_SUM, by);
        banyan_program_memory_put(channel, OUT(1 - rank, 1, 2), OUT(rank, 0, 1), by);
        finish(channel);
    }
}

static void write_reduce_send(banyan_program *program, int ranks)
{
    (void)ranks;
    write_reduce_and_put(program, BANYAN_TB(0));
}

static void write_group_reduce_send(banyan_program *program, int ranks)
{
    (void)ranks;
    banyan_program_group *group =
        banyan_program_group_create(program, (const int[]){0, 1, 2, 3}, 4);
    write_reduce_and_put(program, BANYAN_TB_GROUP(group));
}

static void write_reduce_send_packets(banyan_program *program, int ranks)
{
    banyan_chunk s[2];
    for (int rank = 0; rank < ranks; rank++)
        s[rank] = banyan_program_scratch(program, rank, 4);
    for (int rank = 0; rank < 2; rank++) {
        banyan_program_memory_channel *channel =
            banyan_program_memory_channel_create(program, 1 - rank, rank);
        banyan_chunk sum = part(program, s[rank], 2);
        banyan_program_reduce_packets(program, rank, part(program, s[rank], 0),
                                      CHUNKS(part(program, s[rank], 1)), 1, sum, BANYAN_SUM,
                                      BANYAN_TB(0));
        banyan_program_memory_put_packets(channel, part(program, s[1 - rank], 3), sum,
                                          BANYAN_TB(0));
    }
}

static void write_relaxed(banyan_program *program, int ranks)
{
    (void)ranks;
    for (int rank = 0; rank < 2; rank++)
        signal_and_wait(banyan_program_memory_channel_create(program, 1 - rank, rank));
}

static void write_signal_wait(banyan_program *program, int ranks)
{
    (void)ranks;
    for (int rank = 0; rank < 2; rank++)
        finish(banyan_program_memory_channel_create(program, 1 - rank, rank));
}

static void write_signals_waits(banyan_program *program, int ranks)
{
    (void)ranks;
    banyan_program_memory_channel *channels[2][4];
    for (int rank = 0; rank < 2; rank++) {
        for (int i = 0; i < 4; i++)
            channels[rank][i] = banyan_program_memory_channel_create(program, 1 - rank, rank);
        for (int i = 0; i < 2; i++)
            banyan_program_memory_signal(channels[rank][i], 0, BANYAN_SYNC_BOTH);
        for (int i = 2; i < 4; i++)
            banyan_program_memory_wait(channels[rank][i], 0, BANYAN_SYNC_BOTH);
    }
}

static void write_flush(banyan_program *program, int ranks)
{
    (void)ranks;
    banyan_program_port_flush(banyan_program_port_channel_create(program, 1, 0), 0,
                              BANYAN_SYNC_BEFORE);
}

static void write_flushes(banyan_program *program, int ranks)
{
    (void)ranks;
    for (int i = 0; i < 2; i++)
        banyan_program_port_flush(banyan_program_port_channel_create(program, 1, 0), 0,
                                  BANYAN_SYNC_BOTH);
}

static void write_put_with_signal(banyan_program *program, int ranks)
{
    (void)ranks;
    for (int rank = 0; rank < 2; rank++) {
        banyan_program_port_channel *channel =
            banyan_program_port_channel_create(program, 1 - rank, rank);
        banyan_program_port_signal(channel, 0, BANYAN_SYNC_BOTH);
        banyan_program_port_wait(channel, 0, BANYAN_SYNC_BOTH);
        banyan_program_port_put_with_signal(channel, IN(1 - rank, 1, 2), IN(rank, 0, 1), 0);
        banyan_program_port_wait(channel, 0, BANYAN_SYNC_AFTER);
    }
}

static void write_broadcast(banyan_program *program, int ranks)
{
    (void)ranks;
    banyan_program_switch_channel *channel =
        banyan_program_switch_channel_create(program, (const int[]){0, 1}, 2, BANYAN_INPUT);
    banyan_program_switch_broadcast(channel, 0, banyan_program_scratch(program, 0, 1), 0, 1, 0);
}

static const mscclpp_program programs[] = {
    {"unit_barrier_test_1", "barrier_test", 1, TEST_BUFFERS(0, 0), NULL, write_barrier},
    {"unit_copy_test_1", "copy_test", 1, TEST_BUFFERS(1, 1), NULL, write_copy},
    {"unit_copy_packet_test_1", "copy_packets_test", 1, TEST_BUFFERS(1, 1), choose_ll,
     write_copy_packets},
    {"unit_unpack_packet_test_1", "unpack_packets_test", 1, TEST_BUFFERS(1, 1), choose_ll,
     write_unpack_packets},
    {"unit_pipeline_test_1", "barrier_test", 1, TEST_BUFFERS(1, 1), NULL, write_loop},
    {"unit_tbg_copy_test_1", "copy_test", 1, TEST_BUFFERS(1, 1), NULL, write_group_copy},
    {"unit_reduce_test_1", "reduce_test", 1, TEST_BUFFERS(2, 1), NULL, write_reduce},
    {"unit_reduce_fuse_test_1", "reduce_test", 1, TEST_BUFFERS(3, 2), NULL, write_reduces},
    {"unit_tbg_reduce_test_1", "reduce_test", 1, TEST_BUFFERS(2, 1), NULL, write_group_reduce},
    {"unit_reduce_packets_test_1", "reduce_packets_test", 1, TEST_BUFFERS(0, 0), choose_ll,
     write_reduce_packets},
    {"unit_reduce_packets_fuse_test_1", "reduce_packets_test", 1, TEST_BUFFERS(0, 0), choose_ll,
     write_reduces_of_packets},
    {"unit_reduce_copy_packet_test_1", "reduce_copy_packets_test", 1, TEST_BUFFERS(1, 0), choose_ll,
     write_reduce_and_copy_packets},
    {"unit_get_test_2", "get_test", 2, TEST_BUFFERS(2, 0), NULL, write_get},
    {"unit_get_fuse_test_2", "get_test", 2, TEST_BUFFERS(2, 0), NULL, write_get_twice},
    {"unit_put_test_2", "put_test", 2, TEST_BUFFERS(2, 0), NULL, write_put},
    {"unit_put_fuse_test_2", "put_test", 2, TEST_BUFFERS(2, 0), NULL, write_puts},
    {"unit_put_packet_test_2", "put_packets_test", 2, TEST_BUFFERS(1, 0), choose_ll,
     write_put_packets},
    {"unit_read_put_packet_test_2", "read_put_packets_test", 2, TEST_BUFFERS(0, 0), choose_ll,
     write_read_put_packets},
    {"unit_read_reduce_test_2", "read_reduce_test", 2, TEST_BUFFERS(2, 2), NULL, write_read_reduce},
    {"unit_read_reduce_fuse_test_2", "read_reduce_test", 2, TEST_BUFFERS(2, 2), NULL,
     write_read_reduces},
    {"unit_reduce_send_test_2", "reduce_send_test", 2, TEST_BUFFERS(2, 2), NULL, write_reduce_send},
    {"unit_tbg_reduce_send_test_2", "reduce_send_test", 2, TEST_BUFFERS(2, 2), NULL,
     write_group_reduce_send},
    {"unit_reduce_send_packet_test_2", "reduce_send_packets_test", 2, TEST_BUFFERS(0, 0), choose_ll,
     write_reduce_send_packets},
    {"unit_relaxed_signal_wait_test_2", "relaxed_signal_wait_test", 2, TEST_BUFFERS(0, 0), NULL,
     write_relaxed},
    {"unit_signal_wait_test_2", "signal_wait_test", 2, TEST_BUFFERS(0, 0), NULL, write_signal_wait},
    {"unit_signal_wait_fuse_test_2", "signal_wait_test", 2, TEST_BUFFERS(0, 0), NULL,
     write_signals_waits},
    {"unit_flush_test_2", "flush_test", 2, TEST_BUFFERS(0, 0), NULL, write_flush},
    {"unit_flush_fuse_test_2", "flush_test", 2, TEST_BUFFERS(0, 0), NULL, write_flushes},
    {"unit_put_with_signal_test_2", "put_with_signal_test", 2, TEST_BUFFERS(2, 0), NULL,
     write_put_with_signal},
    {"unit_switch_broadcast_test_3", "group_store_test", 3, TEST_BUFFERS(1, 1), NULL,
     write_broadcast},
};

const mscclpp_programs mscclpp_units = {programs, sizeof programs / sizeof *programs};
