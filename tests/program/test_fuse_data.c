/* Fusion of moves and reductions. */
#include "program/passes.h"

static banyan_program_memory_channel *memory(banyan_program *program)
{
    return banyan_program_memory_channel_create(program, 1, 0);
}

/* Eight chunks of each rank's scratch. */
typedef struct two_scratches {
    banyan_chunk of[2];
} two_scratches;

static two_scratches scratches(banyan_program *program)
{
    return (two_scratches){
        {banyan_program_scratch(program, 0, 8), banyan_program_scratch(program, 1, 8)}};
}

#define AT(chunk, index) banyan_program_slice(program, (chunk), (index), (index) + 1)

static void reduce(banyan_program *program, uint64_t source, uint64_t other, uint64_t destination)
{
    banyan_program_reduce(program, 0, IN(0, source, source + 1), CHUNKS(IN(0, other, other + 1)), 1,
                          OUT(0, destination, destination + 1), BANYAN_SUM, BANYAN_TB(0));
}

static void run_of_puts(banyan_program *program)
{
    banyan_program_memory_channel *channel = memory(program);
    for (uint64_t i = 0; i < 3; i++)
        banyan_program_memory_put(channel, OUT(1, i + 1, i + 2), IN(0, i, i + 1), BANYAN_TB(0));
}

static void puts_of_different_sizes(banyan_program *program)
{
    banyan_program_memory_channel *channel = memory(program);
    banyan_program_memory_put(channel, OUT(1, 0, 1), IN(0, 0, 1), BANYAN_TB(0));
    banyan_program_memory_put(channel, OUT(1, 1, 3), IN(0, 1, 3), BANYAN_TB(0));
}

static void puts_on_different_types(banyan_program *program)
{
    banyan_program_memory_put(memory(program), OUT(1, 0, 1), IN(0, 0, 1), BANYAN_TB(0));
    banyan_program_port_put(banyan_program_port_channel_create(program, 1, 0), OUT(1, 1, 2),
                            IN(0, 1, 2), 0);
}

static void puts_of_different_shares(banyan_program *program)
{
    banyan_program_memory_channel *channel = memory(program);
    banyan_program_group *group = banyan_program_group_create(program, (const int[]){0, 1}, 2);
    banyan_program_memory_put(channel, OUT(1, 0, 1), IN(0, 0, 1), BANYAN_TB(0));
    banyan_program_memory_put(channel, OUT(1, 1, 2), IN(0, 1, 2), BANYAN_TB_GROUP(group));
    banyan_program_memory_put(channel, OUT(1, 2, 3), IN(0, 2, 3), BANYAN_TB_GROUP(group));
}

static void run_of_port_puts(banyan_program *program)
{
    banyan_program_port_channel *first = banyan_program_port_channel_create(program, 1, 0);
    banyan_program_port_channel *second = banyan_program_port_channel_create(program, 1, 0);
    banyan_program_port_put_with_signal(first, OUT(1, 0, 1), IN(0, 0, 1), 0);
    banyan_program_port_put_with_signal(second, OUT(1, 1, 2), IN(0, 1, 2), 0);
    banyan_program_port_put_with_signal_and_flush(first, OUT(1, 2, 3), IN(0, 2, 3), 0);
    banyan_program_port_put_with_signal_and_flush(first, OUT(1, 3, 4), IN(0, 3, 4), 0);
}

static void run_of_gets(banyan_program *program)
{
    banyan_program_memory_channel *channel = memory(program);
    for (uint64_t i = 0; i < 2; i++)
        banyan_program_memory_get(channel, IN(0, i, i + 1), OUT(1, i + 1, i + 2), BANYAN_TB(0));
}

static void gets_to_one_place(banyan_program *program)
{
    banyan_program_memory_channel *channel = memory(program);
    for (uint64_t i = 0; i < 2; i++)
        banyan_program_memory_get(channel, IN(0, 0, 1), OUT(1, i, i + 1), BANYAN_TB(0));
}

static void runs_of_packets(banyan_program *program)
{
    two_scratches s = scratches(program);
    banyan_program_memory_channel *channel = memory(program);
    for (uint64_t i = 0; i < 2; i++)
        banyan_program_memory_put_packets(channel, AT(s.of[1], i), IN(0, i, i + 1), BANYAN_TB(0));
    for (uint64_t i = 2; i < 4; i++)
        banyan_program_memory_read_put_packets(channel, AT(s.of[1], i), AT(s.of[0], 0),
                                               BANYAN_TB(0));
    banyan_program_memory_read_put_packets(channel, AT(s.of[1], 4), AT(s.of[0], 1), BANYAN_TB(0));
}

static void run_of_reductions(banyan_program *program)
{
    for (uint64_t i = 1; i < 4; i++)
        reduce(program, 0, i, 0);
}

static void reductions_of_different_places(banyan_program *program)
{
    reduce(program, 0, 1, 0);
    reduce(program, 0, 1, 1);
    reduce(program, 2, 1, 1);
}

static void reductions_by_different_operations(banyan_program *program)
{
    reduce(program, 0, 1, 0);
    banyan_program_reduce(program, 0, IN(0, 0, 1), CHUNKS(IN(0, 2, 3)), 1, OUT(0, 0, 1), BANYAN_MAX,
                          BANYAN_TB(0));
}

static void reduction_of_its_own_result(banyan_program *program)
{
    reduce(program, 0, 1, 0);
    banyan_program_reduce(program, 0, IN(0, 0, 1), CHUNKS(OUT(0, 0, 1)), 1, OUT(0, 0, 1),
                          BANYAN_SUM, BANYAN_TB(0));
}

static void reduce_and_puts(banyan_program *program)
{
    banyan_program_memory_channel *channel = memory(program);
    reduce(program, 0, 1, 0);
    banyan_program_memory_put(channel, OUT(1, 5, 6), OUT(0, 0, 1), BANYAN_TB(0));
    banyan_program_memory_put(channel, OUT(1, 6, 7), OUT(0, 0, 1), BANYAN_TB(0));
}

static void reduce_and_put_of_another(banyan_program *program)
{
    reduce(program, 0, 1, 0);
    banyan_program_memory_put(memory(program), OUT(1, 5, 6), OUT(0, 1, 2), BANYAN_TB(0));
}

static void reduce_and_port_put(banyan_program *program)
{
    reduce(program, 0, 1, 0);
    banyan_program_port_put(banyan_program_port_channel_create(program, 1, 0), OUT(1, 5, 6),
                            OUT(0, 0, 1), 0);
}

static void read_reductions_and_put(banyan_program *program)
{
    banyan_program_memory_channel *channel = memory(program);
    for (uint64_t i = 0; i < 2; i++)
        banyan_program_memory_reduce(channel, IN(0, 0, 1), CHUNKS(IN(1, i, i + 1)), 1,
                                     BANYAN_IN_SOURCE, BANYAN_MIN, BANYAN_TB(0));
    banyan_program_memory_put(channel, IN(1, 5, 6), IN(0, 0, 1), BANYAN_TB(0));
}

static void reduce_packets(banyan_program *program, const two_scratches *s, int others)
{
    for (int i = 0; i < others; i++)
        banyan_program_reduce_packets(program, 0, IN(0, 0, 1), CHUNKS(AT(s->of[0], (uint64_t)i)), 1,
                                      BANYAN_IN_SOURCE, BANYAN_SUM, BANYAN_TB(0));
}

static void reduce_packets_and_puts(banyan_program *program)
{
    two_scratches s = scratches(program);
    banyan_program_memory_channel *channel = memory(program);
    reduce_packets(program, &s, 2);
    for (uint64_t i = 4; i < 6; i++)
        banyan_program_memory_put_packets(channel, AT(s.of[1], i), IN(0, 0, 1), BANYAN_TB(0));
}

static void reduce_packets_copy_and_puts(banyan_program *program)
{
    two_scratches s = scratches(program);
    banyan_program_memory_channel *channel = memory(program);
    reduce_packets(program, &s, 1);
    banyan_program_copy_packets(program, 0, AT(s.of[0], 4), IN(0, 0, 1), BANYAN_TB(0));
    banyan_program_memory_read_put_packets(channel, AT(s.of[1], 4), AT(s.of[0], 4), BANYAN_TB(0));
    banyan_program_memory_put_packets(channel, AT(s.of[1], 5), IN(0, 0, 1), BANYAN_TB(0));
}

static void reduce_packets_and_copy_of_another(banyan_program *program)
{
    two_scratches s = scratches(program);
    reduce_packets(program, &s, 1);
    banyan_program_copy_packets(program, 0, AT(s.of[0], 4), IN(0, 1, 2), BANYAN_TB(0));
}

static banyan_program_switch_channel *both(banyan_program *program, banyan_buffer buffer)
{
    return banyan_program_switch_channel_create(program, (const int[]){0, 1}, 2, buffer);
}

static void load_and_store_in_place(banyan_program *program)
{
    banyan_program_switch_channel *channel = both(program, BANYAN_INPUT);
    banyan_program_switch_reduce(channel, 0, 2, 1, IN(0, 3, 4), BANYAN_MAX, 0);
    banyan_program_switch_broadcast(channel, 0, IN(0, 3, 4), 3, 1, 0);
}

static void load_and_store_by_way_of_scratch(banyan_program *program)
{
    banyan_program_switch_channel *channel = both(program, BANYAN_INPUT);
    banyan_chunk scratch = banyan_program_scratch(program, 0, 1);
    banyan_program_switch_reduce(channel, 0, 2, 1, scratch, BANYAN_SUM, 0);
    banyan_program_switch_broadcast(channel, 0, scratch, 2, 1, 0);
}

static void load_and_store_of_what_another_reads(banyan_program *program)
{
    banyan_program_switch_channel *channel = both(program, BANYAN_INPUT);
    banyan_chunk scratch = banyan_program_scratch(program, 0, 1);
    banyan_program_switch_reduce(channel, 0, 2, 1, scratch, BANYAN_SUM, 0);
    banyan_program_switch_broadcast(channel, 0, scratch, 2, 1, 0);
    banyan_program_memory_get(banyan_program_memory_channel_create(program, 0, 1), OUT(1, 0, 1),
                              scratch, BANYAN_TB(0));
}

static void load_to_output_and_store(banyan_program *program)
{
    banyan_program_switch_channel *channel = both(program, BANYAN_INPUT);
    banyan_program_switch_reduce(channel, 0, 2, 1, OUT(0, 2, 3), BANYAN_SUM, 0);
    banyan_program_switch_broadcast(channel, 0, OUT(0, 2, 3), 2, 1, 0);
}

static void load_and_store_elsewhere(banyan_program *program)
{
    banyan_program_switch_reduce(both(program, BANYAN_INPUT), 0, 2, 1, OUT(0, 2, 3), BANYAN_SUM, 0);
    banyan_program_switch_broadcast(both(program, BANYAN_OUTPUT), 0, OUT(0, 2, 3), 2, 1, 0);
}

static pass_case cases[] = {
    {"puts are one", run_of_puts, NULL, "put memory i[0], i[1], i[2] -> o[1]@1, o[2]@1, o[3]@1"},
    {"puts of different sizes stay apart", puts_of_different_sizes, NULL,
     "put memory i[0] -> o[0]@1\nput memory i[1..3) -> o[1..3)@1"},
    {"puts on different types of channels stay apart", puts_on_different_types, NULL,
     "put memory i[0] -> o[0]@1\nput port i[1] -> o[1]@1 by channel 0 to 1"},
    {"puts that are shared differently stay apart", puts_of_different_shares, NULL,
     "put memory i[0] -> o[0]@1\nput memory i[1], i[2] -> o[1]@1, o[2]@1, share 0 of 2"},
    {"puts with signal are one, on any channels, and so are those with flush", run_of_port_puts,
     NULL,
     "pws port i[0], i[1] -> o[0]@1, o[1]@1 by channel 0 to 1, channel 1 to 1\n"
     "pwsf port i[2], i[3] -> o[2]@1, o[3]@1 by channel 0 to 1, channel 0 to 1"},
    {"gets are one", run_of_gets, NULL,
     "get memory o[1]@1, o[2]@1 -> i[0], i[1] by channel 0 to 1, channel 0 to 1"},
    {"gets to one place stay in order", gets_to_one_place, NULL,
     "get memory o[0]@1 -> i[0] by channel 0 to 1\nget memory o[1]@1 -> i[0] by channel 0 to 1"},
    {"packets are put as one, and read once", runs_of_packets, NULL,
     "ppkt memory i[0], i[1] -> s[0]@1, s[1]@1\n"
     "rppkt memory s[0] -> s[2]@1, s[3]@1\n"
     "rppkt memory s[1] -> s[4]@1"},
    {"reductions to one place add up", run_of_reductions, NULL,
     "re sum i[0], i[1], i[2], i[3] -> o[0]"},
    {"reductions of different places stay apart", reductions_of_different_places, NULL,
     "re sum i[0], i[1] -> o[0]\nre sum i[0], i[1] -> o[1]\nre sum i[2], i[1] -> o[1]"},
    {"reductions by different operations stay apart", reductions_by_different_operations, NULL,
     "re sum i[0], i[1] -> o[0]\nre max i[0], i[2] -> o[0]"},
    {"a reduction of the previous result stays apart", reduction_of_its_own_result, NULL,
     "re sum i[0], i[1] -> o[0]\nre sum i[0], o[0] -> o[0]"},
    {"reduce + put is reduce and send", reduce_and_puts, NULL,
     "res memory sum i[0], i[1] -> o[0], o[5]@1, o[6]@1"},
    {"a put of another chunk stays apart", reduce_and_put_of_another, NULL,
     "re sum i[0], i[1] -> o[0]\nput memory o[1] -> o[5]@1"},
    {"a put on a port channel stays apart", reduce_and_port_put, NULL,
     "re sum i[0], i[1] -> o[0]\nput port o[0] -> o[5]@1 by channel 0 to 1"},
    {"read-reduce + put is one", read_reductions_and_put, NULL,
     "rres memory min i[0], i[0]@1, i[1]@1 -> i[0], i[5]@1"},
    {"reduce packets + put packets is one", reduce_packets_and_puts, NULL,
     "respkt memory sum i[0], s[0], s[1] -> i[0], s[4]@1, s[5]@1"},
    {"reduce packets + copy + put packets is one", reduce_packets_copy_and_puts, NULL,
     "recspkt memory sum i[0], s[0] -> i[0], s[4], s[4]@1, s[5]@1"},
    {"a copy of another chunk stays apart", reduce_packets_and_copy_of_another, NULL,
     "repkt sum i[0], s[0] -> i[0]\ncpkt i[1] -> s[4]"},
    {"group load-reduce + group store is one, and stores where it should", load_and_store_in_place,
     NULL, "glres max i[2]@{0,1} by switch channel 0 -> i[3]@{0,1} by switch channel 0"},
    {"scratch in between is spared", load_and_store_by_way_of_scratch, NULL,
     "glres sum i[2]@{0,1} by switch channel 0 -> i[2]@{0,1} by switch channel 0"},
    {"but not when another rank reads it", load_and_store_of_what_another_reads, NULL,
     "glre sum i[2]@{0,1} by switch channel 0 -> s[0]\n"
     "gstore s[0] -> i[2]@{0,1} by switch channel 0"},
    {"an output in between is not spared", load_to_output_and_store, NULL,
     "glre sum i[2]@{0,1} by switch channel 0 -> o[2]\n"
     "gstore o[2] -> i[2]@{0,1} by switch channel 0"},
    {"a load and a store on different channels stay apart", load_and_store_elsewhere, NULL,
     "glre sum i[2]@{0,1} by switch channel 0 -> o[2]\n"
     "gstore o[2] -> o[2]@{0,1} by switch channel 1"},
};

static void fuses(void **state)
{
    check_pass_case(*state, pass_fuse);
}

int main(void)
{
    return run_pass_cases("fusion of data movement", cases, sizeof cases / sizeof cases[0], fuses);
}
