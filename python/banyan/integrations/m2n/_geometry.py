"""Meshes and placements of NCCL M2N's calls, and the boxes that they give to ranks."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ... import Unsupported

#: Bytes of a digest.
DIGEST_BYTES = 8


class Mesh:
    """The ranks ``start_rank``, ``start_rank + 1``, … as a grid of ``dims``, row by row."""

    def __init__(self, dims: Sequence[int], start_rank: int = 0) -> None:
        """Make a mesh of any number of axes."""
        if not dims or min(dims) < 1 or start_rank < 0:
            raise ValueError(f"a mesh of {tuple(dims)} from rank {start_rank} is not possible")
        count = math.prod(dims)
        self.mesh = torch.arange(start_rank, start_rank + count, device="cpu").reshape(*dims)
        """Ranks, as a tensor."""

    @classmethod
    def from_ranks(cls, ranks: Any) -> Mesh:
        """Make a mesh of a nested list or a tensor of any ranks."""
        made = cls((1,))
        made.mesh = torch.as_tensor(ranks, device="cpu")
        return made


class Side(NamedTuple):
    """How one side divides a tensor."""

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


def _grid(mesh: Any, what: str) -> torch.Tensor:
    """Return the ranks of a mesh as a tensor."""
    if mesh is None:
        raise ValueError(f"{what}_mesh is needed on every rank")
    if hasattr(mesh, "start_rank"):  # nccl.m2n.Mesh
        return Mesh(mesh.dims, mesh.start_rank).mesh
    ranks = getattr(mesh, "mesh", None)
    if ranks is None:
        ranks = getattr(mesh, "_mesh", mesh)
    try:
        grid = torch.as_tensor(ranks, dtype=torch.int64, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{what}_mesh: a mesh, or a nested list of ranks with rows of equal length is needed: "
            f"{error}"
        ) from None
    if grid.dim() == 0 or grid.numel() == 0:
        raise ValueError(f"{what}_mesh has no ranks")
    return grid


def _dim(placement: Any, ndim: int, what: str) -> int:
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
        raise Unsupported(
            f"{what}_placements has {placement!r}: only Shard and Replicate are possible"
        )
    if not given or not 0 <= dim < ndim:
        raise ValueError(
            f"{what}_placements has {placement!r}, but the tensor has {ndim} dimensions"
        )
    return dim


def read_side(mesh: Any, placements: Any, ndim: int | None, what: str) -> Side:
    """Read a mesh with its placements. ``ndim`` None: the tensor is unknown on this rank."""
    grid = _grid(mesh, what)
    ranks = tuple(grid.flatten().tolist())
    if len(set(ranks)) < len(ranks):
        raise ValueError(f"{what}_mesh has a rank twice: {list(ranks)}")
    if placements is None or isinstance(placements, (str, bytes)):
        raise ValueError(
            f"{what}_placements is needed on every rank: one for each axis of the mesh"
        )
    # A flat list of ranks may have a second placement, for an axis of one rank.
    extents = tuple(grid.shape) + (1,) * (len(placements) - grid.dim())
    if len(placements) != len(extents):
        raise ValueError(
            f"{what}_placements has {len(placements)} entries for a mesh of {grid.dim()} axes"
        )
    most = ndim if ndim is not None else 1 << 30
    return Side(extents, ranks, tuple(_dim(one, most, what) for one in placements))
