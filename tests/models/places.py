"""Contents of a runtime parameter, as numbers of checkpoint elements, and its digest.

The elements of all checkpoint tensors are numbered from 1 on, tensor by tensor in the order of
their names, each in row-major order. A parameter's places are one number for each of its elements:
that of the checkpoint element that fills it, ZERO where zeros are written, UNTOUCHED where nothing
is. Where a place holds -exp of element n its number is -1 - n, below UNTOUCHED. This module needs nothing but Python, as the ordinary tests use it.
"""

from __future__ import annotations

import array
import dataclasses
import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

UNTOUCHED = -1
ZERO = 0

NEGATIVE_EXP = "negative_exp"  # the value map of such places

Shapes = Mapping[str, Sequence[int]]


@dataclasses.dataclass(frozen=True)
class Parameter:
    dtype: str  # as safetensors names it
    shape: tuple[int, ...]
    places: array.array[int]  # of type "i", row-major

    def digest(self) -> str:
        text = f"{self.dtype} {list(self.shape)} "
        return hashlib.sha256(text.encode() + self.places.tobytes()).hexdigest()


def first_numbers(shapes: Shapes) -> dict[str, int]:
    """The number of each tensor's first element."""
    names = sorted(shapes)
    sizes = [math.prod(shapes[name]) for name in names]
    return dict(zip(names, itertools.accumulate(sizes, initial=1)))


def strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[d + 1 :]) for d in range(len(shape))]


def rows(shape: Sequence[int], start: Sequence[int], extent: Sequence[int]) -> Iterator[int]:
    """Where each row of a box begins in a row-major tensor; a row runs along the last dimension."""
    steps = strides(shape)
    ranges = [range(s, s + e) for s, e in zip(start[:-1], extent[:-1])]
    for at in itertools.product(*ranges):
        yield sum(a * step for a, step in zip([*at, *start[-1:]], steps))


def fill_piece(
    places: array.array[int], shape: Sequence[int], piece: dict[str, Any], first: int
) -> None:
    """Enter one piece of a layout file's tensor of this shape."""
    extent, dims = piece["extent"], len(shape)
    dim_map = piece.get("dim_map", list(range(len(extent))))
    local_start = piece.get("local_start", [0] * dims)
    steps = strides(piece["shape"])
    local_extent, local_steps = [1] * dims, [0] * dims
    for d, k in enumerate(dim_map):
        if k < 0:  # the tensor has no such dimension
            continue
        local_extent[k], local_steps[k] = extent[d], steps[d]
    origin = first + sum(s * step for s, step in zip(piece["start"], steps))
    length, step = (local_extent[-1], local_steps[-1] or 1) if dims else (1, 1)
    outer = itertools.product(*(range(e) for e in local_extent[:-1]))
    for begin, at in zip(rows(shape, local_start, local_extent), outer):
        source = origin + sum(a * s for a, s in zip(at, local_steps))
        if places[begin : begin + length] != array.array("i", [UNTOUCHED]) * length:
            raise ValueError(f"two pieces fill a place: {piece}")
        numbers = range(source, source + length * step, step)
        if piece.get("map") == NEGATIVE_EXP:
            numbers = range(UNTOUCHED - source, UNTOUCHED - source - length * step, -step)
        places[begin : begin + length] = array.array("i", numbers)


def parameter_of(tensor: dict[str, Any], shapes: Shapes, first: Mapping[str, int]) -> Parameter:
    """The places that a layout file's tensor declares."""
    shape = tensor["shape"]
    places = array.array("i", [UNTOUCHED]) * math.prod(shape)
    for piece in tensor["pieces"]:
        if list(shapes[piece["tensor"]]) != piece["shape"]:
            raise ValueError(f"{tensor['name']}: {piece['tensor']} has another shape: {piece}")
        fill_piece(places, shape, piece, first[piece["tensor"]])
    for padding in tensor.get("padding", []):
        length = padding["extent"][-1]
        for begin in rows(shape, padding["start"], padding["extent"]):
            places[begin : begin + length] = array.array("i", [ZERO]) * length
    return Parameter(tensor["dtype"], tuple(shape), places)


def ranks_of(layout: dict[str, Any], shapes: Shapes) -> list[dict[str, Parameter]]:
    """The parameters of each rank that a layout file describes."""
    first = first_numbers(shapes)
    held: dict[int, dict[str, Parameter]] = {}
    for group in layout["ranks"]:
        made = {t["name"]: parameter_of(t, shapes, first) for t in group["tensors"]}
        held |= {rank: made for rank in group["ranks"]}
    return [held[rank] for rank in sorted(held)]


def digests(ranks: Sequence[Mapping[str, Parameter]]) -> dict[str, str]:
    """For each parameter its type, its shape on rank 0, and a digest of what all ranks hold."""
    told = {}
    for name in sorted(set().union(*ranks)):
        held = [rank[name].digest() if name in rank else "" for rank in ranks]
        digest = hashlib.sha256(" ".join(held).encode()).hexdigest()[:16]
        parameter = next(rank[name] for rank in ranks if name in rank)
        told[name] = f"{parameter.dtype} {list(parameter.shape)} {digest}"
    return told


def differences(
    learned: Mapping[str, Parameter], ours: Mapping[str, Parameter], shapes: Shapes
) -> list[str]:
    """How Banyan's parameters of a rank differ from the learned ones, in words."""
    told = [f"{name} is missing" for name in learned if name not in ours]
    told += [f"{name} is not vLLM's" for name in ours if name not in learned]
    for name in learned.keys() & ours.keys():
        theirs, own = learned[name], ours[name]
        if (theirs.dtype, theirs.shape) != (own.dtype, own.shape):
            told.append(f"{name} is {theirs.dtype}{theirs.shape}, and here {own.dtype}{own.shape}")
        elif theirs != own:
            at = next(i for i, (a, b) in enumerate(zip(theirs.places, own.places)) if a != b)
            told.append(
                f"{name}, element {at}: {source_of(theirs.places[at], shapes)}, "
                f"and here {source_of(own.places[at], shapes)}"
            )
    return sorted(told)


def source_of(place: int, shapes: Shapes) -> str:
    """A place in words: the tensor and the element's coordinates."""
    if place < UNTOUCHED:
        return f"-exp of {source_of(UNTOUCHED - place, shapes)}"
    if place <= ZERO:
        return "zero" if place == ZERO else "untouched"
    first = first_numbers(shapes)
    name = max((n for n in first if first[n] <= place), key=lambda n: (first[n], n))
    at, index = place - first[name], []
    for step in strides(shapes[name]):
        index.append(at // step)
        at %= step
    return f"{name}{index}"
