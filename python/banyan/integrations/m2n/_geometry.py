"""Meshes and placements of NCCL M2N's calls, and the boxes that they give to ranks."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ... import Unsupported
from ._errors import no_binding

#: Bytes of a digest.
DIGEST_BYTES = 8


#: Entries that ``Mesh.dims`` has at least; missing ones are 1.
MESH_NDIMS = 2


@dataclasses.dataclass(frozen=True)
class Mesh:
    """Ranks as a grid, row by row: from ``start_rank`` on, or those of ``from_ranks``.

    ``ndims`` is the number of axes. ``dims`` has the extents, and ones up to MESH_NDIMS entries.
    """

    dims: tuple[int, ...]
    start_rank: int = 0
    ndims: int = MESH_NDIMS
    _listed: tuple[int, ...] | None = dataclasses.field(default=None, repr=False)

    def __init__(self, dims: Sequence[int], start_rank: int = 0) -> None:
        """Make a mesh of any number of axes."""
        extents, start_rank = tuple(int(one) for one in dims), int(start_rank)
        if not extents:
            raise ValueError("mesh dims must not be empty")
        if min(extents) <= 0:
            raise ValueError(f"mesh dims must be positive, got {extents}")
        if start_rank < 0:
            raise ValueError(f"mesh start_rank must be non-negative, got {start_rank}")
        padded = extents + (1,) * (MESH_NDIMS - len(extents))
        for name, value in (("dims", padded), ("start_rank", start_rank), ("ndims", len(extents))):
            object.__setattr__(self, name, value)

    @classmethod
    def from_ranks(cls, ranks: Any) -> Mesh:
        """Make a mesh of a nested list or a tensor of any ranks."""
        grid = _grid(ranks, "ranks")
        listed = tuple(grid.flatten().tolist())
        made = cls(tuple(grid.shape), min(listed))
        if listed != made.ranks:
            object.__setattr__(made, "_listed", listed)
        return made

    @classmethod
    def from_device_mesh(cls, device_mesh: Any) -> Mesh:
        """Make a mesh of a DeviceMesh, or of another object with ``.mesh``."""
        if getattr(device_mesh, "mesh", None) is None:
            raise TypeError("DeviceMesh object must expose public .mesh rank grid")
        return cls.from_ranks(device_mesh.mesh)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return math.prod(self.dims)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks, row by row."""
        if self._listed is not None:
            return self._listed
        return tuple(range(self.start_rank, self.start_rank + self.size))

    @property
    def mesh(self) -> torch.Tensor:
        """Ranks, as a tensor with ``ndims`` dimensions."""
        return torch.tensor(self.ranks, device="cpu").reshape(self.dims[: self.ndims])

    def to_binding(self) -> None:
        """Raise FunctionNotFoundError: libnccl_m2n.so has its structs, and Banyan has none."""
        raise no_binding("Mesh.to_binding")


class Side(NamedTuple):
    """How one side divides a tensor. Axes of one rank are left out."""

    extents: tuple[int, ...]  # of the mesh
    ranks: tuple[int, ...]  # row by row
    dims: tuple[int, ...]  # dimension that each axis of the mesh divides; -1: none

    def whole(self, local: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the tensor whose even parts have the shape ``local``."""
        shape = list(local)
        for axis, dim in enumerate(self.dims):
            if dim >= 0:
                shape[dim] *= self.extents[axis]
        return tuple(shape)


@functools.lru_cache(4096)
def box(side: Side, shape: tuple[int, ...], rank: int) -> tuple[list[int], list[int]]:
    """Return start and extent of a rank's part. Axes divide in order, as torch.chunk does."""
    start, extent = [0] * len(shape), list(shape)
    position, after = side.ranks.index(rank), len(side.ranks)
    for dim, parts in zip(side.dims, side.extents, strict=True):
        after //= parts  # ranks from one index of the axis to the next
        if dim < 0:
            continue
        chunk = -(-extent[dim] // parts)
        first = min(extent[dim], position // after % parts * chunk)
        start[dim] += first
        extent[dim] = min(chunk, extent[dim] - first)
    return start, extent


@functools.lru_cache(4096)
def digest(value: object) -> bytes:
    """Return a digest of a value, which all ranks write in the same way."""
    return hashlib.blake2b(repr(value).encode(), digest_size=DIGEST_BYTES).digest()


def _grid(ranks: Any, what: str) -> torch.Tensor:
    """Return a nested list of ranks as a tensor."""
    try:
        grid = torch.as_tensor(ranks, dtype=torch.int64, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{what}: a mesh, or a nested list of ranks with rows of equal length is needed: "
            f"{error}"
        ) from None
    if grid.dim() == 0 or grid.numel() == 0:
        raise ValueError(f"{what} has no ranks")
    return grid


def _extents_and_ranks(mesh: Any, what: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the extents of a mesh, and its ranks row by row."""
    if mesh is None:
        raise ValueError(f"{what} is needed on every rank")
    if not isinstance(mesh, Mesh) and hasattr(mesh, "start_rank"):  # nccl.m2n.Mesh
        mesh = Mesh(mesh.dims[: mesh.ndims], mesh.start_rank)
    if isinstance(mesh, Mesh):
        return mesh.dims[: mesh.ndims], mesh.ranks
    ranks = getattr(mesh, "mesh", None)
    if ranks is None:
        ranks = getattr(mesh, "_mesh", mesh)
    grid = _grid(ranks, what)
    return tuple(grid.shape), tuple(grid.flatten().tolist())


def placement_dim(placement: Any, ndim: int, what: str) -> int:
    """Return the dimension that a placement divides, or -1."""
    name = type(placement).__name__
    if isinstance(placement, int) and not isinstance(placement, bool):
        dim, given = placement, placement >= 0
    elif name == "Replicate":
        return -1
    elif name == "Shard":
        dim, given = int(placement.dim), True
        dim += ndim if dim < 0 else 0
    else:
        raise Unsupported(f"{what} has {placement!r}: only Shard and Replicate are possible")
    if not given or not 0 <= dim < ndim:
        raise ValueError(f"{what} has {placement!r}, but the tensor has {ndim} dimensions")
    return dim


def read_side(mesh: Any, placements: Any, ndim: int | None, what: str) -> Side:
    """Read a mesh with its placements. ``ndim`` None: the tensor is unknown on this rank."""
    extents, ranks = _extents_and_ranks(mesh, f"{what}_mesh")
    if len(set(ranks)) < len(ranks):
        raise ValueError(f"{what}_mesh has a rank twice: {list(ranks)}")
    if not isinstance(placements, Sequence) or isinstance(placements, (str, bytes)):
        raise ValueError(
            f"{what}_placements is needed on every rank: one for each axis of the mesh"
        )
    most = ndim if ndim is not None else 1 << 30
    dims = tuple(placement_dim(one, most, f"{what}_placements") for one in placements)
    # Axes of one rank may lack a placement, and a placement may lack its axis of one rank.
    missing = len(extents) - len(dims)
    if missing > 0 and set(extents[len(dims) :]) == {1}:
        dims += (-1,) * missing
    elif missing > 0:
        raise ValueError(
            f"{what}_placements has {len(dims)} entries for a mesh of {len(extents)} axes"
        )
    axes = [axis for axis, count in enumerate(extents) if count > 1]
    return Side(tuple(extents[i] for i in axes), ranks, tuple(dims[i] for i in axes))
