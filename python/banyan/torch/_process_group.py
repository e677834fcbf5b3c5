"""The backend "banyan" of torch.distributed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from .. import Communicator, CopyService, Unsupported, World

if TYPE_CHECKING:
    from .. import ReduceOp

_Op = c10d.ReduceOp

#: Types that communicators reduce. Tensors of other types are exchanged, and PyTorch reduces them.
_REDUCED = frozenset(
    (
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.uint32,
    )
)
#: Types that Banyan has. Tensors of other types move as bytes.
_MOVED = _REDUCED | {
    torch.float64,
    torch.int8,
    torch.int16,
    torch.uint16,
    torch.uint64,
    torch.bool,
    torch.complex64,
}
_NAMES: dict[Any, ReduceOp] = {_Op.SUM: "sum", _Op.MIN: "min", _Op.MAX: "max"}
#: Reductions of booleans, as those of bytes that are 0 or 1.
_OF_BOOLS = {_Op.SUM: _Op.MAX, _Op.BOR: _Op.MAX, _Op.PRODUCT: _Op.MIN, _Op.BAND: _Op.MIN}


def _fold(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def fold(rows: Tensor) -> Tensor:
        result = rows[0]
        for row in rows[1:]:
            result = function(result, row)
        return result

    return fold


#: Reductions of the rows of a tensor, in the order of the ranks.
_LOCAL = {
    _Op.SUM: _fold(torch.add),
    _Op.PRODUCT: _fold(torch.mul),
    _Op.MIN: _fold(torch.minimum),
    _Op.MAX: _fold(torch.maximum),
    _Op.BAND: _fold(torch.bitwise_and),
    _Op.BOR: _fold(torch.bitwise_or),
    _Op.BXOR: _fold(torch.bitwise_xor),
}


def _flat(tensor: Tensor) -> Tensor:
    """Return all elements in one dimension. They are a copy if the tensor is not contiguous."""
    return tensor.detach().contiguous().view(-1)


def _write_back(tensor: Tensor, flat: Tensor) -> None:
    """Copy the elements of ``_flat(tensor)`` to the tensor, unless they lie there."""
    if flat.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(flat.view(tensor.shape))


def _moved(flat: Tensor) -> Tensor:
    """Return the elements as ones of a type that Banyan has, in the same memory."""
    return flat if flat.dtype in _MOVED else flat.view(torch.uint8)


class _Reduction:
    """A reduction of PyTorch, for elements of a type."""

    def __init__(self, op: Any, dtype: torch.dtype) -> None:
        kind = op.op if isinstance(op, _Op) else op
        self.factor = op.factor if kind == _Op.PREMUL_SUM else None
        self.average = kind == _Op.AVG
        if dtype == torch.bool and (self.average or self.factor is not None):
            raise ValueError(f"{kind.name} of booleans: convert them to numbers")
        self.op = _Op.SUM if self.average or self.factor is not None else kind
        if dtype == torch.bool:
            self.op = _OF_BOOLS.get(self.op, self.op)
        #: Of Banyan's reduction; None: PyTorch reduces.
        self.name: ReduceOp | None = None
        if dtype == torch.bool or dtype in _REDUCED:
            self.name = _NAMES.get(self.op)

    def view(self, flat: Tensor) -> Tensor:
        """Return the elements as numbers, in the same memory."""
        return flat.view(torch.uint8) if flat.dtype == torch.bool else flat

    def finish(self, flat: Tensor, ranks: int) -> None:
        """Divide the sums of an average."""
        if self.average:
            whole = not (flat.is_floating_point() or flat.is_complex())
            flat.div_(ranks, rounding_mode="trunc" if whole else None)


#: From PyTorch 2.14 on, a backend serves the devices that it is named for. Before, only whole
#: groups could be written in Python.
_Base: Any = c10d.Backend if "__init__" in vars(c10d.Backend) else dist.ProcessGroup


class ProcessGroupBanyan(_Base):  # type: ignore[misc]
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
        self._comms: dict[torch.device, Communicator] = {}
        self._services: dict[torch.device, CopyService] = {}
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def getBackendName(self) -> str:
        """Return the name of the backend."""
        return "banyan"

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long a wait of later calls may last without progress."""
        self.world.timeout = timeout.total_seconds()

    def shutdown(self) -> None:
        """Close the world. Collective while it is healthy."""
        self._comms.clear()
        self._services.clear()
        self.world.close()

    def abort(self) -> None:
        """End the world on all ranks."""
        self.world.abort("the process group was aborted")

    def communicator(self, device: torch.device) -> Communicator:
        """Return the communicator of a device. The first call for a device is collective."""
        comm = self._comms.get(device)
        if comm is None:
            comm = self._comms[device] = Communicator(self.world, device=device)
        return comm

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

    # Reductions.

    def _reduce_blocks(self, blocks: Tensor, reduction: _Reduction) -> Tensor:
        """Return this rank's block of all ranks' equal blocks, reduced by PyTorch."""
        received = torch.empty_like(blocks)
        self.communicator(blocks.device).all_to_all(_moved(blocks), _moved(received))
        return _LOCAL[reduction.op](received.view(self.size(), -1))

    def _all_reduce(self, tensor: Tensor, op: Any) -> None:
        reduction = _Reduction(op, tensor.dtype)
        flat = _flat(tensor)
        if flat.numel() == 0:
            return
        if reduction.factor is not None:
            flat.mul_(reduction.factor)
        view, comm = reduction.view(flat), self.communicator(tensor.device)
        if reduction.name:
            comm.all_reduce(view, op=reduction.name)
        else:
            blocks = view.new_zeros(-(-view.numel() // self.size()) * self.size())
            blocks[: view.numel()] = view
            mine = self._reduce_blocks(blocks, reduction)
            comm.all_gather(_moved(mine), _moved(blocks))
            view.copy_(blocks[: view.numel()])
        reduction.finish(flat, self.size())
        _write_back(tensor, flat)

    def _reduce(self, tensor: Tensor, root: int, op: Any) -> None:
        reduction = _Reduction(op, tensor.dtype)
        flat = _flat(tensor)
        if flat.numel() == 0:
            return
        if reduction.name and reduction.factor is None:
            comm = self.communicator(tensor.device)
            comm.reduce(reduction.view(flat), op=reduction.name, root=root)
            if self.rank() == root:
                reduction.finish(flat, self.size())
        else:  # the tensors of the other ranks stay as they are
            flat = flat.clone()
            self._all_reduce(flat, op)
        if self.rank() == root:
            _write_back(tensor, flat)

    def _reduce_scatter(self, output: Tensor, input: Tensor, op: Any) -> None:
        if input.numel() != output.numel() * self.size():
            raise ValueError(
                f"reduce_scatter: the input has {input.numel()} elements, and the output "
                f"{output.numel()}; {self.size()} ranks need {output.numel() * self.size()}"
            )
        reduction = _Reduction(op, input.dtype)
        source, sums = _flat(input), _flat(output)
        if sums.numel() == 0:
            return
        if reduction.factor is not None:
            source = source * reduction.factor
        source, target = reduction.view(source), reduction.view(sums)
        if reduction.name:
            self.communicator(input.device).reduce_scatter(source, target, op=reduction.name)
        else:
            target.copy_(self._reduce_blocks(source, reduction))
        reduction.finish(sums, self.size())
        _write_back(output, sums)

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        """Reduce tensors of all ranks in place."""
        op = _Op.SUM if opts is None else opts.reduceOp

        def call() -> None:
            for tensor in tensors:
                self._all_reduce(tensor, op)

        return self._work(call, tensors, tensors, opts)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Any:
        """Reduce tensors of all ranks in place."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[Tensor], opts: Any) -> Any:
        """Reduce tensors of all ranks in the root's."""

        def call() -> None:
            for tensor in tensors:
                self._reduce(tensor, opts.rootRank, opts.reduceOp)

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
                self._reduce_scatter(output, input, op)

        return self._work(call, [*outputs, *inputs], outputs, opts)

    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None
    ) -> Any:
        """Reduce lists of one tensor a rank; each rank gets its own."""
        op = _Op.SUM if opts is None else opts.reduceOp

        def call() -> None:
            for output, blocks in zip(outputs, inputs, strict=True):
                flat = torch.cat([_flat(block) for block in blocks])
                if all(block.numel() == output.numel() for block in blocks):
                    self._reduce_scatter(output, flat, op)
                else:
                    self._all_reduce(flat, op)
                    own = torch.split(flat, [block.numel() for block in blocks])[self.rank()]
                    output.detach().copy_(own.view(output.shape))

        return self._work(call, [*outputs, *(t for ts in inputs for t in ts)], outputs, opts)

    # Copies.

    def _exchange(self, sends: dict[int, Tensor], recvs: dict[int, Tensor]) -> None:
        """Send a tensor to each rank of ``sends``, and receive those of ``recvs``."""
        rank, size = self.rank(), self.size()
        if rank in recvs:
            recvs.pop(rank).copy_(sends.pop(rank))
        device = next(iter((*sends.values(), *recvs.values())), torch.empty(0)).device
        service = self._services.get(device)
        if service is None:
            service = self._services[device] = CopyService(self.world, device=device)
        landed = []
        for peers, submit, is_send in (
            (sends, service.submit_sends, True),
            (recvs, service.submit_recvs, False),
        ):
            moves = {peer: tensor.detach() for peer, tensor in peers.items() if tensor.numel() > 0}
            for peer, tensor in moves.items():
                if tensor.dtype not in _MOVED:
                    flat = _flat(tensor)
                    moves[peer] = _moved(flat)
                    if not is_send:
                        landed.append((tensor, flat))
            submit(
                list(moves.values()),
                list(moves),
                [rank * size + peer if is_send else peer * size + rank for peer in moves],
            )
        service.run()
        for tensor, flat in landed:
            _write_back(tensor, flat)

    def _all_gather(self, output: Tensor, input: Tensor) -> None:
        if output.numel() != input.numel() * self.size():
            raise ValueError(
                f"all_gather: the input has {input.numel()} elements, and the output "
                f"{output.numel()}; {self.size()} ranks give {input.numel() * self.size()}"
            )
        if input.numel() == 0:
            return
        target = _flat(output)
        self.communicator(input.device).all_gather(_moved(_flat(input)), _moved(target))
        _write_back(output, target)

    def _gather_list(self, outputs: list[Tensor], input: Tensor) -> None:
        if any(output.numel() != input.numel() for output in outputs):
            self._exchange(dict.fromkeys(range(self.size()), input), dict(enumerate(outputs)))
            return
        flat = input.new_empty(self.size(), input.numel())
        self._all_gather(flat, input)
        for output, row in zip(outputs, flat, strict=True):
            output.detach().copy_(row.view(output.shape))

    def _broadcast(self, tensor: Tensor, root: int) -> None:
        flat = _flat(tensor)
        if flat.numel() == 0:
            return
        self.communicator(tensor.device).broadcast(_moved(flat), root=root)
        _write_back(tensor, flat)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> Any:
        """Copy the root's tensors to all ranks."""

        def call() -> None:
            for tensor in tensors:
                self._broadcast(tensor, opts.rootRank)

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
                self._all_gather(output, input)

        return self._work(call, [*outputs, *inputs], outputs, opts)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        """Gather the inputs of all ranks in lists of one tensor a rank."""

        def call() -> None:
            for output, input in zip(outputs, inputs, strict=True):
                self._gather_list(output, input)

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
            lambda: self._exchange({opts.rootRank: inputs[0]}, dict(enumerate(targets))),
            [*inputs, *targets],
            outputs,
            opts,
        )

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Any:
        """Send one of the root's tensors to each rank."""
        sources = inputs[0] if self.rank() == opts.rootRank else []
        return self._work(
            lambda: self._exchange(dict(enumerate(sources)), {opts.rootRank: outputs[0]}),
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

        def call() -> None:
            size = self.size()
            uneven = output_splits or input_splits
            for name, tensor, splits in (
                ("input", input, input_splits),
                ("output", output, output_splits),
            ):
                rows = tensor.shape[0] if tensor.dim() else 1
                if splits and (len(splits) != size or sum(splits) != rows):
                    raise ValueError(
                        f"all_to_all: the {name} has {rows} rows, and its splits are {splits}"
                    )
                if not splits and rows % size:
                    raise ValueError(
                        f"all_to_all: the {rows} rows of the {name} do not divide by {size} ranks"
                    )
            if not uneven and input.is_contiguous() and output.is_contiguous():
                if input.numel():
                    self.communicator(input.device).all_to_all(
                        _moved(_flat(input)), _moved(_flat(output))
                    )
                return
            self._exchange(
                dict(enumerate(torch.split(input, input_splits or input.shape[0] // size))),
                dict(enumerate(torch.split(output, output_splits or output.shape[0] // size))),
            )

        return self._work(call, [output, input], [output], opts)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        """Send tensor r of the inputs to rank r."""
        return self._work(
            lambda: self._exchange(dict(enumerate(inputs)), dict(enumerate(outputs))),
            [*outputs, *inputs],
            outputs,
            opts,
        )

    def barrier(self, opts: Any = None) -> Any:
        """Wait until all ranks are here, and until the GPUs of this group have done their work."""
        for device in self._comms:
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
