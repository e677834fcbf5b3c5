"""Memory, port and switch channels."""

from __future__ import annotations

from collections.abc import Sequence

from .._errors import ProgramError
from .context import (
    blocks_of,
    get_program,
    require_at,
    require_equal,
    require_rank,
    require_scratch,
)
from .thread_block_group import ThreadBlockGroup
from .types import BufferType, ChannelType, Chunk, RankGroup, ReduceOperationType, SyncType

__all__ = [
    "BufferType",
    "ChannelType",
    "Chunk",
    "MemoryChannel",
    "PortChannel",
    "RankGroup",
    "ReduceOperationType",
    "SwitchChannel",
    "SyncType",
    "ThreadBlockGroup",
    "get_program",
]


class _Ends:
    """A channel from a rank to another. Its operations are the source rank's."""

    channel_type: ChannelType

    def __init__(self, dst_rank: int, src_rank: int) -> None:
        require_rank(src_rank, "source rank")
        require_rank(dst_rank, "destination rank")
        self.dst_rank = dst_rank
        self.src_rank = src_rank
        self.channel_id = get_program()._next_id(self.channel_type.value, src_rank)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(dst_rank={self.dst_rank}, src_rank={self.src_rank})"

    def _require_put(self, dst_chunk: Chunk, src_chunk: Chunk) -> None:
        get_program()
        require_at(src_chunk, self.src_rank, "source")
        require_at(dst_chunk, self.dst_rank, "destination")
        require_equal(src_chunk, "source", dst_chunk, "destination")

    def _require_packets(self, dst_chunk: Chunk, src_chunk: Chunk | None) -> None:
        require_scratch(dst_chunk, "destination")
        if src_chunk is not None:
            require_scratch(src_chunk, "source")


class MemoryChannel(_Ends):
    """Loads and stores of another rank's buffers.

    The k-th memory channel from a to b pairs with the k-th from b to a.
    """

    channel_type = ChannelType.memory

    def __init__(self, dst_rank: int, src_rank: int) -> None:
        """Make a channel for operations of ``src_rank``."""
        super().__init__(dst_rank, src_rank)
        self._handle = get_program()._builder.memory_channel(dst_rank, src_rank)

    def signal(self, tb: int, data_sync: SyncType = SyncType.both, relaxed: bool = False) -> None:
        """Signal the paired channel. ``relaxed``: without publishing this rank's writes."""
        get_program()
        self._handle.signal(tb, data_sync, relaxed)

    def wait(self, tb: int, data_sync: SyncType = SyncType.both, relaxed: bool = False) -> None:
        """Wait for a signal of the paired channel."""
        get_program()
        self._handle.wait(tb, data_sync, relaxed)

    def get(
        self,
        dst_chunk: Chunk,
        src_chunk: Chunk,
        tb: int | None = None,
        tb_group: ThreadBlockGroup | None = None,
    ) -> None:
        """Copy chunks of the destination rank to this one's."""
        get_program()
        require_at(dst_chunk, self.src_rank, "destination")
        require_at(src_chunk, self.dst_rank, "source")
        self._handle.move("get", dst_chunk, src_chunk, blocks_of(tb, tb_group))

    def put(
        self,
        dst_chunk: Chunk,
        src_chunk: Chunk,
        tb: int | None = None,
        tb_group: ThreadBlockGroup | None = None,
    ) -> None:
        """Copy chunks of the source rank to the destination rank's."""
        self._require_put(dst_chunk, src_chunk)
        self._handle.move("put", dst_chunk, src_chunk, blocks_of(tb, tb_group))

    def put_packets(
        self,
        dst_chunk: Chunk,
        src_chunk: Chunk,
        tb: int | None = None,
        tb_group: ThreadBlockGroup | None = None,
    ) -> None:
        """Copy data to packets in the destination rank's scratch."""
        self._require_put(dst_chunk, src_chunk)
        self._require_packets(dst_chunk, None)
        self._handle.move("put_packets", dst_chunk, src_chunk, blocks_of(tb, tb_group))

    def read_put_packets(
        self,
        dst_chunk: Chunk,
        src_chunk: Chunk,
        tb: int | None = None,
        tb_group: ThreadBlockGroup | None = None,
    ) -> None:
        """Wait for packets in scratch and copy them to packets in the destination's scratch."""
        self._require_put(dst_chunk, src_chunk)
        self._require_packets(dst_chunk, src_chunk)
        self._handle.move("read_put_packets", dst_chunk, src_chunk, blocks_of(tb, tb_group))

    def reduce(
        self,
        local_src_chunk: Chunk,
        remote_src_chunks: Sequence[Chunk],
        tb: int | None = None,
        tb_group: ThreadBlockGroup | None = None,
        local_dst_chunk: Chunk | None = None,
        reduce_op: ReduceOperationType = ReduceOperationType.sum,
    ) -> None:
        """Reduce a chunk of this rank with chunks of the other, to this rank's memory."""
        get_program()
        if local_dst_chunk is None:
            local_dst_chunk = local_src_chunk
        require_at(local_src_chunk, self.src_rank, "local source")
        require_at(local_dst_chunk, self.src_rank, "destination")
        require_equal(local_src_chunk, "local source", local_dst_chunk, "destination")
        for chunk in remote_src_chunks:
            require_at(chunk, self.dst_rank, "remote source")
            require_equal(local_src_chunk, "local source", chunk, "remote source")
        self._handle.reduce(
            local_src_chunk, remote_src_chunks, local_dst_chunk, reduce_op, blocks_of(tb, tb_group)
        )


class PortChannel(_Ends):
    """A queue of puts, signals and flushes that a proxy carries out, as over a network.

    The k-th port channel from a to b pairs with the k-th from b to a.
    """

    channel_type = ChannelType.port

    def __init__(self, dst_rank: int, src_rank: int) -> None:
        """Make a channel for operations of ``src_rank``."""
        super().__init__(dst_rank, src_rank)
        self._handle = get_program()._builder.port_channel(dst_rank, src_rank)

    def signal(self, tb: int, data_sync: SyncType = SyncType.both) -> None:
        """Post a signal, which arrives after the puts that were posted before."""
        get_program()
        self._handle.sync("signal", tb, data_sync)

    def wait(self, tb: int, data_sync: SyncType = SyncType.both) -> None:
        """Wait for a signal of the paired channel."""
        get_program()
        self._handle.sync("wait", tb, data_sync)

    def flush(self, tb: int, data_sync: SyncType = SyncType.both) -> None:
        """Wait until the proxy has finished everything that was posted."""
        get_program()
        self._handle.sync("flush", tb, data_sync)

    def put(self, dst_chunk: Chunk, src_chunk: Chunk, tb: int) -> None:
        """Post a put."""
        self._require_put(dst_chunk, src_chunk)
        self._handle.put("put", dst_chunk, src_chunk, tb)

    def put_with_signal(self, dst_chunk: Chunk, src_chunk: Chunk, tb: int) -> None:
        """Post a put and then a signal."""
        self._require_put(dst_chunk, src_chunk)
        self._handle.put("put_with_signal", dst_chunk, src_chunk, tb)

    def put_with_signal_and_flush(self, dst_chunk: Chunk, src_chunk: Chunk, tb: int) -> None:
        """Post a put and then a signal, and flush."""
        self._require_put(dst_chunk, src_chunk)
        self._handle.put("put_with_signal_and_flush", dst_chunk, src_chunk, tb)

    def put_packets(self, dst_chunk: Chunk, src_chunk: Chunk, tb: int) -> None:
        """Post a put of data to packets in the destination rank's scratch."""
        self._require_put(dst_chunk, src_chunk)
        self._require_packets(dst_chunk, None)
        self._handle.put("put_packets", dst_chunk, src_chunk, tb)

    def read_put_packets(
        self,
        dst_chunk: Chunk,
        src_chunk: Chunk,
        tb: int | None = None,
        tb_group: ThreadBlockGroup | None = None,
    ) -> None:
        """Wait for packets in scratch and post a put of them to the destination's scratch."""
        self._require_put(dst_chunk, src_chunk)
        self._require_packets(dst_chunk, src_chunk)
        self._handle.read_put_packets(dst_chunk, src_chunk, blocks_of(tb, tb_group))


class SwitchChannel:
    """One address for a buffer of several ranks, by the switch that connects them."""

    channel_type = ChannelType.switch

    def __init__(self, rank_list: Sequence[int], buffer_type: BufferType) -> None:
        """Make a channel over a buffer of different ranks."""
        for rank in rank_list:
            require_rank(rank)
        program = get_program()
        self.buffer_type = buffer_type
        self.rank_group = RankGroup(len(rank_list), list(rank_list))
        self._handle = program._builder.switch_channel(self.rank_group.ranks, buffer_type)
        self.channel_ids = {rank: program._next_id("switch", rank) for rank in rank_list}

    def at_rank(self, rank: int) -> SwitchChannelRankView:
        """Return the channel's operations for a rank."""
        if rank not in self.rank_group.ranks:
            raise ProgramError(f"rank {rank} is not in the group {self.rank_group.ranks}")
        return SwitchChannelRankView(self, rank)

    def _require(self, chunk: Chunk, what: str, offset: int, size: int) -> None:
        program = get_program()
        if chunk.rank not in self.rank_group.ranks:
            raise ProgramError(
                f"the {what} is of rank {chunk.rank}, outside of the group {self.rank_group.ranks}"
            )
        if chunk.size != size:
            raise ProgramError(f"the {what} has {chunk.size} chunks, the region {size}")
        for rank in self.rank_group.ranks:
            chunks = program._chunks_of(rank, self.buffer_type)
            if offset + size > chunks:
                raise ProgramError(
                    f"{size} chunks at {offset} are past the end of the "
                    f"{self.buffer_type.name} of rank {rank}, which has {chunks} chunks"
                )

    def reduce(
        self,
        rank: int,
        buffer_offset: int,
        size: int,
        dst_chunk: Chunk,
        tb: int,
        reduce_op: ReduceOperationType = ReduceOperationType.sum,
    ) -> None:
        """Store the reduction of chunks of all ranks' buffers to ``dst_chunk`` of ``rank``."""
        self._require(dst_chunk, "destination", buffer_offset, size)
        self._handle.reduce(rank, buffer_offset, size, dst_chunk, reduce_op, tb)

    def broadcast(
        self, rank: int, src_chunk: Chunk, buffer_offset: int, size: int, tb: int
    ) -> None:
        """Store ``src_chunk`` of ``rank`` to chunks of all ranks' buffers."""
        self._require(src_chunk, "source", buffer_offset, size)
        self._handle.broadcast(rank, src_chunk, buffer_offset, size, tb, False)

    def broadcast_packets(
        self, rank: int, src_chunk: Chunk, buffer_offset: int, size: int, tb: int
    ) -> None:
        """Store packets of ``rank``'s scratch to the scratch of all ranks."""
        require_scratch(src_chunk, "source")
        if self.buffer_type != BufferType.scratch:
            raise ProgramError(f"packets lie in scratch, but the channel is to {self.buffer_type}")
        self._require(src_chunk, "source", buffer_offset, size)
        self._handle.broadcast(rank, src_chunk, buffer_offset, size, tb, True)


class SwitchChannelRankView:
    """The operations of a switch channel for one rank."""

    def __init__(self, channel: SwitchChannel, rank: int) -> None:
        """Make a view (``SwitchChannel.at_rank``)."""
        self._channel = channel
        self._rank = rank

    def reduce(
        self,
        buffer_offset: int,
        size: int,
        dst_chunk: Chunk,
        tb: int,
        reduce_op: ReduceOperationType = ReduceOperationType.sum,
    ) -> None:
        """Store the reduction of chunks of all ranks' buffers to ``dst_chunk``."""
        self._channel.reduce(self._rank, buffer_offset, size, dst_chunk, tb, reduce_op)

    def broadcast(self, src_chunk: Chunk, buffer_offset: int, size: int, tb: int) -> None:
        """Store ``src_chunk`` to chunks of all ranks' buffers."""
        self._channel.broadcast(self._rank, src_chunk, buffer_offset, size, tb)

    def broadcast_packets(self, src_chunk: Chunk, buffer_offset: int, size: int, tb: int) -> None:
        """Store packets of this rank's scratch to the scratch of all ranks."""
        self._channel.broadcast_packets(self._rank, src_chunk, buffer_offset, size, tb)
