"""Collectives on tensors of PyTorch, of all types and layouts in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
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
_NAMES: dict[Any, ReduceOp] = {
    _Op.SUM: "sum",
    _Op.MIN: "min",
    _Op.MAX: "max",
    _Op.PRODUCT: "prod",
    _Op.AVG: "avg",
}
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
        kind = getattr(op, "op", op)
        self.factor: float | None = None
        if kind == _Op.PREMUL_SUM:
            if not hasattr(op, "factor"):
                raise Unsupported(f"PREMUL_SUM needs PyTorch 2.14; this is {torch.__version__}")
            self.factor = float(op.factor)
            kind = _Op.SUM
        self.average = kind == _Op.AVG
        if dtype == torch.bool and (self.average or self.factor is not None):
            name = "AVG" if self.average else "PREMUL_SUM"
            raise ValueError(f"{name} of booleans: convert them to numbers")
        #: Of Banyan's reduction; None: PyTorch reduces.
        self.name: ReduceOp | None = None
        if dtype == torch.bool:
            kind = _OF_BOOLS.get(kind, kind)
        if dtype == torch.bool or dtype in _REDUCED:
            self.name = _NAMES.get(kind)
        #: Of PyTorch, without factor and average.
        self.op = _Op.SUM if self.average else kind

    def view(self, flat: Tensor) -> Tensor:
        """Return the elements as numbers, in the same memory."""
        return flat.view(torch.uint8) if flat.dtype == torch.bool else flat

    def reduce(self, rows: Tensor) -> Tensor:
        """Reduce the rows of the ranks, of a type that Banyan does not reduce."""
        result = _LOCAL[self.op](rows)
        if self.average:
            whole = not (result.is_floating_point() or result.is_complex())
            result.div_(len(rows), rounding_mode="trunc" if whole else None)
        return result


class Collectives:
    """Collectives of the ranks of a world, in the current stream of a GPU.

    The communicator and the copy service of each device are opened when a call first needs them.
    """

    def __init__(self, world: World) -> None:
        """Keep the world."""
        self.world = world
        self.rank, self.size = world.rank, world.size
        self._comms: dict[torch.device, Communicator] = {}
        self._services: dict[torch.device, CopyService] = {}

    @property
    def devices(self) -> list[torch.device]:
        """Devices that have been used."""
        return list(self._comms)

    def communicator(self, device: torch.device) -> Communicator:
        """Return the communicator of a device. The first call for a device is collective."""
        comm = self._comms.get(device)
        if comm is None:
            comm = self._comms[device] = Communicator(self.world, device=device)
        return comm

    def _reduce_blocks(self, blocks: Tensor, reduction: _Reduction) -> Tensor:
        """Return this rank's block of all ranks' equal blocks, reduced by PyTorch."""
        if reduction.factor is not None:
            blocks = blocks * reduction.factor
        received = torch.empty_like(blocks)
        self.communicator(blocks.device).all_to_all(_moved(blocks), _moved(received))
        return reduction.reduce(received.view(self.size, -1))

    def all_reduce(self, tensor: Tensor, op: Any) -> None:
        """Reduce the tensors of all ranks in place."""
        reduction = _Reduction(op, tensor.dtype)
        flat = _flat(tensor)
        if flat.numel() == 0:
            return
        view, comm = reduction.view(flat), self.communicator(tensor.device)
        if reduction.name:
            comm.all_reduce(view, op=reduction.name, factor=reduction.factor)
        else:
            blocks = view.new_zeros(-(-view.numel() // self.size) * self.size)
            blocks[: view.numel()] = view
            mine = self._reduce_blocks(blocks, reduction)
            comm.all_gather(_moved(mine), _moved(blocks))
            view.copy_(blocks[: view.numel()])
        _write_back(tensor, flat)

    def reduce(self, tensor: Tensor, root: int, op: Any) -> None:
        """Reduce the tensors of all ranks in the root's. The others stay as they are."""
        reduction = _Reduction(op, tensor.dtype)
        flat = _flat(tensor)
        if flat.numel() == 0:
            return
        if reduction.name:
            comm = self.communicator(tensor.device)
            comm.reduce(reduction.view(flat), op=reduction.name, factor=reduction.factor, root=root)
        else:  # the tensors of the other ranks stay as they are
            flat = flat.clone()
            self.all_reduce(flat, op)
        if self.rank == root:
            _write_back(tensor, flat)

    def reduce_scatter(self, output: Tensor, input: Tensor, op: Any) -> None:
        """Reduce the inputs of all ranks. Rank r gets block r of the elements."""
        if input.numel() != output.numel() * self.size:
            raise ValueError(
                f"reduce_scatter: the input has {input.numel()} elements, and the output "
                f"{output.numel()}; {self.size} ranks need {output.numel() * self.size}"
            )
        reduction = _Reduction(op, input.dtype)
        source, sums = _flat(input), _flat(output)
        if sums.numel() == 0:
            return
        source, target = reduction.view(source), reduction.view(sums)
        if reduction.name:
            self.communicator(input.device).reduce_scatter(
                source, target, op=reduction.name, factor=reduction.factor
            )
        else:
            target.copy_(self._reduce_blocks(source, reduction))
        _write_back(output, sums)

    def reduce_scatter_list(self, output: Tensor, blocks: list[Tensor], op: Any) -> None:
        """Reduce lists with a tensor for each rank, which may differ in size."""
        flat = torch.cat([_flat(block) for block in blocks])
        if all(block.numel() == output.numel() for block in blocks):
            self.reduce_scatter(output, flat, op)
        else:
            self.all_reduce(flat, op)
            own = torch.split(flat, [block.numel() for block in blocks])[self.rank]
            output.detach().copy_(own.view(output.shape))

    def exchange(self, sends: dict[int, Tensor], recvs: dict[int, Tensor]) -> None:
        """Send a tensor to each rank of ``sends``, and receive those of ``recvs``."""
        rank, size = self.rank, self.size
        device = next(iter((*sends.values(), *recvs.values()))).device
        if rank in recvs:
            recv = recvs.pop(rank)
            recv.detach().copy_(sends.pop(rank).reshape(recv.shape))
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

    def all_gather(self, output: Tensor, input: Tensor) -> None:
        """Concatenate the elements of all ranks' inputs."""
        if output.numel() != input.numel() * self.size:
            raise ValueError(
                f"all_gather: the input has {input.numel()} elements, and the output "
                f"{output.numel()}; {self.size} ranks give {input.numel() * self.size}"
            )
        if input.numel() == 0:
            return
        target = _flat(output)
        self.communicator(input.device).all_gather(_moved(_flat(input)), _moved(target))
        _write_back(output, target)

    def all_gather_list(self, outputs: list[Tensor], input: Tensor) -> None:
        """Gather the inputs of all ranks, which may differ in size, in one tensor each."""
        if any(output.numel() != input.numel() for output in outputs):
            self.exchange(dict.fromkeys(range(self.size), input), dict(enumerate(outputs)))
            return
        flat = input.new_empty(self.size, input.numel())
        self.all_gather(flat, input)
        for output, row in zip(outputs, flat, strict=True):
            output.detach().copy_(row.view(output.shape))

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Copy the root's tensor to all ranks."""
        flat = _flat(tensor)
        if flat.numel() == 0:
            return
        self.communicator(tensor.device).broadcast(_moved(flat), root=root)
        _write_back(tensor, flat)

    def send_recv(self, output: Tensor, input: Tensor, shift: int) -> None:
        """Send the input to the rank that is ``shift`` after this one, modulo the ranks."""
        if input.numel():
            source, target = _moved(_flat(input)), _flat(output)
            comm = self.communicator(input.device)
            comm.send_recv(source, _moved(target), shift=shift)
            _write_back(output, target)

    def all_to_all(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: list[int] | None = None,
        input_splits: list[int] | None = None,
    ) -> None:
        """Send rows of the input to each rank. Splits count rows; without any they are equal."""
        size = self.size
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
        self.exchange(
            dict(enumerate(torch.split(input, input_splits or input.shape[0] // size))),
            dict(enumerate(torch.split(output, output_splits or output.shape[0] // size))),
        )
