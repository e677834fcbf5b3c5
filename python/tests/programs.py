"""Programs of MSCCL++'s examples, written for the tests of banyan.language.

Each has the name of its plan in tests/data/plans.sha256.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from banyan.language import (
    AllGather,
    AllReduce,
    Buffer,
    BufferType,
    CollectiveProgram,
    LoopIterationContext,
    MemoryChannel,
    PortChannel,
    Rank,
    ReduceScatter,
    Semaphore,
    SwitchChannel,
    SyncType,
    TestCollective,
    ThreadBlockGroup,
)

Writer = Callable[[int], None]
#: Plan, program's name, ranks, collective, options, function that writes it.
PROGRAMS: list[tuple[str, str, int, Any, dict[str, Any], Writer]] = []

LL: dict[str, Any] = {"protocol": "LL"}
LL_DOUBLE: dict[str, Any] = {"protocol": "LL", "use_double_scratch_buffer": True}


def program(
    plan: str, name: str, collective: Callable[[int], Any], **options: Any
) -> Callable[[Writer], Writer]:
    def add(write: Writer) -> Writer:
        ranks = int(plan.rsplit("_", 1)[1])
        PROGRAMS.append((plan, name, ranks, collective(ranks), options, write))
        return write

    return add


def buffers(inputs: int, outputs: int) -> Callable[[int], TestCollective]:
    return lambda ranks: TestCollective(ranks, inputs, outputs)


def in_place(kind: Any, factor: int = 1) -> Callable[[int], Any]:
    return lambda ranks: kind(ranks, factor, True)


def build(of: tuple[str, str, int, Any, dict[str, Any], Writer]) -> CollectiveProgram:
    _, name, ranks, collective, options, write = of
    with CollectiveProgram(name, collective, ranks, **options) as made:
        write(ranks)
    return made


# ---- one operation or few ----


@program("unit_barrier_test_1", "barrier_test", buffers(0, 0))
def barrier(ranks: int) -> None:
    Rank(0).barrier([0, 1])


@program("unit_copy_test_1", "copy_test", buffers(1, 1))
def copy(ranks: int) -> None:
    rank = Rank(0)
    rank.copy(rank.get_output_buffer()[0:1], rank.get_input_buffer()[0:1], tb=0)


@program("unit_copy_packet_test_1", "copy_packets_test", buffers(1, 1), **LL)
def copy_packets(ranks: int) -> None:
    Rank(0).copy_packets(Buffer(0, 1)[0:1], Rank(0).get_input_buffer()[0:1], tb=0)


@program("unit_unpack_packet_test_1", "unpack_packets_test", buffers(1, 1), **LL)
def unpack_packets(ranks: int) -> None:
    rank, packets = Rank(0), Buffer(0, 1)
    rank.copy_packets(packets[0:1], rank.get_input_buffer()[0:1], tb=0)
    rank.unpack_packets(rank.get_output_buffer()[0:1], packets[:], tb=0)


@program("unit_pipeline_test_1", "barrier_test", buffers(1, 1))
def loop(ranks: int) -> None:
    with LoopIterationContext(unit=2**20, num_chunks=1):
        copy(ranks)


@program("unit_tbg_copy_test_1", "copy_test", buffers(1, 1))
def group_copy(ranks: int) -> None:
    rank, group = Rank(0), ThreadBlockGroup(tb_list=[0, 1, 2, 3])
    rank.copy(rank.get_output_buffer()[0:1], rank.get_input_buffer()[0:1], tb_group=group)


def reduce_into_output(others: list[int], **by: Any) -> None:
    rank = Rank(0)
    inputs, outputs = rank.get_input_buffer(), rank.get_output_buffer()
    for other in others:
        rank.reduce(inputs[0:1], [inputs[other : other + 1]], dst_chunk=outputs[0:1], **by)


@program("unit_reduce_test_1", "reduce_test", buffers(2, 1))
def reduce(ranks: int) -> None:
    reduce_into_output([1], tb=0)


@program("unit_reduce_fuse_test_1", "reduce_test", buffers(3, 2))
def reduces(ranks: int) -> None:
    reduce_into_output([1, 2], tb=0)


@program("unit_tbg_reduce_test_1", "reduce_test", buffers(2, 1))
def group_reduce(ranks: int) -> None:
    reduce_into_output([1], tb_group=ThreadBlockGroup([0, 1, 2, 3]))


@program("unit_reduce_packets_test_1", "reduce_packets_test", buffers(0, 0), **LL)
def reduce_packets(ranks: int) -> None:
    s = Buffer(0, 3)
    Rank(0).reduce(s[0:1], [s[1:2]], tb=0, dst_chunk=s[2:3], packet=True)


@program("unit_reduce_packets_fuse_test_1", "reduce_packets_test", buffers(0, 0), **LL)
def reduces_of_packets(ranks: int) -> None:
    s = Buffer(0, 4)
    for i in range(1, 3):
        Rank(0).reduce(s[0:1], [s[i : i + 1]], tb=0, dst_chunk=s[3:4], packet=True)


@program("unit_reduce_copy_packet_test_1", "reduce_copy_packets_test", buffers(1, 0), **LL)
def reduce_and_copy_packets(ranks: int) -> None:
    rank, s = Rank(0), Buffer(0, 2)
    mine = rank.get_input_buffer()[0:1]
    rank.reduce(mine, [s[0:1]], tb=0, packet=True)
    rank.copy_packets(s[1:2], mine, tb=0)


def meet(channel: MemoryChannel, tb: int = 0) -> None:
    """Both ranks are ready for each other."""
    channel.signal(tb, relaxed=True)
    channel.wait(tb, relaxed=True)


def finish(channel: MemoryChannel, tb: int = 0) -> None:
    """Each rank's writes are visible to the other."""
    channel.signal(tb, data_sync=SyncType.before)
    channel.wait(tb, data_sync=SyncType.after)


def with_peer(act: Callable[[MemoryChannel, Rank, Rank], None]) -> None:
    """Let each of two ranks act on the other, between a beginning and an end."""
    for rank in range(2):
        channel = MemoryChannel(1 - rank, rank)
        meet(channel)
        act(channel, Rank(rank), Rank(1 - rank))
        finish(channel)


def gets(times: int) -> None:
    def act(channel: MemoryChannel, mine: Rank, theirs: Rank) -> None:
        for _ in range(times):
            source = theirs.get_input_buffer()[1:2]
            channel.get(mine.get_input_buffer()[0:1], source, tb=0)

    with_peer(act)


@program("unit_get_test_2", "get_test", buffers(2, 0))
def get(ranks: int) -> None:
    gets(1)


@program("unit_get_fuse_test_2", "get_test", buffers(2, 0))
def get_twice(ranks: int) -> None:
    gets(2)


@program("unit_put_test_2", "put_test", buffers(2, 0))
def put(ranks: int) -> None:
    with_peer(
        lambda channel, mine, theirs: channel.put(
            theirs.get_input_buffer()[1:2], mine.get_input_buffer()[0:1], tb=0
        )
    )


@program("unit_put_packet_test_2", "put_packets_test", buffers(1, 0), **LL)
def put_packets(ranks: int) -> None:
    packets = [Buffer(rank, 1) for rank in range(2)]
    for rank in range(2):
        channel = MemoryChannel(1 - rank, rank)
        channel.put_packets(packets[1 - rank][:], Rank(rank).get_input_buffer()[0:1], tb=0)


@program("unit_read_put_packet_test_2", "read_put_packets_test", buffers(0, 0), **LL)
def read_put_packets(ranks: int) -> None:
    packets = [Buffer(rank, 2) for rank in range(2)]
    for rank in range(2):
        channel = MemoryChannel(1 - rank, rank)
        channel.read_put_packets(packets[1 - rank][1:2], packets[rank][0:1], tb=0)


def read_reduces(sources: list[int]) -> None:
    def act(channel: MemoryChannel, mine: Rank, theirs: Rank) -> None:
        for source in sources:
            channel.reduce(
                mine.get_input_buffer()[0:1],
                [theirs.get_input_buffer()[source : source + 1]],
                tb=0,
                local_dst_chunk=mine.get_output_buffer()[0:1],
            )

    with_peer(act)


@program("unit_read_reduce_test_2", "read_reduce_test", buffers(2, 2))
def read_reduce(ranks: int) -> None:
    read_reduces([1])


@program("unit_read_reduce_fuse_test_2", "read_reduce_test", buffers(2, 2))
def read_reduce_twice(ranks: int) -> None:
    read_reduces([0, 1])


def reduce_and_put(**by: Any) -> None:
    def act(channel: MemoryChannel, mine: Rank, theirs: Rank) -> None:
        inputs, sums = mine.get_input_buffer(), mine.get_output_buffer()[0:1]
        mine.reduce(inputs[0:1], [inputs[1:2]], dst_chunk=sums, **by)
        channel.put(theirs.get_output_buffer()[1:2], sums, **by)

    with_peer(act)


@program("unit_reduce_send_test_2", "reduce_send_test", buffers(2, 2))
def reduce_send(ranks: int) -> None:
    reduce_and_put(tb=0)


@program("unit_tbg_reduce_send_test_2", "reduce_send_test", buffers(2, 2))
def group_reduce_send(ranks: int) -> None:
    reduce_and_put(tb_group=ThreadBlockGroup([0, 1, 2, 3]))


@program("unit_reduce_send_packet_test_2", "reduce_send_packets_test", buffers(0, 0), **LL)
def reduce_send_packets(ranks: int) -> None:
    s = [Buffer(rank, 4) for rank in range(2)]
    for rank in range(2):
        channel = MemoryChannel(1 - rank, rank)
        Rank(rank).reduce(s[rank][0:1], [s[rank][1:2]], tb=0, dst_chunk=s[rank][2:3], packet=True)
        channel.put_packets(s[1 - rank][3:4], s[rank][2:3], tb=0)


@program("unit_relaxed_signal_wait_test_2", "relaxed_signal_wait_test", buffers(0, 0))
def relaxed(ranks: int) -> None:
    for rank in range(2):
        meet(MemoryChannel(1 - rank, rank))


@program("unit_signal_wait_test_2", "signal_wait_test", buffers(0, 0))
def signal_wait(ranks: int) -> None:
    for rank in range(2):
        finish(MemoryChannel(1 - rank, rank))


@program("unit_flush_test_2", "flush_test", buffers(0, 0))
def flush(ranks: int) -> None:
    PortChannel(1, 0).flush(tb=0, data_sync=SyncType.before)


@program("unit_put_with_signal_test_2", "put_with_signal_test", buffers(2, 0))
def put_with_signal(ranks: int) -> None:
    for rank in range(2):
        channel = PortChannel(1 - rank, rank)
        channel.signal(tb=0)
        channel.wait(tb=0)
        channel.put_with_signal(
            Rank(1 - rank).get_input_buffer()[1:2], Rank(rank).get_input_buffer()[0:1], tb=0
        )
        channel.wait(tb=0, data_sync=SyncType.after)


@program("unit_switch_broadcast_test_3", "group_store_test", buffers(1, 1))
def switch_broadcast(ranks: int) -> None:
    channel = SwitchChannel(rank_list=[0, 1], buffer_type=BufferType.input)
    channel.at_rank(0).broadcast(Buffer(0, 1)[0:1], buffer_offset=0, size=1, tb=0)


# ---- whole collectives ----


def mesh(ranks: int) -> dict[tuple[int, int], MemoryChannel]:
    """Channels from each rank to each other one."""
    return {(r, p): MemoryChannel(p, r) for r in range(ranks) for p in range(ranks) if p != r}


def meet_all(channels: dict[tuple[int, int], MemoryChannel], rank: int) -> None:
    mine = [channel for (r, _), channel in channels.items() if r == rank]
    for channel in mine:
        channel.signal(tb=0, relaxed=True)
    for channel in mine:
        channel.wait(tb=0, relaxed=True)


@program("single_node_allgather_2", "prog", in_place(AllGather))
def all_gather(ranks: int) -> None:
    for rank in range(ranks):
        for peer in range(ranks):
            if peer == rank:
                continue
            channel = MemoryChannel(peer, rank)
            meet(channel)
            mine = Rank(rank).get_output_buffer()[rank : rank + 1]
            channel.put(Rank(peer).get_output_buffer()[rank : rank + 1], mine, tb=0)
            finish(channel)


@program("single_node_allgather_nvls_zero_copy_4", "prog", in_place(AllGather))
def all_gather_switch(ranks: int) -> None:
    channels = mesh(ranks)
    everyone = SwitchChannel(list(range(ranks)), BufferType.output)
    for rank in range(ranks):
        meet_all(channels, rank)
        mine = Rank(rank).get_output_buffer()[rank : rank + 1]
        everyone.at_rank(rank).broadcast(mine, buffer_offset=rank, size=1, tb=0)
        meet_all(channels, rank)


@program("single_node_allgather_pkt_4", "prog", in_place(AllGather), **LL_DOUBLE)
def all_gather_packets(ranks: int) -> None:
    scratch = [Buffer(rank, ranks) for rank in range(ranks)]
    for number in range(ranks):
        rank = Rank(number)
        outputs = rank.get_output_buffer()
        for i in range(ranks - 1):
            peer = (number + 1 + i) % ranks
            MemoryChannel(peer, number).put_packets(
                scratch[peer][number : number + 1], outputs[number : number + 1], tb=i
            )
            rank.unpack_packets(
                outputs[peer : peer + 1], scratch[number][peer : peer + 1], tb=ranks - 1 + i
            )


@program("single_node_allreduce_naivy_8", "prog", in_place(AllReduce), **LL)
def all_reduce_packets(ranks: int) -> None:
    scratch = [Buffer(rank, 2 * ranks) for rank in range(ranks)]
    channels = mesh(ranks)
    for number in range(ranks):
        rank = Rank(number)
        inputs = rank.get_input_buffer()
        mine = inputs[number : number + 1]
        peers = [peer for peer in range(ranks) if peer != number]
        for peer in peers:
            to = scratch[peer][number : number + 1]
            channels[number, peer].put_packets(to, inputs[peer : peer + 1], tb=0)
        for peer in peers:
            rank.reduce(mine, [scratch[number][peer : peer + 1]], tb=0, packet=True)
        for peer in peers:
            to = scratch[peer][ranks + number : ranks + number + 1]
            channels[number, peer].put_packets(to, mine, tb=0)
        for peer in peers:
            packets = scratch[number][ranks + peer : ranks + peer + 1]
            rank.unpack_packets(inputs[peer : peer + 1], packets, tb=0)


@program("single_node_allreduce_nvls_zero_copy_8", "prog", in_place(AllReduce), instances=8)
def all_reduce_switch(ranks: int) -> None:
    channels = mesh(ranks)
    everyone = SwitchChannel(list(range(ranks)), BufferType.input)
    for number in range(ranks):
        meet_all(channels, number)
        mine = Rank(number).get_input_buffer()[number : number + 1]
        view = everyone.at_rank(number)
        view.reduce(buffer_offset=number, size=1, dst_chunk=mine, tb=0)
        view.broadcast(src_chunk=mine, buffer_offset=number, size=1, tb=0)
        meet_all(channels, number)


@program("single_node_allreduce_pipeline_2", "prog", in_place(AllReduce), reuse_resources=True)
def all_reduce_loop(ranks: int) -> None:
    scratch = [Buffer(rank, ranks) for rank in range(ranks)]
    first, second = mesh(ranks), mesh(ranks)
    everyone = SwitchChannel(list(range(ranks)), BufferType.scratch)
    for number in range(ranks):
        rank, s = Rank(number), scratch[number]
        filled, reduced = Semaphore(number, 0), Semaphore(number, 0)
        to, after = first[number, 1 - number], second[number, 1 - number]
        with LoopIterationContext(unit=2**20, num_chunks=1):
            for i in range(ranks):
                rank.copy(s[i : i + 1], rank.get_input_buffer()[i : i + 1], tb=0)
            finish(to)
            filled.release(tb=0, data_sync=SyncType.after)

            filled.acquire(tb=1, data_sync=SyncType.after)
            mine = s[number : number + 1]
            everyone.at_rank(number).reduce(number, 1, mine, tb=1)
            everyone.at_rank(number).broadcast(mine, number, 1, tb=1)
            after.signal(tb=1, data_sync=SyncType.before)
            reduced.release(tb=1)

            reduced.acquire(tb=2)
            after.wait(tb=2, data_sync=SyncType.after)
            for i in range(ranks):
                rank.copy(rank.get_output_buffer()[i : i + 1], s[i : i + 1], tb=2)


@program("multi_node_reducescatter_pkt_8", "prog", in_place(ReduceScatter), **LL_DOUBLE)
def reduce_scatter_nodes(ranks: int) -> None:
    half = ranks // 2
    scratch = [Buffer(rank, ranks) for rank in range(ranks)]
    local: dict[tuple[int, int], MemoryChannel] = {}
    cross: dict[int, PortChannel] = {}
    for number in range(ranks):
        first = number // half * half
        for peer in range(first, first + half):
            if peer != number:
                local[number, peer] = MemoryChannel(peer, number)
        cross[number] = PortChannel((number + half) % ranks, number)
    for number in range(ranks):
        rank, first, other = Rank(number), number // half * half, (number + half) % ranks
        inputs, s, place = rank.get_input_buffer(), scratch[number], number - first
        for peer in range(first, first + half):
            if peer == number:
                continue
            across, slot = (peer + half) % ranks, place if number < peer else place - 1
            channel = local[number, peer]
            channel.put_packets(scratch[peer][place : place + 1], inputs[peer : peer + 1], tb=0)
            to = scratch[peer][half + slot : half + slot + 1]
            channel.put_packets(to, inputs[across : across + 1], tb=0)
        sums, packets = inputs[other : other + 1], s[place : place + 1]
        rank.reduce(sums, [s[half + i : half + i + 1] for i in range(half - 1)], tb=0, packet=True)
        rank.copy_packets(packets, sums, tb=0)
        cross[number].read_put_packets(scratch[other][ranks - 1 : ranks], packets, tb=0)
        others = [ranks - 1] + [i for i in range(half) if i != place]
        mine = inputs[number : number + 1]
        rank.reduce(mine, [s[i : i + 1] for i in others], tb=0, packet=True)
