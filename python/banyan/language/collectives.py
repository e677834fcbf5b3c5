"""The collectives that programs implement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .types import BaseBuffer, BufferType, ReduceOperationType

__all__ = [
    "AllGather",
    "AllReduce",
    "AllToAll",
    "BaseBuffer",
    "Broadcast",
    "BufferType",
    "Collective",
    "Custom",
    "Reduce",
    "ReduceScatter",
    "SendRecv",
    "TestCollective",
]

#: An output chunk and the input chunks that it holds the reduction of: rank, chunk,
#: [(rank, chunk), ...].
ExpectedChunk = tuple[int, int, Sequence[tuple[int, int]]]


class Collective:
    """Base of all collectives: the sizes of each rank's buffers, in chunks.

    A subclass of your own gives its sizes by ``init_buffers``; its result is not checked.
    """

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool) -> None:
        """Describe a collective of this many ranks."""
        self.num_ranks = num_ranks
        self.chunk_factor = chunk_factor
        self.inplace = inplace
        self.name = "custom"

    def init_buffers(self) -> list[dict[BufferType, BaseBuffer]]:
        """Return the input and output buffer of each rank."""
        raise NotImplementedError(f"{type(self).__name__} does not define init_buffers")

    def check(self, prog: Any) -> None:
        """Do nothing: ``CollectiveProgram.check`` proves programs."""

    def _buffers(self, inputs: int, outputs: int) -> list[dict[BufferType, BaseBuffer]]:
        return [
            {
                BufferType.input: BaseBuffer(rank, BufferType.input, 0, inputs),
                BufferType.output: BaseBuffer(rank, BufferType.output, 0, outputs),
            }
            for rank in range(self.num_ranks)
        ]

    def _describe(self) -> dict[str, Any]:
        """Return the members of the C library's banyan_collective."""
        sizes = {
            (buffers[BufferType.input].size, buffers[BufferType.output].size)
            for buffers in self.init_buffers()
        }
        if len(sizes) != 1:
            raise ValueError(f'collective "{self.name}": the sizes of ranks differ: {sizes}')
        inputs, outputs = sizes.pop()
        return {
            "name": self.name,
            "custom": True,
            "chunk_factor": self.chunk_factor,
            "in_place": self.inplace,
            "root": 0,
            "shift": 0,
            "input_chunks": inputs,
            "output_chunks": outputs,
            "block_chunks": 0,
            "expected": (),
            "expected_op": ReduceOperationType.sum,
        }


class _Known(Collective):
    """A collective that Banyan knows the result of."""

    kind: str
    root = 0
    shift = 0

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool) -> None:
        super().__init__(num_ranks, chunk_factor, inplace)
        self.name = self.kind

    def _describe(self) -> dict[str, Any]:
        members = super()._describe()
        classes: tuple[Any, ...] = type(self).__mro__
        usual = classes[classes.index(_Known) - 1].init_buffers(self)[0]
        if self.name == self.kind and (members["input_chunks"], members["output_chunks"]) == (
            usual[BufferType.input].size,
            usual[BufferType.output].size,
        ):
            members.update(custom=False, root=self.root, shift=self.shift)
        return members


class AllReduce(_Known):
    """Every rank gets the reduction of all inputs; num_ranks x chunk_factor chunks each."""

    kind = "allreduce"

    def init_buffers(self) -> list[dict[BufferType, BaseBuffer]]:
        """Return the input and output buffer of each rank."""
        chunks = self.num_ranks * self.chunk_factor
        return self._buffers(chunks, chunks)


class AllGather(_Known):
    """Every rank gets all inputs, of chunk_factor chunks, in rank order."""

    kind = "allgather"

    def init_buffers(self) -> list[dict[BufferType, BaseBuffer]]:
        """Return the input and output buffer of each rank."""
        return self._buffers(self.chunk_factor, self.num_ranks * self.chunk_factor)


class ReduceScatter(_Known):
    """Rank r gets block r, of chunk_factor chunks, of the reduction of all inputs."""

    kind = "reducescatter"

    def init_buffers(self) -> list[dict[BufferType, BaseBuffer]]:
        """Return the input and output buffer of each rank."""
        return self._buffers(self.num_ranks * self.chunk_factor, self.chunk_factor)


class AllToAll(_Known):
    """Block r of rank s's input becomes block s of rank r's output."""

    kind = "alltoall"

    def init_buffers(self) -> list[dict[BufferType, BaseBuffer]]:
        """Return the input and output buffer of each rank."""
        chunks = self.num_ranks * self.chunk_factor
        return self._buffers(chunks, chunks)


class _Same(_Known):
    """Input and output have chunk_factor chunks."""

    def init_buffers(self) -> list[dict[BufferType, BaseBuffer]]:
        """Return the input and output buffer of each rank."""
        return self._buffers(self.chunk_factor, self.chunk_factor)


class SendRecv(_Same):
    """The input of rank r becomes the output of rank r + shift, modulo the ranks."""

    kind = "sendrecv"

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool, shift: int = 1) -> None:
        """Describe a send-recv. MSCCL++'s has no ``shift``: it is 1."""
        super().__init__(num_ranks, chunk_factor, inplace)
        self.shift = shift


class Broadcast(_Same):
    """Every rank gets the input of the root. MSCCL++ does not have it."""

    kind = "broadcast"

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool, root: int = 0) -> None:
        """Describe a broadcast."""
        super().__init__(num_ranks, chunk_factor, inplace)
        self.root = root


class Reduce(_Same):
    """The root gets the reduction of all inputs. MSCCL++ does not have it."""

    kind = "reduce"

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool, root: int = 0) -> None:
        """Describe a reduce."""
        super().__init__(num_ranks, chunk_factor, inplace)
        self.root = root


class TestCollective(Collective):
    """Buffers of any sizes, in chunks, whose result is not checked."""

    __test__ = False  # for test runners

    def __init__(self, num_ranks: int, input_size: int, output_size: int) -> None:
        """Describe a collective of this many ranks, and the chunks of its buffers."""
        super().__init__(num_ranks, 1, False)
        self.name = "test"
        self.input_size = input_size
        self.output_size = output_size

    def init_buffers(self) -> list[dict[BufferType, BaseBuffer]]:
        """Return the input and output buffer of each rank."""
        return self._buffers(self.input_size, self.output_size)


class Custom(TestCollective):
    """A collective of your own, with the result that programs must compute.

    MSCCL++ does not have it.
    """

    def __init__(
        self,
        num_ranks: int,
        input_size: int,
        output_size: int,
        *,
        name: str = "custom",
        expected: Sequence[ExpectedChunk] = (),
        expected_op: ReduceOperationType = ReduceOperationType.sum,
        block_chunks: int = 0,
        inplace: bool = False,
    ) -> None:
        """Describe the buffers, in chunks, and the expected output.

        ``expected``: for output chunks, their rank, chunk and [(rank, chunk), ...] of the inputs
        that are reduced, or copied if there is one. ``block_chunks``: chunks that divide a block
        of bytes; 0: all chunks are equal.
        """
        super().__init__(num_ranks, input_size, output_size)
        self.name = name
        self.inplace = inplace
        self.expected = tuple(expected)
        self.expected_op = expected_op
        self.block_chunks = block_chunks

    def _describe(self) -> dict[str, Any]:
        members = super()._describe()
        members.update(
            expected=self.expected, expected_op=self.expected_op, block_chunks=self.block_chunks
        )
        return members
