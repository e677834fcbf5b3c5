"""Runs of calls: read on each rank, agreed on by all, planned once and kept."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

from ... import Box, Invalid, Layout, Mismatch, Reshard, World
from ..._reshard import agree
from ...torch._reshard import count_changes
from ._geometry import DIGEST_BYTES, Side, box, digest

#: Plans that a world keeps of these calls.
MAX_KEPT = 256

#: Number of the default handle.
DEFAULT = 0

_UNKNOWN, _COUNT_BYTES = bytes(DIGEST_BYTES), 4
#: Digests of a call: meshes, shape with placements, type.
_DIGESTS = 3
_KINDS = {"cpu": 1, "cuda": 2}


class Call(NamedTuple):
    """A tensor to move, as a rank sees it."""

    tensors: tuple[torch.Tensor | None, torch.Tensor | None]  # local ones
    shape: tuple[int, ...] | None  # of the whole tensor; None: this rank does not know it
    dtype: torch.dtype | None  # None: this rank does not know it
    sides: tuple[Side, Side]
    handle: int = DEFAULT

    @property
    def device(self) -> torch.device | None:
        """The device of the local tensors. None: this rank has none."""
        return next((one.device for one in self.tensors if one is not None), None)


#: Reads the arguments of a call on a rank. The second argument has the ranks that meshes may have.
Reader: TypeAlias = Callable[[int, Collection[int]], Call]


class _Kept:
    """A plan for calls of the same geometry, kept for the handles that used it.

    Without any it is closed, and no call finds it. It stays in the world's list: ranks release
    their handles at different times, and number their plans alike.
    """

    def __init__(self, key: bytes, kind: int, reshard: Reshard) -> None:
        self.key, self._kind = key, kind
        self.handles: set[int] = set()
        self._reshard = reshard
        _all.add(self)

    def fits(self, key: bytes, kind: int) -> bool:
        """True for calls with this key. ``kind`` 0: this rank has no tensors."""
        return self.key == key and kind in (0, self._kind)

    def run(self, tensors: Sequence[list[Any] | None], stream: Any) -> None:
        self._reshard(tensors[0], tensors[1], stream=stream)

    def close(self) -> None:
        self.key = b""
        self._reshard.close()


_all: weakref.WeakSet[_Kept] = weakref.WeakSet()


def release(handle: int) -> None:
    """Close the plans that only this handle used. Local."""
    for one in list(_all):
        if handle in one.handles:
            one.handles.remove(handle)
            if not one.handles:
                one.close()


def mine(
    rank: int,
    members: Collection[int],
    tensors: tuple[torch.Tensor | None, torch.Tensor | None],
    sides: tuple[Side, Side],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the tensors of a rank's sides, and None for a side that it is not in."""
    found: list[torch.Tensor | None] = []
    for name, side, tensor in zip(("src", "dst"), sides, tensors, strict=True):
        for one in side.ranks:
            if one not in members:
                raise ValueError(
                    f"{name}_mesh has rank {one}, which is not one of the {len(members)} ranks"
                )
        if rank in side.ranks and tensor is None:
            raise ValueError(f"{name} is None, but rank {rank} is in {name}_mesh")
        if rank not in side.ranks and tensor is not None and tensor.numel() > 0:
            raise ValueError(f"{name} is given, but rank {rank} is not in {name}_mesh")
        found.append(tensor if rank in side.ranks else None)
    return found[0], found[1]


def _check(call: Call, rank: int) -> None:
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
        if tensor.dtype != call.dtype:
            raise ValueError(f"{name} has {tensor.dtype} on rank {rank}, but its call {call.dtype}")


def _layout(calls: Sequence[Call], which: int, rank: int) -> Layout | None:
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
    """Return the bytes of the key of some calls: their number, and the digests of each."""
    return _COUNT_BYTES + _DIGESTS * DIGEST_BYTES * count


def _require_equal(world: World, words: Sequence[bytes], calls: Sequence[Call]) -> None:
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
    number = next(i // _DIGESTS for i, one in enumerate(known) if len(one) > 1)
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


def run(
    world: World,
    ranks: Mapping[int, int] | None,
    readers: Sequence[Reader],
    stream: Any,
) -> None:
    """Move the tensors of some calls together, by a plan of their handles. Collective."""
    rank = world.rank
    calls: list[Call] = []
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
            key += _UNKNOWN if call.shape is None else digest((call.shape, dims))
            key += _UNKNOWN if call.dtype is None else digest(call.dtype)
        fitting = [i for i, one in plans.items() if isinstance(one, _Kept) and one.fits(key, kind)]
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
        made = Reshard(layouts[0], layouts[1], world, device=on, progress=None)
        kept = _Kept(key, max(kinds, default=0), made)
    kept.handles.update(call.handle for call in calls)
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
