/* A nop precedes an operation that depends on an earlier one of its thread block, and no other. */
#include "program/passes.h"

#define AT(chunk, index) banyan_program_slice(program, (chunk), (index), (index) + 1)

static void copy(banyan_program *program, uint64_t from, uint64_t to, uint64_t size)
{
    banyan_program_copy(program, 0, OUT(0, to, to + size), IN(0, from, from + size), BANYAN_TB(0));
}

static void copy_back(banyan_program *program, uint64_t from, uint64_t to, uint64_t size)
{
    banyan_program_copy(program, 0, IN(0, to, to + size), OUT(0, from, from + size), BANYAN_TB(0));
}

static void independent(banyan_program *program)
{
    copy(program, 0, 0, 1);
    copy(program, 0, 1, 1);
    copy(program, 2, 2, 2);
}

static void read_after_write(banyan_program *program)
{
    copy(program, 0, 0, 4);
    copy_back(program, 3, 5, 1);
}

static void write_after_read(banyan_program *program)
{
    copy(program, 0, 0, 1);
    copy_back(program, 4, 0, 1);
}

static void write_after_write(banyan_program *program)
{
    copy(program, 0, 0, 2);
    copy(program, 3, 1, 1);
}

/* The second read does not hide the first. */
static void write_after_two_reads(banyan_program *program)
{
    copy(program, 0, 0, 1);
    banyan_program_reduce(program, 0, IN(0, 0, 1), CHUNKS(IN(0, 1, 2)), 1, BANYAN_IN_SOURCE,
                          BANYAN_SUM, BANYAN_TB(0));
}

/* Accesses of an operation are remembered even if a nop before it is found necessary later. */
static void remembered_after_nop(banyan_program *program)
{
    copy(program, 0, 0, 1);
    copy(program, 1, 0, 1);
    copy_back(program, 3, 1, 1);
}

static void nop_is_enough(banyan_program *program)
{
    copy(program, 0, 0, 1);
    banyan_program_barrier(program, 0, (const int[]){0}, 1);
    copy_back(program, 0, 0, 1);
}

static void barrier_is_enough(banyan_program *program)
{
    copy(program, 0, 0, 1);
    banyan_program_barrier(program, 0, (const int[]){0, 1}, 2);
    copy_back(program, 0, 0, 1);
}

static void one_nop_for_all(banyan_program *program)
{
    copy(program, 0, 0, 1);
    copy(program, 1, 1, 1);
    copy_back(program, 0, 0, 1);
    copy_back(program, 1, 1, 1);
}

static void gets_and_puts(banyan_program *program)
{
    banyan_program_memory_channel *channel = banyan_program_memory_channel_create(program, 1, 0);
    banyan_program_memory_get(channel, IN(0, 0, 1), OUT(1, 0, 1), BANYAN_TB(0));
    banyan_program_memory_put(channel, OUT(1, 1, 2), IN(0, 0, 1), BANYAN_TB(0));
    banyan_program_memory_get(channel, OUT(0, 1, 2), OUT(1, 1, 2), BANYAN_TB(0));
}

/* Accesses of one operation at a peer, and of another there. */
static void peers(banyan_program *program)
{
    banyan_program_memory_channel *channel = banyan_program_memory_channel_create(program, 1, 0);
    banyan_program_memory_put(channel, OUT(1, 0, 2), IN(0, 0, 2), BANYAN_TB(0));
    banyan_program_memory_put(channel, OUT(1, 1, 2), IN(0, 2, 3), BANYAN_TB(0));
    banyan_program_memory_reduce(channel, OUT(0, 0, 1), CHUNKS(OUT(1, 1, 2)), 1, BANYAN_IN_SOURCE,
                                 BANYAN_SUM, BANYAN_TB(0));
}

static void other_peers(banyan_program *program)
{
    banyan_program_memory_channel *first = banyan_program_memory_channel_create(program, 1, 0);
    banyan_program_memory_channel *second = banyan_program_memory_channel_create(program, 2, 0);
    banyan_program_memory_put(first, OUT(1, 0, 1), IN(0, 0, 1), BANYAN_TB(0));
    banyan_program_memory_put(second, OUT(2, 0, 1), IN(0, 0, 1), BANYAN_TB(0));
    banyan_program_memory_get(first, OUT(0, 0, 1), OUT(1, 1, 2), BANYAN_TB(0));
    banyan_program_memory_get(second, OUT(0, 1, 2), IN(2, 0, 1), BANYAN_TB(0));
    banyan_program_memory_get(second, OUT(0, 2, 3), OUT(2, 0, 1), BANYAN_TB(0));
}

/* Packets' readers wait for their flags; readers of the unpacked data do not. */
static void packets(banyan_program *program)
{
    banyan_chunk scratch = banyan_program_scratch(program, 0, 2);
    banyan_program_memory_channel *channel = banyan_program_memory_channel_create(program, 1, 0);
    banyan_chunk theirs = banyan_program_scratch(program, 1, 1);
    banyan_program_copy_packets(program, 0, AT(scratch, 0), IN(0, 0, 1), BANYAN_TB(0));
    banyan_program_memory_read_put_packets(channel, theirs, AT(scratch, 0), BANYAN_TB(0));
    banyan_program_unpack_packets(program, 0, OUT(0, 0, 1), AT(scratch, 0), BANYAN_TB(0));
    banyan_program_reduce_packets(program, 0, OUT(0, 0, 1), CHUNKS(AT(scratch, 1)), 1, OUT(0, 1, 2),
                                  BANYAN_SUM, BANYAN_TB(0));
}

static void groups_of_ranks(banyan_program *program)
{
    banyan_program_switch_channel *all =
        banyan_program_switch_channel_create(program, (const int[]){0, 1}, 2, BANYAN_INPUT);
    banyan_program_switch_reduce(all, 0, 0, 1, OUT(0, 0, 1), BANYAN_SUM, 0);
    banyan_program_switch_broadcast(all, 0, OUT(0, 0, 1), 1, 1, 0);
    copy(program, 1, 1, 1);
}

static void groups_and_peers(banyan_program *program)
{
    banyan_program_switch_channel *all =
        banyan_program_switch_channel_create(program, (const int[]){0, 1}, 2, BANYAN_OUTPUT);
    banyan_program_memory_channel *channel = banyan_program_memory_channel_create(program, 1, 0);
    banyan_program_switch_broadcast(all, 0, IN(0, 0, 1), 0, 1, 0);
    banyan_program_memory_get(channel, IN(0, 1, 2), OUT(1, 0, 1), BANYAN_TB(0));
}

static void in_loop(banyan_program *program)
{
    banyan_program_loop_begin(program, 64, 1);
    copy(program, 0, 0, 1);
    copy_back(program, 0, 1, 1);
    banyan_program_loop_end(program);
}

/* The loop as a whole has its operations' accesses. */
static void around_loop(banyan_program *program)
{
    copy(program, 0, 0, 1);
    banyan_program_loop_begin(program, 64, 1);
    copy_back(program, 0, 1, 1);
    banyan_program_loop_end(program);
    copy(program, 1, 2, 1);
    copy(program, 3, 3, 1);
}

static void other_blocks(banyan_program *program)
{
    banyan_program_copy(program, 0, OUT(0, 0, 1), IN(0, 0, 1), BANYAN_TB(1));
    copy_back(program, 0, 0, 1);
}

static pass_case cases[] = {
    {"independent operations need nothing", independent, NULL,
     "copy i[0] -> o[0]\ncopy i[0] -> o[1]\ncopy i[2..4) -> o[2..4)"},
    {"read after write", read_after_write, NULL, "copy i[0..4) -> o[0..4)\nnop\ncopy o[3] -> i[5]"},
    {"write after read", write_after_read, NULL, "copy i[0] -> o[0]\nnop\ncopy o[4] -> i[0]"},
    {"write after write", write_after_write, NULL,
     "copy i[0..2) -> o[0..2)\nnop\ncopy i[3] -> o[1]"},
    {"write after two reads, of which one is its own", write_after_two_reads, NULL,
     "copy i[0] -> o[0]\nnop\nre sum i[0], i[1] -> i[0]"},
    {"write after read by an operation that needed a nop itself", remembered_after_nop, NULL,
     "copy i[0] -> o[0]\nnop\ncopy i[1] -> o[0]\nnop\ncopy o[3] -> i[1]"},
    {"a nop that is there is enough", nop_is_enough, NULL,
     "copy i[0] -> o[0]\nnop\ncopy o[0] -> i[0]"},
    {"a barrier that is there is enough", barrier_is_enough, NULL,
     "copy i[0] -> o[0]\nbarrier 0 of 2 thread blocks\ncopy o[0] -> i[0]"},
    {"one nop is enough for all that follows", one_nop_for_all, NULL,
     "copy i[0] -> o[0]\ncopy i[1] -> o[1]\nnop\ncopy o[0] -> i[0]\ncopy o[1] -> i[1]"},
    {"gets and puts", gets_and_puts, NULL,
     "get memory o[0]@1 -> i[0] by channel 0 to 1\nnop\nput memory i[0] -> o[1]@1\nnop\n"
     "get memory o[1]@1 -> o[1] by channel 0 to 1"},
    {"a peer's memory counts", peers, NULL,
     "put memory i[0..2) -> o[0..2)@1\nnop\nput memory i[2] -> o[1]@1\nnop\n"
     "rre memory sum o[0], o[1]@1 -> o[0]"},
    {"each peer and buffer for itself", other_peers, NULL,
     "put memory i[0] -> o[0]@1\nput memory i[0] -> o[0]@2\n"
     "get memory o[1]@1 -> o[0] by channel 0 to 1\nget memory i[0]@2 -> o[1] by channel 1 to 2\n"
     "nop\nget memory o[0]@2 -> o[2] by channel 1 to 2"},
    {"packets do not count", packets, NULL,
     "cpkt i[0] -> s[0]\nrppkt memory s[0] -> s[0]@1\nupkt s[0] -> o[0]\nnop\n"
     "repkt sum o[0], s[1] -> o[1]"},
    {"a group's region is the rank's own as well", groups_of_ranks, NULL,
     "glre sum i[0]@{0,1} by switch channel 0 -> o[0]\nnop\n"
     "gstore o[0] -> i[1]@{0,1} by switch channel 0\nnop\ncopy i[1] -> o[1]"},
    {"a group's region is each member's as well", groups_and_peers, NULL,
     "gstore i[0] -> o[0]@{0,1} by switch channel 0\nnop\n"
     "get memory o[0]@1 -> i[1] by channel 0 to 1"},
    {"inside of a loop", in_loop, NULL,
     "pipeline over 1 chunk in units of 64 bytes {\ncopy i[0] -> o[0]\nnop\ncopy o[0] -> i[1]\n}"},
    {"before and after a loop", around_loop, NULL,
     "copy i[0] -> o[0]\nnop\n"
     "pipeline over 1 chunk in units of 64 bytes {\ncopy o[0] -> i[1]\n}\n"
     "nop\ncopy i[1] -> o[2]\ncopy i[3] -> o[3]"},
    {"other thread blocks are not waited for", other_blocks, NULL, "copy o[0] -> i[0]"},
};

static void resolves(void **state)
{
    check_pass_case(*state, pass_dependencies);
}

int main(void)
{
    return run_pass_cases("dependencies", cases, sizeof cases / sizeof cases[0], resolves);
}
