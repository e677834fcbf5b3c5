"""Write what the oracle learned as a layout file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from places import NEGATIVE_EXP, UNTOUCHED, ZERO, Parameter, Shapes, first_numbers, strides

Numbers = npt.NDArray[np.int32]
Box = tuple[list[int], list[int]]  # start, extent


def grow(start: Sequence[int], shape: Sequence[int], holds: Any) -> Box:
    """The largest box from `start`, dimension by dimension from the last, for which holds(box)."""
    extent = [1] * len(shape)
    for d in reversed(range(len(shape))):
        low, high = 1, shape[d] - start[d]
        while low < high:  # what holds for a box holds for the boxes in it
            extent[d] = (low + high + 1) // 2
            if holds((list(start), extent)):
                low = extent[d]
            else:
                high = extent[d] - 1
        extent[d] = low
    return list(start), extent


def view(numbers: Numbers, box: Box) -> Numbers:
    return numbers[tuple(slice(s, s + e) for s, e in zip(*box))]


def steps_at(numbers: Numbers, at: Sequence[int], steps: Sequence[int]) -> list[int]:
    """How far a source number moves with each local dimension; 0 where it leaves the pattern."""
    found = []
    for d in range(numbers.ndim):
        after = list(at)
        after[d] += 1
        inside = after[d] < numbers.shape[d] and numbers[tuple(after)] > ZERO
        step = int(numbers[tuple(after)] - numbers[tuple(at)]) if inside else 0
        found.append(step if step in steps else 0)
    return found


def equal_box(numbers: Numbers, done: Any, at: list[int]) -> Box:
    """The largest box from a place on that holds only its number."""
    place = numbers[tuple(at)]

    def holds(box: Box) -> bool:
        return bool(((view(numbers, box) == place) & ~view(done, box)).all())

    return grow(at, numbers.shape, holds)


class Decomposition:
    """Pieces, padding and what is left alone, that together make up one parameter."""

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self.first = first_numbers(shapes)
        self.names = sorted(self.first, key=lambda n: self.first[n])
        self.starts = np.array([self.first[n] for n in self.names])

    def boxes(self, parameter: Parameter) -> dict[str, Any]:
        numbers = np.frombuffer(parameter.places, np.int32).reshape(parameter.shape).copy()
        parts: dict[str, Any] = {"pieces": []}
        is_mapped = bool((numbers < UNTOUCHED).any())
        if is_mapped:
            assert (numbers < UNTOUCHED).all(), "a value map of a part of a parameter"
            numbers = UNTOUCHED - numbers
        done = np.zeros(parameter.shape, bool)
        while not done.all():
            at = [int(i) for i in np.unravel_index(int(np.argmin(done)), parameter.shape)]
            place = int(numbers[tuple(at)])
            if place > ZERO:
                box, piece = self.piece(numbers, done, at)
                piece |= {"map": NEGATIVE_EXP} if is_mapped else {}
                parts["pieces"].append(piece)
            else:
                box = equal_box(numbers, done, at)
                key = "left_alone" if place == UNTOUCHED else "padding"
                parts.setdefault(key, []).append({"start": box[0], "extent": box[1]})
            view(done, box)[...] = True
        return parts

    def piece(self, numbers: Numbers, done: Any, at: list[int]) -> tuple[Box, dict[str, Any]]:
        """The largest piece from a place on."""
        place = int(numbers[tuple(at)])
        name = self.names[int(np.searchsorted(self.starts, place, "right")) - 1]
        shape = list(self.shapes[name])
        steps = strides(shape)
        origin = [int(i) for i in np.unravel_index(place - self.first[name], shape)]
        local_steps = steps_at(numbers, at, [s for s, e in zip(steps, shape) if e > 1])
        limit = list(numbers.shape)
        source_dims: dict[int, int] = {}  # local dimension → the tensor's
        for k, step in enumerate(local_steps):
            wide = [d for d, e in enumerate(shape) if steps[d] == step and e > 1]
            if step and wide:
                source_dims[k] = wide[0]
                limit[k] = min(limit[k], at[k] + shape[wide[0]] - origin[wide[0]])
            else:
                limit[k] = at[k] + 1

        def holds(box: Box) -> bool:
            expected = np.full(box[1], place, np.int64)
            for k, step in enumerate(local_steps):
                along = [1] * numbers.ndim
                along[k] = box[1][k]
                expected += (np.arange(box[1][k]) * step).reshape(along)
            return bool(((view(numbers, box) == expected) & ~view(done, box)).all())

        box = grow(at, limit, holds)
        return box, self.describe(name, shape, origin, box, source_dims)

    def describe(
        self, name: str, shape: list[int], origin: list[int], box: Box, source_dims: dict[int, int]
    ) -> dict[str, Any]:
        """A piece of a layout file."""
        dim_map = {d: k for k, d in source_dims.items()}
        free = [k for k in range(len(box[0])) if k not in source_dims]
        for d in range(len(shape)):
            if d not in dim_map:
                keep = d + len(box[0]) - len(shape)
                dim_map[d] = keep if keep in free else free[-1] if free else -1
                free = [k for k in free if k != dim_map[d]]
        return {
            "tensor": name,
            "shape": shape,
            "start": origin,
            "extent": [box[1][dim_map[d]] if dim_map[d] >= 0 else 1 for d in range(len(shape))],
            "local_start": box[0],
            "dim_map": [dim_map[d] for d in range(len(shape))],
        }


def whole_file(tensors: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A layout file of one rank that holds the whole checkpoint as it is."""
    held = [
        {"name": name, **tensor, "pieces": [whole_piece(name, tensor["shape"])]}
        for name, tensor in tensors.items()
    ]
    return {"format": "banyan.layout", "version": 1, "ranks": [{"ranks": [0], "tensors": held}]}


def whole_piece(name: str, shape: Sequence[int]) -> dict[str, Any]:
    return {"tensor": name, "shape": shape, "start": [0] * len(shape), "extent": shape}


def layout_file(ranks: Sequence[Mapping[str, Parameter]], shapes: Shapes) -> dict[str, Any]:
    """A layout file of what each rank holds."""
    decomposition = Decomposition(shapes)
    described = []
    for number, rank in enumerate(ranks):
        tensors = [
            {"name": n, "dtype": p.dtype, "shape": list(p.shape), **decomposition.boxes(p)}
            for n, p in rank.items()
        ]
        described.append({"ranks": [number], "tensors": tensors})
    return {"format": "banyan.layout", "version": 1, "ranks": described}
