"""The calls: read on each rank, agreed on by all, planned once and kept."""

from __future__ import annotations

import contextlib
import threading
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

from ... import Box, Invalid, Layout, Mismatch, Reshard, World
from ..._reshard import agree
from ...torch._reshard import count_changes
from ._comm import world_and_ranks
from ._geometry import DIGEST_BYTES, Side, box, digest, read_side

#: Plans that a world keeps of these calls.
MAX_KEPT = 256

_UNKNOWN, _COUNT_BYTES = bytes(DIGEST_BYTES), 4
_KINDS = {"cpu": 1, "cuda": 2}


class _Call(NamedTuple):
    """A tensor to move, as a rank sees it."""

    tensors: tuple[torch.Tensor | None, torch.Tensor | None]  # local ones
    shape: tuple[int, ...] | None  # of the whole tensor; None: this rank has no tensor
    sides: tuple[Side, Side]

    @property
    def device(self) -> torch.device | None:
        return next((one.device for one in self.tensors if one is not None), None)

    @property
    def dtype(self) -> torch.dtype | None:
        return next((one.dtype for one in self.tensors if one is not None), None)


#: Reads the arguments of a call on a rank. The second argument has the ranks that meshes may have.
_Reader: TypeAlias = Callable[[int, Collection[int]], _Call]


class _Kept:
    """A plan for calls of the same geometry."""

    def __init__(self, key: bytes, reshard: Reshard) -> None:
        self.key = key
        self._reshard = reshard

    def run(self, tensors: Sequence[list[Any] | None], stream: Any) -> None:
        self._reshard(tensors[0], tensors[1], stream=stream)

    def close(self) -> None:
        self._reshard.close()


def _check(call: _Call, rank: int) -> None:
    """Raise unless the tensors of a rank are those that the meshes give it."""
    for name, side, tensor in zip(("src", "dst"), call.sides, call.tensors, strict=True):
        if tensor is None:
            continue
        assert call.shape is not None
        expected = box(side, call.shape, rank)[1]
        if list(tensor.shape) != expected:
            raise ValueError(
                f"{name} has the shape {list(tensor.shape)} on rank {rank}, but its part of "
                f"{list(call.shape)} is {expected}"
            )
    dtypes = {one.dtype for one in call.tensors if one is not None}
    if len(dtypes) > 1:
        raise ValueError(f"src and dst have different types: {sorted(map(str, dtypes))}")


def _layout(calls: Sequence[_Call], which: int, rank: int) -> Layout | None:
    """Return what a rank has on one side, or None."""
    layout = Layout()
    for number, call in enumerate(calls):
        tensor, side = call.tensors[which], call.sides[which]
        if tensor is None:
            continue
        assert call.shape is not None
        start, extent = box(side, call.shape, rank)
        name = str(number)
        layout.add_tensor(name, tensor.dtype, extent)
        layout.add_piece(len(layout) - 1, name, call.shape, Box(start, extent))
    return layout if len(layout) > 0 else None


def _key_bytes(count: int) -> int:
    """Return the bytes of the key of some calls: their number, and two digests of each."""
    return _COUNT_BYTES + 2 * DIGEST_BYTES * count


def _require_equal(world: World, words: Sequence[bytes], calls: Sequence[_Call]) -> None:
    """Raise on all ranks if the ranks make different calls. Local if they make the same."""
    counts = {word[:_COUNT_BYTES] for word in words}
    known = [
        {word[at : at + DIGEST_BYTES] for word in words} - {_UNKNOWN}
        for at in range(_COUNT_BYTES, _key_bytes(len(calls)), DIGEST_BYTES)
    ]
    if len(counts) == 1 and all(len(one) <= 1 for one in known):
        return
    if len(counts) > 1:
        listed = [int.from_bytes(word[:_COUNT_BYTES], "little") for word in words]
        raise Mismatch(f"the ranks make different numbers of calls in a group: {listed}")
    number = next(i // 2 for i, one in enumerate(known) if len(one) > 1)
    call = calls[number]
    shape = None if call.shape is None else list(call.shape)
    mine = f"shape {shape}, {call.dtype}, meshes and placements {[list(s) for s in call.sides]}"
    texts = world.gather(mine.encode())
    first = texts[0]
    other = next((i for i, one in enumerate(texts) if one != first and b"shape None" not in one), 0)
    raise Mismatch(
        f"the ranks make different calls, or derive different shapes from their parts (uneven "
        f"parts need global_shape): rank 0 has {first.decode()}, and rank {other} has "
        f"{texts[other].decode()}"
    )


def _run(
    world: World,
    ranks: Mapping[int, int] | None,
    readers: Sequence[_Reader],
    stream: Any,
) -> None:
    """Move the tensors of some calls together. Collective."""
    rank = world.rank
    calls: list[_Call] = []
    if ranks is not None:
        rank = next(theirs for theirs, ours in ranks.items() if ours == rank)
    members = range(world.size) if ranks is None else ranks.keys()
    plans: dict[int, Any] = world._plans
    key, kind = b"", 0

    def read() -> bytes:
        nonlocal key, kind
        calls.extend(one(rank, members) for one in readers)
        key = len(calls).to_bytes(_COUNT_BYTES, "little")
        devices = {call.device for call in calls if call.device is not None}
        if len(devices) > 1:
            raise ValueError(f"the tensors of a rank are on {sorted(map(str, devices))}")
        for device in devices:
            if device.type not in _KINDS:
                raise ValueError(f"tensors on {device}: only cpu and cuda are possible")
            kind = _KINDS[device.type]
        for call in calls:
            _check(call, rank)
            # Without the shape, dimensions that count from the end are unknown.
            dims = tuple(side.dims for side in call.sides)
            key += digest(tuple((side.extents, side.ranks) for side in call.sides))
            key += _UNKNOWN if call.shape is None else digest((call.shape, call.dtype, dims))
        fitting = [i for i, one in plans.items() if isinstance(one, _Kept) and one.key == key]
        return key + bytes([kind]) + array("q", fitting).tobytes()

    words = agree(world, read)
    _require_equal(world, words, calls)
    kinds = {word[len(key)] for word in words} - {0}
    if len(kinds) > 1:
        raise Invalid("some ranks have tensors on the host, and others on GPUs")
    common = set.intersection(*(set(array("q", word[len(key) + 1 :])) for word in words))
    if common:
        number = max(common)
        kept = plans.pop(number)
    else:
        number = max(plans, default=0) + 1
        device = next((call.device for call in calls if call.device is not None), None)
        if device is None and kinds == {_KINDS["cuda"]}:
            device = torch.device("cuda", torch.cuda.current_device())
        layouts = [_layout(calls, which, rank) for which in range(2)]
        on = None if device is None or device.type == "cpu" else device
        kept = _Kept(key, Reshard(layouts[0], layouts[1], world, device=on, progress=None))
    plans[number] = kept  # the newest is the last
    old = [i for i, one in plans.items() if isinstance(one, _Kept)]
    if len(old) > MAX_KEPT:
        plans.pop(old[0]).close()
    held: list[list[torch.Tensor]] = [[], []]
    for call in calls:
        for tensors, tensor in zip(held, call.tensors, strict=True):
            if tensor is not None:
                tensors.append(tensor)
    with torch.no_grad():
        kept.run([one or None for one in held], stream if kinds == {_KINDS["cuda"]} else None)
        count_changes(held[1])


# ---- groups ----


class _Groups(threading.local):
    depth = 0

    def __init__(self) -> None:
        self.calls: list[tuple[World, Mapping[int, int] | None, _Reader, Any]] = []


_groups = _Groups()


def group_start() -> None:
    """Record the calls of this thread from now on, until the matching ``group_end``."""
    _groups.depth += 1


def group_end() -> None:
    """End a group. The end of the outermost one moves all recorded tensors. Collective."""
    if _groups.depth == 0:
        raise ValueError("group_end without group_start")
    _groups.depth -= 1
    if _groups.depth > 0:
        return
    calls, _groups.calls = _groups.calls, []
    while calls:
        world, ranks, _, stream = calls[0]
        _run(
            world, ranks, [one[2] for one in calls if one[0] is world and one[3] is stream], stream
        )
        calls = [one for one in calls if one[0] is not world or one[3] is not stream]


def group_abort() -> None:
    """Forget the recorded calls, and end all groups of this thread."""
    _groups.depth, _groups.calls = 0, []


@contextlib.contextmanager
def group() -> Iterator[None]:
    """Record the calls of a block, and move their tensors together at its end.

    The tensors of a group are planned as one reshard. All ranks make the same calls in it.
    """
    group_start()
    try:
        yield
    except BaseException:
        group_abort()
        raise
    group_end()


# ---- calls ----


def _local(tensor: Any, name: str) -> torch.Tensor | None:
    """Return the memory of a rank's part."""
    local = getattr(tensor, "_local_tensor", tensor)
    if local is None or isinstance(local, torch.Tensor):
        return local
    if not isinstance(local, int):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            return torch.as_tensor(local)  # CUDA Array Interface, or NumPy
    raise TypeError(
        f"{name}: a tensor, an object with _local_tensor or a CUDA array is needed, not "
        f"{type(tensor).__name__}"
    )


def _mine(rank: int, tensor: torch.Tensor | None, side: Side, name: str) -> torch.Tensor | None:
    """Return the tensor of a rank in the mesh, and None for another one."""
    if rank in side.ranks:
        if tensor is None:
            raise ValueError(f"{name} is None, but rank {rank} is in {name}_mesh")
        return tensor
    if tensor is not None and tensor.numel() > 0:
        raise ValueError(f"{name} is given, but rank {rank} is not in {name}_mesh")
    return None


def _call(
    rank: int,
    members: Collection[int],
    tensors: tuple[Any, Any],
    meshes: tuple[Any, Any],
    placements: tuple[Any, Any],
    shape: Sequence[int] | None,
) -> _Call:
    """Read the arguments of a call. ``shape`` None: it follows from the parts."""
    given = _local(tensors[0], "src"), _local(tensors[1], "dst")
    whole = None if shape is None else tuple(int(extent) for extent in shape)
    ndims = {one.dim() for one in given if one is not None}
    ndims |= {len(whole)} if whole is not None else set()
    if len(ndims) > 1:
        raise ValueError(f"src, dst and their whole have {sorted(ndims)} dimensions")
    ndim = next(iter(ndims), None)
    sides = (
        read_side(meshes[0], placements[0], ndim, "src"),
        read_side(meshes[1], placements[1], ndim, "dst"),
    )
    for name, side in zip(("src", "dst"), sides, strict=True):
        for one in side.ranks:
            if one not in members:
                raise ValueError(
                    f"{name}_mesh has rank {one}, which is not one of the {len(members)} ranks"
                )
    local = (_mine(rank, given[0], sides[0], "src"), _mine(rank, given[1], sides[1], "dst"))
    if whole is None:
        found = {s.whole(t.shape) for s, t in zip(sides, local, strict=True) if t is not None}
        if len(found) > 1:
            raise ValueError(
                f"src and dst are parts of tensors of the shapes {sorted(found)}: give "
                "global_shape, if parts are uneven"
            )
        whole = found.pop() if found else None
    return _Call(local, whole, sides)


def _submit(comm: Any, stream: Any, read: _Reader) -> None:
    """Run or record a call. A call that cannot be read raises on all ranks."""
    world, ranks = world_and_ranks(comm)
    if _groups.depth > 0:
        _groups.calls.append((world, ranks, read, stream))
    else:
        _run(world, ranks, [read], stream)


def _require_no_handle(handle: Any) -> None:
    if handle is not None:
        raise ValueError("handle: Banyan has no handles; a world keeps the plans")


def _whole_shape(tensors: Sequence[Any]) -> Sequence[int] | None:
    """Return the shape of the whole tensor that the parts give; None: they do not."""
    shapes = {tuple(one.shape) for one in tensors}
    if len(shapes) > 1:
        raise ValueError(f"src and dst have the shapes {sorted(map(list, shapes))}")
    return shapes.pop() if shapes else None


def _check_given(name: str, tensor: Any, shape: Sequence[int] | None, dtype: Any) -> None:
    """Raise if the shape and the type that are given are not those of the tensor."""
    if tensor is None or isinstance(tensor, int):
        return
    if shape is not None and list(shape) != list(tensor.shape):
        raise ValueError(
            f"{name}_local_shape is {list(shape)}, but {name} has the shape {list(tensor.shape)}"
        )
    if dtype is not None and str(dtype).removeprefix("torch.") not in str(tensor.dtype):
        raise ValueError(f"{name}_dtype is {dtype}, but {name} has {tensor.dtype}")


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
    handle: None = None,
    global_shape: Sequence[int] | None = None,
) -> None:
    """Move a tensor from the parts of ``src_mesh`` to those of ``dst_mesh``. Collective over comm.

    ``src``, ``dst``: this rank's parts, on the host or a GPU, with any strides; None where the rank
    is not in that side's mesh. ``comm``: a World, a process group of ``torch.distributed`` (None:
    the default group), or a communicator that ``attach`` knows. Meshes are lists of ranks, nested
    to their shape, or objects with ``.mesh``; their ranks are those of the world, and of
    ``torch.distributed`` with a process group. Placements are Shard and Replicate of PyTorch or of
    nccl.m2n, or dimensions; axes of a mesh divide in order, as torch.chunk does. Every rank of comm
    passes both meshes and both placements.

    The shape of the tensor follows from the parts if these are even. Else every rank that has a
    part passes ``global_shape``. ``src_local_shape`` and so on are those of nccl.m2n, and must
    agree with the tensors; ``handle`` is None.

    On a GPU the transfers are queued in ``stream``; None: the current one. The first call with a
    shape, type, meshes and placements plans, and later ones run the plan again. The world keeps the
    last 256 plans, and with each the tensors of its last run.

    Raises on every rank, before anything moves: ValueError and TypeError (a part has another
    shape, a mesh another number of axes; the message has both), banyan.Mismatch (the ranks make
    different calls).
    """

    def read(rank: int, members: Collection[int]) -> _Call:
        _require_no_handle(handle)
        _check_given("src", src, src_local_shape, src_dtype)
        _check_given("dst", dst, dst_local_shape, dst_dtype)
        return _call(
            rank,
            members,
            (src, dst),
            (src_mesh, dst_mesh),
            (src_placements, dst_placements),
            global_shape,
        )

    _submit(comm, stream, read)


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
    handle: None = None,
) -> None:
    """Move a DTensor to another one, as ``reshard`` does. Collective over comm.

    Meshes and placements of DTensors need not be given, except on ranks where that side is None.
    """

    def read(rank: int, members: Collection[int]) -> _Call:
        _require_no_handle(handle)
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
        )

    _submit(comm, stream, read)


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
    _submit(
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
