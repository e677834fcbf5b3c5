"""Layouts of state dicts: the parts of tensors and DTensors that a rank holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor import Replicate as TorchReplicate
from torch.distributed.tensor import Shard as TorchShard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .. import Box, Layout, Mesh, Placement, Replicate, Shard, Unsupported, World, dtype_bytes
from .._errors import NotFound
from ._world import world as world_of

#: A state dict or a module. None: this rank has nothing on this side.
StateLike: TypeAlias = Mapping[str, Any] | nn.Module | None
#: New names of source tensors: a mapping, in which names may be missing, or a function.
Rename: TypeAlias = Mapping[str, str] | Callable[[str], str] | None

_PLAIN = frozenset((Tensor, nn.Parameter, nn.Buffer))
_MAX_AXES = 4


def _plain(where: str, tensor: Tensor) -> Tensor:
    """Return the tensor that has the elements' memory, or raise."""
    if isinstance(tensor, AsyncCollectiveTensor):
        return cast(Tensor, cast(Any, tensor).trigger_wait())
    if type(tensor) not in _PLAIN and is_traceable_wrapper_subclass(tensor):
        raise Unsupported(
            f"{where} is a {type(tensor).__name__}: give the plain tensors inside it, or skip it"
        )
    return tensor


def _require_movable(where: str, tensor: Tensor) -> None:
    """Raise unless Banyan has tensors of this kind, type and device."""
    if tensor.layout != torch.strided:
        raise Unsupported(f"{where} is sparse ({tensor.layout}): make it dense, or skip it")
    try:
        dtype_bytes(tensor.dtype)
    except NotFound:
        raise Unsupported(
            f"{where} has the type {tensor.dtype}, which Banyan lacks: skip it"
        ) from None
    if tensor.device.type not in ("cpu", "cuda"):
        raise Unsupported(
            f"{where} is on the device {tensor.device}: only cpu and cuda are possible"
        )


class State:
    """A state dict, as a call gives it.

    ``specs`` has the spec of each DTensor, and what corresponds to it of other tensors. Two state
    dicts with equal names and specs have the same layout.
    """

    def __init__(self, side: str, given: StateLike, rename: Rename = None) -> None:
        """Read names and specs. ``side`` is for messages."""
        if given is None:
            given = {}
        elif isinstance(given, nn.Module):
            given = given.state_dict(keep_vars=True)
        elif not isinstance(given, Mapping):
            raise TypeError(
                f"{side}: a state dict or a module is needed, not {type(given).__name__}"
            )
        self.side = side
        self.names: list[str] = list(given)
        self.tensors: list[Any] = list(given.values())
        if isinstance(rename, Mapping):
            self.names = [rename.get(name, name) for name in self.names]
        elif rename is not None:
            self.names = [rename(name) for name in self.names]
        if not {str}.issuperset(map(type, self.names)):
            odd = next(name for name in self.names if not isinstance(name, str))
            raise TypeError(f"{side}: the name {odd!r} is not a string")
        self.specs: list[Any] = [
            one._spec
            if isinstance(one, DTensor)
            else (one.shape, one.dtype, one.layout, one.device)
            if isinstance(one, Tensor)
            else type(one)
            for one in self.tensors
        ]

    def where(self, index: int) -> str:
        """Name a tensor in a message."""
        return f'{self.side} tensor "{self.names[index]}"'

    def memory(self, order: Iterable[int]) -> list[Tensor]:
        """Return this rank's tensors with these numbers: of DTensors the local ones."""
        order = list(order)
        given = [self.tensors[i] for i in order]
        found = [one._local_tensor if isinstance(one, DTensor) else one for one in given]
        if not _PLAIN.issuperset(map(type, found)):
            found = [_plain(self.where(i), one) for i, one in zip(order, found, strict=True)]
        for is_lazy in (Tensor.is_conj, Tensor.is_neg):
            if any(map(is_lazy, found)):
                index = order[[is_lazy(one) for one in found].index(True)]
                raise ValueError(
                    f"{self.where(index)} is a lazy view: call resolve_conj() or resolve_neg()"
                )
        return found


class Grid(NamedTuple):
    """A mesh with placements, as Banyan has them."""

    mesh: Mesh
    placements: list[Placement]
    rank: int  # of this process in the mesh; -1: it is not in the mesh
    is_even: bool  # True: the mesh has ranks of the world. False: it has positions.


class Entry(NamedTuple):
    """A tensor of a state dict of which this rank holds a part."""

    number: int  # in the state dict
    name: str
    shape: Sequence[int]  # of the whole tensor
    local: Tensor
    address: int  # of `local`; 0: it is empty
    grid: Grid | None  # None: this rank has the whole tensor


def _axes(where: str, spec: Any) -> list[int]:
    """Return the axes of the mesh in the order in which they divide the tensor."""
    extents, chains = spec.mesh.shape, dict[int, list[int]]()
    is_strided = False
    for axis in reversed(range(len(spec.placements))):
        placement = spec.placements[axis]
        if isinstance(placement, TorchReplicate):
            continue
        if not isinstance(placement, TorchShard | _StridedShard):
            raise Unsupported(
                f"{where} has the placement {placement!r}: redistribute it to Shard or Replicate"
            )
        chain = chains.setdefault(placement.dim, [])
        factor = getattr(placement, "split_factor", 1)
        is_strided = is_strided or isinstance(placement, _StridedShard)
        before, divided = 0, 1  # later axes of the mesh that divide before this one
        while divided < factor and before < len(chain):
            divided *= extents[chain[before]]
            before += 1
        if divided != factor:
            raise Unsupported(
                f"{where} has the placements {spec.placements} on a mesh of {tuple(extents)}: the "
                f"split_factor {factor} is not a product of the extents of later axes"
            )
        chain.insert(before, axis)
    if not is_strided and getattr(spec, "shard_order", None):
        chains = {dim: list(axes) for dim, axes in spec.shard_order}
    axes = [axis for chain in chains.values() for axis in chain]
    return axes + [axis for axis in range(len(spec.placements)) if axis not in axes]


def _grid(where: str, spec: Any, ranks: Mapping[int, int], rank: int) -> Grid:
    """Read the mesh and the placements of a DTensor. ``ranks``: those of the world, by torch's."""
    axes = _axes(where, spec)
    listed = spec.mesh.mesh.permute(axes).flatten().tolist()
    for one in listed:
        if one not in ranks:
            raise ValueError(
                f"{where}: rank {one} of its mesh is not one of the {len(ranks)} ranks of the world"
            )
    members = [ranks[one] for one in listed]
    dims = [getattr(spec.placements[axis], "dim", None) for axis in axes]
    extents = [spec.mesh.shape[axis] for axis in axes]
    try:
        return grid_of(members, extents, dims, rank)
    except Unsupported as error:
        raise Unsupported(f"{where}: {error}") from None


def grid_of(
    members: Sequence[int], extents: Sequence[int], dims: Sequence[int | None], rank: int
) -> Grid:
    """Return the grid of ranks of the world, in row-major order, in which axes divide dimensions.

    A dimension None: the axis replicates.
    """
    kept = [axis for axis, extent in enumerate(extents) if extent > 1] or [0]
    kept_extents = [extents[axis] for axis in kept]
    if len(kept) > _MAX_AXES:
        raise Unsupported(
            f"its mesh of {tuple(kept_extents)} has {len(kept)} axes, but at most {_MAX_AXES} are "
            "possible"
        )
    placements: list[Placement] = [
        Replicate() if dim is None else Shard(dim) for dim in (dims[axis] for axis in kept)
    ]
    place = members.index(rank) if rank in members else -1
    try:
        mesh = Mesh.from_ranks(torch.tensor(members, device="cpu").view(kept_extents))
    except ValueError:  # uneven distances
        return Grid(Mesh(kept_extents), placements, place, False)
    return Grid(mesh, placements, -1 if place < 0 else rank, True)


def describe(
    state: State, ranks: Mapping[int, int], rank: int, is_skipped: Callable[[str], object]
) -> list[Entry]:
    """Return an entry for each tensor that this rank holds a part of.

    Raises if a tensor cannot be moved.
    """
    chosen = [i for i, name in enumerate(state.names) if not is_skipped(name)]
    for i in chosen:
        if not isinstance(state.tensors[i], Tensor):
            raise TypeError(
                f"{state.where(i)} is a {type(state.tensors[i]).__name__}, not a tensor: skip it"
            )
    names = {state.names[i] for i in chosen}
    if len(names) < len(chosen):
        twice = next(one for one in names if state.names.count(one) > 1)
        raise ValueError(f'{state.side}: two tensors have the name "{twice}"')
    grids: dict[Any, Grid] = {}
    movable = set[Any]()
    entries = []
    for i, local in zip(chosen, state.memory(chosen), strict=True):
        one, spec, grid = state.tensors[i], state.specs[i], None
        if isinstance(one, DTensor):
            key = (id(spec.mesh), spec.placements, getattr(spec, "shard_order", None))
            grid = grids.get(key)
            if grid is None:
                grid = grids[key] = _grid(state.where(i), spec, ranks, rank)
            if grid.rank < 0:
                continue
        kind = local.layout, local.dtype, local.device
        if kind not in movable:
            _require_movable(state.where(i), local)
            movable.add(kind)
        address = local.data_ptr() if local.numel() > 0 else 0
        if address == 0 and local.numel() > 0:
            raise ValueError(f"{state.where(i)} has no memory: its storage has been freed")
        entries.append(Entry(i, state.names[i], one.shape, local, address, grid))
    return entries


def build(
    rank: int, entries: Iterable[Entry], unused: Iterable[Entry] = ()
) -> tuple[Layout, list[int]]:
    """Return the layout of the entries, and their numbers in its order.

    ``unused`` are tensors in the layout that runs neither read nor write.
    """
    entries = list(entries)
    even = [one for one in entries if one.grid is not None and one.grid.is_even]
    others = [one for one in entries if one.grid is None or not one.grid.is_even]
    layout = Layout()
    if even:
        grids = [one.grid for one in even if one.grid is not None]
        layout.add_sharded_many(
            [one.name for one in even],
            [one.local.dtype for one in even],
            [one.shape for one in even],
            [grid.mesh for grid in grids],
            [grid.placements for grid in grids],
            rank,
        )
    unused = list(unused)
    rest = others + unused
    first = layout.add_tensors(
        [one.name for one in rest],
        [one.local.dtype for one in rest],
        [one.local.shape for one in rest],
    )
    for tensor, one in enumerate(others, first):
        if one.grid is None:
            layout.add_piece(tensor, one.name, one.shape)
            continue
        alone = Layout()
        alone.add_sharded(
            one.name, one.local.dtype, one.shape, one.grid.mesh, one.grid.placements, one.grid.rank
        )
        for piece in alone.pieces:
            layout.add_piece(tensor, one.name, one.shape, piece.box)
    for tensor, one in enumerate(unused, first + len(others)):
        layout.leave_alone(tensor, Box([0] * one.local.dim(), one.local.shape))
    return layout, [one.number for one in even + rest]


def world_and_ranks(
    group: dist.ProcessGroup | None, world: World | None, ranks: Sequence[int] | None
) -> tuple[World, Mapping[int, int]]:
    """Return the world of a call, and its ranks by the ranks of torch.distributed.

    Collective the first time, and if ``world`` is given without ``ranks``.
    """
    if world is None:
        world = world_of(group)
        members = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
        return world, {one: i for i, one in enumerate(members)}
    if group is not None:
        raise ValueError("give a group or a world, not both")
    if ranks is not None:
        return world, dict(enumerate(ranks))
    mine = dist.get_rank() if dist.is_initialized() else world.rank
    all_ranks = world.gather(mine.to_bytes(4, "little"))
    found = {int.from_bytes(one, "little"): i for i, one in enumerate(all_ranks)}
    if len(found) != world.size:
        raise ValueError(
            "ranks of the world have the same rank in torch.distributed: if they are of several "
            "jobs, pass ranks=, with the rank in the world of each rank of this job"
        )
    return world, found


def local_tensors(state: StateLike) -> dict[str, Tensor]:
    """Return this rank's tensors of a state dict or a module: of each DTensor the local one.

    They have the names of the local tensors in the ``layout`` of the state dict. DTensors whose
    mesh does not have this rank are left out.
    """
    read = State("state dict", state)
    held = [
        i
        for i, one in enumerate(read.tensors)
        if not isinstance(one, DTensor) or one.device_mesh.get_coordinate() is not None
    ]
    return {read.names[i]: one for i, one in zip(held, read.memory(held), strict=True)}


def layout(
    state: StateLike,
    *,
    group: dist.ProcessGroup | None = None,
    world: World | None = None,
    ranks: Sequence[int] | None = None,
) -> Layout:
    """Return the layout of a state dict or a module on this rank.

    Use it with ``local_tensors`` for checkpoints, layout files and ``banyan.Reshard``. ``group``,
    ``world`` and ``ranks`` are those of ``reshard``. Collective the first time that a group is
    used, and if ``world`` is given without ``ranks``.
    """
    opened, known = world_and_ranks(group, world, ranks)
    return build(
        opened.rank, describe(State("state dict", state), known, opened.rank, lambda _: False)
    )[0]
