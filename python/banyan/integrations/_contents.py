"""What tensors hold while a loader runs: boxes of checkpoint tensors, constants, opaque values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._strided import Box, Frame, intersect, subtract


class Source(NamedTuple):
    """Elements of a checkpoint tensor.

    ``dims``: for each dimension of the box, that of the checkpoint tensor, or None (one element).
    ``steps``: the tensor's type, then each type that the elements were cast to, and "exp", "neg".
    """

    name: str
    start: tuple[int, ...]
    dims: tuple[int | None, ...]
    steps: tuple[Any, ...]


class Constant(NamedTuple):
    """One value for all elements."""

    value: float | int | bool


class Opaque(NamedTuple):
    """Values that cannot be followed, and the reason."""

    reason: str
    names: tuple[str, ...]


Value = Source | Constant | Opaque


class Part(NamedTuple):
    """A box of a tensor, and what it holds."""

    box: Box
    value: Value


@dataclasses.dataclass(eq=False)
class Node:
    """A tensor whose content is followed: its parts, in the order in which they were written."""

    frame: Frame
    dtype: torch.dtype
    storage: Any  # kept, so that its address stays its own
    parts: list[Part] = dataclasses.field(default_factory=list)
    is_made: bool = False  # by the loader; it holds nothing of the model's own
    initial: Tensor | None = None  # what it held before the first write, if the loader made it
    is_settled: bool = True  # no part overlaps another

    def settle(self) -> list[Part]:
        """Return disjoint parts: a later write replaces what was there."""
        if not self.is_settled:
            self.parts = [
                Part(box, part.value)
                for part, boxes in _visible([part.box for part in self.parts], self.parts)
                for box in boxes
            ]
            self.is_settled = True
        return self.parts


def _overlaps(boxes: Sequence[Box]) -> Iterator[tuple[int, int]]:
    """Yield the pairs (earlier, later) of boxes that have common elements."""
    active: list[int] = []
    for i in sorted(range(len(boxes)), key=lambda i: boxes[i][0][:1]):
        at = boxes[i][0][:1]
        active = [j for j in active if not at or boxes[j][0][0] + boxes[j][1][0] > at[0]]
        for j in active:
            if intersect(boxes[i], boxes[j]) is not None:
                yield min(i, j), max(i, j)
        active.append(i)


def _visible(boxes: Sequence[Box], parts: Sequence[Part]) -> Iterator[tuple[Part, list[Box]]]:
    """Yield each part with the boxes of it that no later part covers."""
    later: dict[int, list[int]] = {}
    for i, j in _overlaps(boxes):
        later.setdefault(i, []).append(j)
    for i, part in enumerate(parts):
        left = [part.box]
        for j in later.get(i, ()):
            left = [rest for box in left for rest in subtract(box, boxes[j])]
        if left:
            yield part, left


def overwritten(parts: Sequence[Part]) -> Iterator[tuple[Part, Part]]:
    """Yield the pairs of parts of which the later overwrites elements of the earlier."""
    for i, j in _overlaps([part.box for part in parts]):
        yield parts[i], parts[j]


def frame_of(tensor: Tensor) -> Frame:
    """Return the frame that a tensor is."""
    return Frame(int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride())


def _keeps(dtype: torch.dtype, types: Sequence[torch.dtype]) -> bool:
    """True if each of the types holds every value of ``dtype``."""
    try:
        return all(step == dtype or torch.promote_types(dtype, step) == step for step in types)
    except RuntimeError:  # there is no promotion for 8-bit types
        return False


def simplify(steps: tuple[Any, ...]) -> str | None:
    """Return the map of a chain of steps: "" for a copy or cast, "negative_exp". None: neither."""
    maps = tuple(step for step in steps if isinstance(step, str))
    if not maps:  # one cast to the last type gives the same
        return "" if _keeps(steps[0], steps[1:-1]) else None
    if maps != ("exp", "neg"):
        return None
    before = steps[: steps.index("exp")]
    after = [step for step in steps[len(before) :] if not isinstance(step, str)]
    is_exact = before[-1] == torch.float32 and _keeps(before[0], before[1:])
    return "negative_exp" if is_exact and set(after[:-1]) <= {torch.float32} else None


def moved(part: Part, box: Box, patch: Any) -> Part:
    """Return a box of a part, where a patch moves it."""
    to_start, extent = list(patch.to_start), [1] * len(patch.to_start)
    for _, to, source in patch.dims:
        to_start[to] += box[0][source] - patch.from_start[source]
        extent[to] = box[1][source]
    value = part.value
    if isinstance(value, Source):
        start = list(value.start)
        for at, begin, d in zip(box[0], part.box[0], value.dims, strict=True):
            if d is not None:
                start[d] += at - begin
        dims: list[int | None] = [None] * len(to_start)
        for _, to, source in patch.dims:
            dims[to] = value.dims[source]
        value = value._replace(start=tuple(start), dims=tuple(dims))
    return Part((tuple(to_start), tuple(extent)), value)


def cast(value: Value, dtype: torch.dtype) -> Value:
    """Return a value after a cast."""
    if isinstance(value, Constant):
        return Constant(torch.tensor(value.value).to(dtype).item())
    if isinstance(value, Source) and value.steps[-1] != dtype:
        return value._replace(steps=(*value.steps, dtype))
    return value


def unwritten(node: Node, box: Box) -> Value:
    """Return what a box of a node holds that nothing was written to."""
    if not node.is_made:
        return Opaque("the model's own initial values", ())
    if node.initial is None:
        return Opaque("uninitialized memory", ())
    return content(node.initial[tuple(slice(s, s + e) for s, e in zip(*box, strict=True))])


def content(tensor: Tensor) -> Value:
    """Return what a tensor of the loader's own holds: one value for all elements, or opaque."""
    if tensor.is_meta:
        return Opaque("uninitialized memory", ())
    if tensor.dtype.itemsize == 1 and tensor.is_floating_point():
        tensor = tensor.float()
    first = tensor.flatten()[0]
    if bool((tensor == first).all()) or bool(tensor.isnan().all()):
        return Constant(first.item())
    return Opaque("values that the loader makes", ())
