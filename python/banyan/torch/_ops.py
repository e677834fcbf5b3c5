"""Collectives as operators of PyTorch, for models that are compiled or captured.

The operators are ``torch.ops.banyan.*``. Each has a fake implementation, so torch.compile traces
through it without a graph break, and those whose gradient is a collective have a backward.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from .. import World
from ._collectives import Collectives
from ._world import group_backend, world

Group = dist.ProcessGroup | World | None

_OPS = {
    "sum": c10d.ReduceOp.SUM,
    "avg": c10d.ReduceOp.AVG,
    "product": c10d.ReduceOp.PRODUCT,
    "min": c10d.ReduceOp.MIN,
    "max": c10d.ReduceOp.MAX,
}

# Operators take groups by name, since a graph holds no objects.
_collectives: weakref.WeakKeyDictionary[World, Collectives] = weakref.WeakKeyDictionary()
_worlds: dict[str, World] = {}


def _name(group: Group) -> str:
    if group is None:
        return ""
    return _world_name(group) if isinstance(group, World) else group.group_name


# torch.compile calls this while it traces.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _world_name(owner: World) -> str:
    name = f"banyan.World {id(owner):#x}"
    _worlds[name] = owner
    return name


def _find(name: str) -> Collectives:
    """Return the collectives of the group that ``_name`` named."""
    owner = _worlds.get(name)
    if owner is None:
        group = dist.group.WORLD
        if name:
            group = c10d._resolve_process_group(name)  # type: ignore[arg-type]
        backend = None if group is None else group_backend(group)
        if backend is not None:
            return backend.collectives
        owner = world(group)
    found = _collectives.get(owner)
    if found is None:
        found = _collectives[owner] = Collectives(owner)
    return found


def _op(name: str) -> Any:
    if name not in _OPS:
        raise ValueError(f"reduction {name!r}: it is one of {', '.join(_OPS)}")
    return _OPS[name]


_library: Any = torch.library.Library("banyan", "DEF")  # type: ignore[no-untyped-call]


def _define(schema: str, function: Any, fake: Any) -> None:
    name = schema.split("(")[0]
    _library.define(schema)
    for key in ("CPU", "CUDA"):
        _library.impl(name, function, key)
    torch.library.register_fake(f"banyan::{name}", fake, lib=_library)


def _differentiable(name: str, setup: Any, backward: Any) -> None:
    torch.library.register_autograd(f"banyan::{name}", backward, setup_context=setup, lib=_library)


def _require_linear(call: str, op: str) -> None:
    if op not in ("sum", "avg"):
        raise ValueError(f"{call} of {op!r} has no gradient; detach the tensor")


def _dense_like(input: Tensor) -> Tensor:
    return torch.empty_like(input, memory_format=torch.contiguous_format)


# all_reduce


def _all_reduce(input: Tensor, op: str, group: str) -> Tensor:
    output = input.clone(memory_format=torch.contiguous_format)
    _find(group).all_reduce(output, _op(op))
    return output


def _all_reduce_setup(ctx: Any, inputs: Any, output: Tensor) -> None:
    _, ctx.op, ctx.group = inputs
    _require_linear("all_reduce", ctx.op)


_define(
    "all_reduce(Tensor input, str op, str group) -> Tensor",
    _all_reduce,
    lambda input, op, group: _dense_like(input),
)
_differentiable(
    "all_reduce",
    _all_reduce_setup,
    lambda ctx, grad: (torch.ops.banyan.all_reduce(grad, ctx.op, ctx.group), None, None),
)


def _all_reduce_in_place(tensor: Tensor, op: str, group: str) -> None:
    _find(group).all_reduce(tensor, _op(op))


_define(
    "all_reduce_(Tensor(a!) tensor, str op, str group) -> ()",
    _all_reduce_in_place,
    lambda tensor, op, group: None,
)

# all_gather


def _rows(input: Tensor) -> tuple[int, ...]:
    return tuple(input.shape) if input.dim() else (1,)


def _gathered(input: Tensor, group: str) -> Tensor:
    rows = _rows(input)
    return input.new_empty(rows[0] * _find(group).size, *rows[1:])


def _all_gather(input: Tensor, group: str) -> Tensor:
    output = _gathered(input, group)
    _find(group).all_gather(output, input)
    return output


def _all_gather_setup(ctx: Any, inputs: Any, output: Tensor) -> None:
    input, ctx.group = inputs
    ctx.shape = input.shape


def _all_gather_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return torch.ops.banyan.reduce_scatter(grad, "sum", ctx.group).reshape(ctx.shape), None


_define("all_gather(Tensor input, str group) -> Tensor", _all_gather, _gathered)
_differentiable("all_gather", _all_gather_setup, _all_gather_backward)

# reduce_scatter


def _scattered(input: Tensor, op: str, group: str) -> Tensor:
    size, rows = _find(group).size, _rows(input)
    if rows[0] % size:
        raise ValueError(f"reduce_scatter: {rows[0]} rows do not divide by {size} ranks")
    return input.new_empty(rows[0] // size, *rows[1:])


def _reduce_scatter(input: Tensor, op: str, group: str) -> Tensor:
    output = _scattered(input, op, group)
    _find(group).reduce_scatter(output, input, _op(op))
    return output


def _reduce_scatter_setup(ctx: Any, inputs: Any, output: Tensor) -> None:
    _, ctx.op, ctx.group = inputs
    _require_linear("reduce_scatter", ctx.op)


def _reduce_scatter_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    whole = torch.ops.banyan.all_gather(grad, ctx.group)
    return whole / _find(ctx.group).size if ctx.op == "avg" else whole, None, None


_define("reduce_scatter(Tensor input, str op, str group) -> Tensor", _reduce_scatter, _scattered)
_differentiable("reduce_scatter", _reduce_scatter_setup, _reduce_scatter_backward)

# all_to_all


def _all_to_all(input: Tensor, group: str) -> Tensor:
    output = _dense_like(input)
    _find(group).all_to_all(output, input.contiguous())
    return output


def _group_setup(ctx: Any, inputs: Any, output: Tensor) -> None:
    _, ctx.group = inputs


_define(
    "all_to_all(Tensor input, str group) -> Tensor",
    _all_to_all,
    lambda input, group: _dense_like(input),
)
_differentiable(
    "all_to_all",
    _group_setup,
    lambda ctx, grad: (torch.ops.banyan.all_to_all(grad, ctx.group), None),
)

# broadcast


def _broadcast(input: Tensor, root: int, group: str) -> Tensor:
    output = input.clone(memory_format=torch.contiguous_format)
    _find(group).broadcast(output, root)
    return output


def _broadcast_setup(ctx: Any, inputs: Any, output: Tensor) -> None:
    _, ctx.root, ctx.group = inputs


def _broadcast_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    total = torch.ops.banyan.all_reduce(grad, "sum", ctx.group)
    return total if _find(ctx.group).rank == ctx.root else torch.zeros_like(total), None, None


_define(
    "broadcast(Tensor input, int root, str group) -> Tensor",
    _broadcast,
    lambda input, root, group: _dense_like(input),
)
_differentiable("broadcast", _broadcast_setup, _broadcast_backward)

# send_recv


def _send_recv(input: Tensor, shift: int, group: str) -> Tensor:
    output = _dense_like(input)
    _find(group).send_recv(output, input, shift)
    return output


def _send_recv_setup(ctx: Any, inputs: Any, output: Tensor) -> None:
    _, ctx.shift, ctx.group = inputs


_define(
    "send_recv(Tensor input, int shift, str group) -> Tensor",
    _send_recv,
    lambda input, shift, group: _dense_like(input),
)
_differentiable(
    "send_recv",
    _send_recv_setup,
    lambda ctx, grad: (torch.ops.banyan.send_recv(grad, -ctx.shift, ctx.group), None, None),
)


# What programs call. `group` is a process group, a banyan.World, or None for the default group.


def all_reduce(tensor: Tensor, op: str = "sum", *, group: Group = None) -> Tensor:
    """Return the reduction of the tensors of all ranks, element by element.

    ``op`` is "sum", "avg", "product", "min" or "max". Sums and averages have a gradient, which is
    reduced likewise. ``group``: a process group, a ``banyan.World``, or None for the default group.
    Collective, as all functions here; on a GPU the work is queued in the current stream, which may
    be in graph capture.
    """
    return torch.ops.banyan.all_reduce(tensor, op, _name(group))  # type: ignore[no-any-return]


def all_reduce_(tensor: Tensor, op: str = "sum", *, group: Group = None) -> Tensor:
    """Reduce the tensors of all ranks in place, and return the tensor. It has no gradient."""
    torch.ops.banyan.all_reduce_(tensor, op, _name(group))
    return tensor


def all_gather(tensor: Tensor, *, group: Group = None) -> Tensor:
    """Return the tensors of all ranks, concatenated in dimension 0 in the order of ranks."""
    return torch.ops.banyan.all_gather(tensor, _name(group))  # type: ignore[no-any-return]


def reduce_scatter(tensor: Tensor, op: str = "sum", *, group: Group = None) -> Tensor:
    """Return this rank's rows of the reduction of all ranks' tensors.

    Dimension 0 must divide by the number of ranks. ``op``: as of all_reduce.
    """
    return torch.ops.banyan.reduce_scatter(tensor, op, _name(group))  # type: ignore[no-any-return]


def all_to_all(tensor: Tensor, *, group: Group = None) -> Tensor:
    """Return block r of every rank's tensor, at rank r. Dimension 0 is divided into the blocks."""
    return torch.ops.banyan.all_to_all(tensor, _name(group))  # type: ignore[no-any-return]


def broadcast(tensor: Tensor, root: int = 0, *, group: Group = None) -> Tensor:
    """Return the root's tensor on all ranks. All ranks pass tensors of one shape and type."""
    return torch.ops.banyan.broadcast(tensor, root, _name(group))  # type: ignore[no-any-return]


def send_recv(tensor: Tensor, shift: int = 1, *, group: Group = None) -> Tensor:
    """Return the tensor of the rank that is ``shift`` before this one, modulo the ranks."""
    return torch.ops.banyan.send_recv(tensor, shift, _name(group))  # type: ignore[no-any-return]
