"""The backend "banyan" of torch.distributed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from .. import Unsupported, World
from ._collectives import Collectives

_Op = c10d.ReduceOp


def _base() -> Any:
    """Return the base class of backends that are written in Python.

    Before PyTorch 2.14 only whole groups, which serve all devices, could be written in Python.
    """
    try:
        type("Probe", (c10d.Backend,), {})(0, 1)
    except TypeError:
        return dist.ProcessGroup
    return c10d.Backend


_Base = _base()


#: Its own type hides the arguments of methods.
_outside_graphs: Any = torch.compiler.disable


class ProcessGroupBanyan(_Base):  # type: ignore[misc, valid-type]
    """A group of ranks whose collectives Banyan runs.

    On the host a call returns when this rank's part is done, so its work is complete. On a GPU the
    call queues the collective in the current stream, or with ``async_op=True`` in a stream of the
    group; then ``wait`` of the work lets the current stream wait for it. All ranks call the
    collectives of their groups in the same order.
    """

    def __init__(self, store: c10d.Store, rank: int, size: int, timeout: timedelta) -> None:
        """Open the world of the group through its store. Collective."""
        super().__init__(rank, size)
        self.world = World.from_store(
            store, rank, size, prefix="banyan.torch.group", timeout=timeout.total_seconds()
        )
        self.collectives = Collectives(self.world)
        self._name = self._description = ""
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def getBackendName(self) -> str:
        """Return the name of the backend."""
        return "banyan"

    # A group of PyTorch before 2.14 that is written in Python keeps these itself.

    def setGroupName(self, name: str) -> None:
        """Keep the name of the group."""
        self._name = name

    def getGroupName(self) -> str:
        """Return the name of the group."""
        return self._name

    def setGroupDesc(self, text: str) -> None:
        """Keep the description of the group."""
        self._description = text

    def getGroupDesc(self) -> str:
        """Return the description of the group."""
        return self._description

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long a wait of later calls may last without progress."""
        self.world.timeout = timeout.total_seconds()

    def shutdown(self) -> None:
        """Close the world. Collective while it is healthy."""
        self.world.close()

    def abort(self) -> None:
        """End the world on all ranks."""
        self.world.abort("the process group was aborted")

    # A collective of the group is no part of a graph.
    @_outside_graphs  # type: ignore[untyped-decorator]
    def _work(
        self, call: Callable[[], object], used: Iterable[Tensor], result: Any, opts: Any
    ) -> Any:
        """Call ``call``, which uses these tensors, and return its work, which has ``result``."""
        used = list(used)
        device = used[0].device
        if device.type == "cpu":
            call()
            future: torch.futures.Future[Any] = torch.futures.Future()
            future.set_result(result)
            return c10d._create_work_from_future(future)
        stream = torch.cuda.current_stream(device)
        if getattr(opts, "asyncOp", True):
            if device not in self._streams:
                self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._streams[device].wait_stream(stream)
            stream = self._streams[device]
            for tensor in used:
                tensor.record_stream(stream)
        with torch.cuda.stream(stream):
            call()
            future = torch.futures.Future(devices=[device])
            future.set_result(result)
        return c10d._create_work_from_future(future)

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        """Reduce tensors of all ranks in place."""
        op = _Op.SUM if opts is None else opts.reduceOp

        def call() -> None:
            for tensor in tensors:
                self.collectives.all_reduce(tensor, op)

        return self._work(call, tensors, tensors, opts)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Any:
        """Reduce tensors of all ranks in place."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[Tensor], opts: Any) -> Any:
        """Reduce tensors of all ranks in the root's."""

        def call() -> None:
            for tensor in tensors:
                self.collectives.reduce(tensor, opts.rootRank, opts.reduceOp)

        return self._work(call, tensors, tensors, opts)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        """Reduce the inputs of all ranks; each rank gets its block."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Any:
        """Reduce the inputs of all ranks; each rank gets its block of each."""
        op = _Op.SUM if opts is None else opts.reduceOp

        def call() -> None:
            for output, input in zip(outputs, inputs, strict=True):
                self.collectives.reduce_scatter(output, input, op)

        return self._work(call, [*outputs, *inputs], outputs, opts)

    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None
    ) -> Any:
        """Reduce lists of one tensor a rank; each rank gets its own."""
        op = _Op.SUM if opts is None else opts.reduceOp

        def call() -> None:
            for output, blocks in zip(outputs, inputs, strict=True):
                self.collectives.reduce_scatter_list(output, blocks, op)

        return self._work(call, [*outputs, *(t for ts in inputs for t in ts)], outputs, opts)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> Any:
        """Copy the root's tensors to all ranks."""

        def call() -> None:
            for tensor in tensors:
                self.collectives.broadcast(tensor, opts.rootRank)

        return self._work(call, tensors, tensors, opts)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        """Concatenate the inputs of all ranks."""
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Any:
        """Concatenate the inputs of all ranks, one after the other."""

        def call() -> None:
            for output, input in zip(outputs, inputs, strict=True):
                self.collectives.all_gather(output, input)

        return self._work(call, [*outputs, *inputs], outputs, opts)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        """Gather the inputs of all ranks in lists of one tensor a rank."""

        def call() -> None:
            for output, input in zip(outputs, inputs, strict=True):
                self.collectives.all_gather_list(output, input)

        return self._work(call, [*inputs, *(t for ts in outputs for t in ts)], outputs, opts)

    def allgather_coalesced(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> Any:
        """Gather tensors of all ranks: ``outputs[r]`` has those of rank r."""
        return self.allgather([list(row) for row in zip(*outputs, strict=True)], inputs, opts)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Any:
        """Gather the inputs of all ranks at the root."""
        targets = outputs[0] if self.rank() == opts.rootRank else []
        return self._work(
            lambda: self.collectives.exchange({opts.rootRank: inputs[0]}, dict(enumerate(targets))),
            [*inputs, *targets],
            outputs,
            opts,
        )

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Any:
        """Send one of the root's tensors to each rank."""
        sources = inputs[0] if self.rank() == opts.rootRank else []
        return self._work(
            lambda: self.collectives.exchange(
                dict(enumerate(sources)), {opts.rootRank: outputs[0]}
            ),
            [*outputs, *sources],
            outputs,
            opts,
        )

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> Any:
        """Send block r of the input to rank r. Splits count rows; without any they are equal."""

        return self._work(
            lambda: self.collectives.all_to_all(output, input, output_splits, input_splits),
            [output, input],
            [output],
            opts,
        )

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        """Send tensor r of the inputs to rank r."""
        return self._work(
            lambda: self.collectives.exchange(dict(enumerate(inputs)), dict(enumerate(outputs))),
            [*outputs, *inputs],
            outputs,
            opts,
        )

    def barrier(self, opts: Any = None) -> Any:
        """Wait until all ranks are here, and until the GPUs of this group have done their work."""
        for device in self.collectives.devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        return self._work(self.world.barrier, [torch.empty(0)], [], opts)

    # Their names before PyTorch 2.14.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def send(self, tensors: list[Tensor], rank: int, tag: int) -> Any:
        """Raise Unsupported."""
        raise Unsupported(
            f"the backend banyan has no point-to-point sends (to rank {rank}); use a group of "
            "another backend for them, for example new_group(backend='gloo')"
        )

    def recv(self, tensors: list[Tensor], rank: int, tag: int) -> Any:
        """Raise Unsupported."""
        raise Unsupported(
            f"the backend banyan has no point-to-point receives (from rank {rank}); use a group "
            "of another backend for them, for example new_group(backend='gloo')"
        )


def register_backend() -> None:
    """Register the backend "banyan" with torch.distributed. Importing banyan.torch does so."""
    if "BANYAN" not in dist.Backend._plugins:
        dist.Backend.register_backend("banyan", ProcessGroupBanyan, devices=["cpu", "cuda"])
