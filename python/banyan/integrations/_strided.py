"""Copies between strided views, as boxes: the geometry of what a loader does.

A frame is a tensor as its owner declares it: shape, and strides in elements. A loader copies
between views of frames, which may cut, transpose, merge and repeat dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .. import Unsupported

#: Boxes into which one copy may fall apart.
MAX_PATCHES = 65536


class Frame(NamedTuple):
    """A tensor in a storage: where it begins, its shape and its strides, in elements."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def end(self) -> int:
        """Offset behind the last element."""
        steps = zip(self.shape, self.strides, strict=True)
        return self.offset + 1 + sum((n - 1) * step for n, step in steps)

    def locate(self, offset: int) -> list[int]:
        """Return the coordinates of the element at an offset in the storage."""
        at, left = [0] * len(self.shape), offset - self.offset
        for step, d in sorted(((s, d) for d, s in enumerate(self.strides)), reverse=True):
            if self.shape[d] > 1:
                at[d], left = divmod(left, step)
        return at

    def dim(self, stride: int) -> int | None:
        """Return the dimension with a stride. None: no dimension has it."""
        for d, step in enumerate(self.strides):
            if step == stride and self.shape[d] > 1:
                return d
        return None


class Patch(NamedTuple):
    """A box that moves from one frame to another.

    ``dims``: for each dimension with more than one element its extent, and its number in the two
    frames. The other dimensions have one element.
    """

    to_start: tuple[int, ...]
    from_start: tuple[int, ...]
    dims: tuple[tuple[int, int, int], ...]


#: A dimension of a copy: extent, stride in the destination, stride in the source.
_Dim = tuple[int, int, int]
_Frames = tuple[Frame, Frame]


def _merge(dims: list[_Dim]) -> list[_Dim]:
    """Merge the dimensions that are contiguous on both sides."""
    merged: list[_Dim] = []
    for n, to, source in sorted(dims, key=lambda dim: (dim[1], dim[2])):
        if merged and (to, source) == (
            merged[-1][0] * merged[-1][1],
            merged[-1][0] * merged[-1][2],
        ):
            merged[-1] = (merged[-1][0] * n, *merged[-1][1:])
        else:
            merged.append((n, to, source))
    return merged


def _patches(offsets: tuple[int, int], dims: list[_Dim], frames: _Frames) -> Iterator[Patch]:
    starts = [frame.locate(offset) for frame, offset in zip(frames, offsets, strict=True)]
    found: list[list[int]] = []
    for i, (n, *strides) in enumerate(dims):
        place: list[int] = []
        lengths: list[int] = []
        for side, frame in enumerate(frames):
            d = frame.dim(strides[side])
            if d is None or any(d == other[side] for other in found):
                lengths = [1] * n
                break
            start, extent = starts[side][d], frame.shape[d]
            if start + n <= extent:
                place.append(d)
            elif start > 0 or n % extent > 0:
                lengths = [extent - start if start > 0 else n - n % extent]
                lengths.append(n - lengths[0])
                break
            else:  # it goes on in the frame's next dimension
                inner = (extent, strides[0], strides[1])
                outer = (n // extent, extent * strides[0], extent * strides[1])
                yield from _patches(offsets, [*dims[:i], inner, outer, *dims[i + 1 :]], frames)
                return
        if not lengths:
            found.append(place)
            continue
        first = 0
        for length in lengths:
            at = (offsets[0] + first * strides[0], offsets[1] + first * strides[1])
            kept = [(length, strides[0], strides[1])] if length > 1 else []
            yield from _patches(at, [*dims[:i], *kept, *dims[i + 1 :]], frames)
            first += length
        return
    numbers = tuple((dim[0], place[0], place[1]) for dim, place in zip(dims, found, strict=True))
    yield Patch(tuple(starts[0]), tuple(starts[1]), numbers)


def patches(
    to_view: Frame, to_frame: Frame, from_view: Frame, from_frame: Frame
) -> Iterator[Patch]:
    """Yield the boxes of a copy from one view to another of the same shape.

    Each view lies in its frame. Raise Unsupported if there are more than 65,536 boxes.
    """
    strides = zip(to_view.shape, to_view.strides, from_view.strides, strict=True)
    dims = _merge([dim for dim in strides if dim[0] > 1])
    made = _patches((to_view.offset, from_view.offset), dims, (to_frame, from_frame))
    for count, patch in enumerate(made):
        if count == MAX_PATCHES:
            raise Unsupported(f"a copy falls apart into more than {MAX_PATCHES} boxes")
        yield patch


Box = tuple[tuple[int, ...], tuple[int, ...]]  # start, extent


def intersect(a: Box, b: Box) -> Box | None:
    """Return the common elements of two boxes, or None."""
    start = tuple(map(max, a[0], b[0]))
    end = [min(s + e, t + f) for s, e, t, f in zip(*a, *b, strict=True)]
    if any(e <= s for s, e in zip(start, end, strict=True)):
        return None
    return start, tuple(e - s for s, e in zip(start, end, strict=True))


def subtract(a: Box, b: Box) -> list[Box]:
    """Return the elements of ``a`` that are not in ``b``, as disjoint boxes."""
    common = intersect(a, b)
    if common is None:
        return [a]
    left: list[Box] = []
    start, extent = list(a[0]), list(a[1])
    for d, (low, length) in enumerate(zip(*common, strict=True)):
        end = start[d] + extent[d]
        for first, last in ((start[d], low), (low + length, end)):
            if last > first:
                box = ([*start], [*extent])
                box[0][d], box[1][d] = first, last - first
                left.append((tuple(box[0]), tuple(box[1])))
        start[d], extent[d] = low, length
    return left
