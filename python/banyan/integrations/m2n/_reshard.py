"""The calls."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from ... import Invalid
from ._geometry import read_side
from ._group import submit
from ._handle import Handle, number_of
from ._plans import Call, mine
from ._types import read_buffer, torch_type
from ._window import require_inside


def _call(
    rank: int,
    members: Collection[int],
    tensors: tuple[Any, Any],
    meshes: tuple[Any, Any],
    placements: tuple[Any, Any],
    shape: Sequence[int] | None,
    handle: Handle | None = None,
    local_shapes: tuple[Sequence[int] | None, Sequence[int] | None] = (None, None),
    dtypes: tuple[Any, Any] = (None, None),
    window: Any = None,
) -> Call:
    """Read the arguments of a call. ``shape`` None: it follows from the parts.

    ``window``: one that must have a part of this rank.
    """
    number = number_of(handle)
    names = ("src", "dst")
    given = [read_buffer(*one) for one in zip(tensors, local_shapes, dtypes, names, strict=True)]
    whole = None if shape is None else tuple(int(extent) for extent in shape)
    parts = [
        one.shape if one is not None else local
        for one, local in zip(given, local_shapes, strict=True)
    ]
    ndims = {len(one) for one in (*parts, whole) if one is not None}
    if len(ndims) > 1:
        raise ValueError(f"src, dst and their whole have {sorted(ndims)} dimensions")
    ndim = next(iter(ndims), None)
    sides = (
        read_side(meshes[0], placements[0], ndim, "src"),
        read_side(meshes[1], placements[1], ndim, "dst"),
    )
    local = mine(rank, members, (given[0], given[1]), sides)
    if whole is None:
        found = {s.whole(one) for s, one in zip(sides, parts, strict=True) if one is not None}
        if len(found) > 1:
            raise ValueError(
                f"src and dst are parts of tensors of the shapes {sorted(found)}: give "
                "global_shape, if parts are uneven"
            )
        whole = found.pop() if found else None
    types = {one.dtype for one in given if one is not None}
    types |= {torch_type(one) for one in dtypes if one is not None}
    if len(types) > 1:
        raise Invalid(f"src and dst have different types: {sorted(map(str, types))}")
    call = Call(local, whole, types.pop() if types else None, sides, number)
    if window is not None:
        require_inside(window, *call.tensors)
    return call


def _whole_shape(tensors: Sequence[Any]) -> Sequence[int] | None:
    """Return the shape of the whole tensor that the parts give; None: they do not."""
    shapes = {tuple(one.shape) for one in tensors}
    if len(shapes) > 1:
        raise ValueError(f"src and dst have the shapes {sorted(map(list, shapes))}")
    return shapes.pop() if shapes else None


def reshard(
    src: Any,
    dst: Any,
    comm: Any = None,
    stream: Any = None,
    *,
    src_mesh: Any = None,
    src_placements: Any = None,
    src_local_shape: Sequence[int] | None = None,
    src_dtype: Any = None,
    dst_mesh: Any = None,
    dst_placements: Any = None,
    dst_local_shape: Sequence[int] | None = None,
    dst_dtype: Any = None,
    handle: Handle | None = None,
    global_shape: Sequence[int] | None = None,
) -> None:
    """Move a tensor from the parts of ``src_mesh`` to those of ``dst_mesh``. Collective over comm.

    ``src``, ``dst``: this rank's parts, on the host or a GPU, with any strides; None where the rank
    is not in that side's mesh. A pointer needs its ``local_shape`` and ``dtype``; it is one of the
    GPU, or of the host where PyTorch has no GPU. ``comm``: a World, a Communicator or its number, a
    process group of ``torch.distributed`` (None: the default group), or a communicator that
    ``attach`` knows. Meshes are lists of ranks, nested to their shape, or objects with ``.mesh``;
    their ranks are those of the world, and of ``torch.distributed`` with a process group.
    Placements are Shard and Replicate of PyTorch or of nccl.m2n, or dimensions; axes of a mesh
    divide in order, as torch.chunk does. Every rank of comm passes both meshes and both placements.

    The shape of the tensor follows from the parts if these are even, on ranks without a part from
    ``src_local_shape`` or ``dst_local_shape``. Else every rank that has a part passes
    ``global_shape``. A dense tensor is viewed with the shape and the type that are given for it,
    if it has as many bytes.

    On a GPU the transfers are queued in ``stream``; None: the current one. The first call with a
    shape, type, meshes and placements plans, and later ones run the plan again. The world keeps the
    last 256 plans, and with each the tensors of its last run. A plan is closed before when all
    handles that used it are destroyed.

    Raises on every rank, before anything moves: ValueError and TypeError (a part has another
    shape, a mesh another number of axes; the message has both), banyan.Mismatch (the ranks make
    different calls). Banyan's errors are instances of NcclReshardError, too.
    """
    submit(
        comm,
        stream,
        partial(
            _call,
            tensors=(src, dst),
            meshes=(src_mesh, dst_mesh),
            placements=(src_placements, dst_placements),
            shape=global_shape,
            handle=handle,
            local_shapes=(src_local_shape, dst_local_shape),
            dtypes=(src_dtype, dst_dtype),
        ),
    )


def reshard_with_window(
    src: Any,
    dst: Any,
    comm: Any,
    window: Any,
    stream: Any = None,
    *,
    src_mesh: Any = None,
    src_placements: Any = None,
    src_local_shape: Sequence[int] | None = None,
    src_dtype: Any = None,
    dst_mesh: Any = None,
    dst_placements: Any = None,
    dst_local_shape: Sequence[int] | None = None,
    dst_dtype: Any = None,
    handle: Handle | None = None,
    global_shape: Sequence[int] | None = None,
) -> None:
    """Move a tensor as ``reshard`` does, with a part of each rank in a window. Collective.

    ``window``: a Window of ``Communicator.register_window`` or its number, or an object with
    ``user_ptr`` and ``size``. Raises ValueError on every rank, before anything moves, if the window
    of a rank has none of its parts.
    """
    if window is None:
        raise TypeError("window must be a registered NCCL window")
    submit(
        comm,
        stream,
        partial(
            _call,
            tensors=(src, dst),
            meshes=(src_mesh, dst_mesh),
            placements=(src_placements, dst_placements),
            shape=global_shape,
            handle=handle,
            local_shapes=(src_local_shape, dst_local_shape),
            dtypes=(src_dtype, dst_dtype),
            window=window,
        ),
    )


def xdtensor_reshard(
    src: Any,
    dst: Any,
    comm: Any = None,
    stream: Any = None,
    *,
    src_mesh: Any = None,
    src_placements: Any = None,
    dst_mesh: Any = None,
    dst_placements: Any = None,
    handle: Handle | None = None,
) -> None:
    """Move a DTensor to another one, as ``reshard`` does. Collective over comm.

    Meshes and placements of DTensors need not be given, except on ranks where that side is None.
    """

    def read(rank: int, members: Collection[int]) -> Call:
        meshes, placements = [src_mesh, dst_mesh], [src_placements, dst_placements]
        for i, one in enumerate((src, dst)):
            if hasattr(one, "device_mesh"):
                meshes[i] = one.device_mesh if meshes[i] is None else meshes[i]
                placements[i] = one.placements if placements[i] is None else placements[i]
        return _call(
            rank,
            members,
            (src, dst),
            (meshes[0], meshes[1]),
            (placements[0], placements[1]),
            _whole_shape([one for one in (src, dst) if hasattr(one, "device_mesh")]),
            handle,
        )

    submit(comm, stream, read)


def xferdtensor(
    src_tensor: Any,
    src_mesh: Any,
    src_placement: Any,
    dst_tensor: Any,
    dst_mesh: Any,
    dst_placement: Any,
    process_group: Any = None,
    stream: Any = None,
) -> None:
    """Move a tensor between two meshes, with the arguments of NeMo-RL's function. Collective.

    A tensor has ``.shape`` (of the whole tensor) and ``._local_tensor``, as a DTensor or NeMo-RL's
    DTensorRef; None where the rank is not in that side's mesh. ``process_group`` is the ``comm`` of
    ``reshard``; NeMo-RL's StatelessProcessGroup is accepted, and attached by the first call.
    """
    submit(
        process_group,
        stream,
        lambda rank, members: _call(
            rank,
            members,
            (src_tensor, dst_tensor),
            (src_mesh, dst_mesh),
            (src_placement, dst_placement),
            _whole_shape([one for one in (src_tensor, dst_tensor) if one is not None]),
        ),
    )
