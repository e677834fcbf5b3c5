"""Names of a model's tensors in its checkpoint, where they differ from those in memory.

Transformers 5 keeps the experts of a layer in one tensor, and saves them one by one. Its own
conversion runs once on tensors without memory, and tells which elements become which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from .. import Box, Layout, Unsupported
from ._contents import Source, frame_of
from ._recorder import Recorder

#: Returns the tensors of the checkpoint for those of the model, by name.
Convert = Callable[[dict[str, Tensor]], Mapping[str, Tensor]]


class _Target(NamedTuple):
    """A box of a tensor of the model, in a tensor of the checkpoint."""

    name: str
    shape: tuple[int, ...]
    start: tuple[int, ...]  # of the box there
    of: Box  # in the model's tensor
    dims: tuple[int | None, ...]  # of each dimension there: that of the model's tensor


def _targets(
    convert: Convert, shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
) -> dict[str, list[_Target]]:
    """Return where the elements of each tensor of the model are in the checkpoint."""
    recorder = Recorder()
    given = {name: recorder.add_checkpoint(name, *kind) for name, kind in shapes.items()}
    with torch.no_grad(), recorder:
        made = dict(convert(given))
    targets: dict[str, list[_Target]] = {}
    for name, tensor in made.items():
        for part in recorder.read(tensor, frame_of(tensor)):
            value = part.value
            if not isinstance(value, Source) or value.steps != (tensor.dtype,):
                raise Unsupported(f'"{name}" of the checkpoint is computed from the model')
            extent = [1] * len(value.start)
            for elems, d in zip(part.box[1], value.dims, strict=True):
                if d is not None:
                    extent[d] = elems
            of = Box(value.start, extent)
            shape = tuple(tensor.shape)
            targets.setdefault(value.name, []).append(
                _Target(name, shape, part.box[0], of, value.dims)
            )
    return targets


def checkpoint_layout(layout: Layout, convert: Convert) -> Layout:
    """Return a layout of the same memory, with the names of the checkpoint.

    ``layout``: of the model's tensors, with their names. ``convert``: makes the checkpoint's
    tensors of the model's by views and copies, as transformers' ``revert_weight_conversion``.
    Local. Raises Unsupported if an element is computed.
    """
    locals_, pieces = layout.tensors, layout.pieces
    kinds = {p.name: (getattr(torch, locals_[p.tensor].dtype), p.shape) for p in pieces}
    targets = _targets(convert, kinds)
    made = Layout()
    made.add_tensors(
        [one.name for one in locals_],
        [one.dtype for one in locals_],
        [one.shape for one in locals_],
    )
    for piece in pieces:
        for target in targets.get(piece.name, ()):
            common = piece.box.intersect(target.of)
            if common is None:
                continue
            start, extent = list(target.start), [1] * len(target.start)
            dim_map: list[int | None] = [None] * len(target.start)
            for k, d in enumerate(target.dims):
                if d is not None:
                    start[k] += common.start[d] - target.of.start[d]
                    extent[k], dim_map[k] = common.extent[d], piece.dim_map[d]
            local_start = list(piece.local_start)
            for d, at in enumerate(piece.dim_map):
                if at is not None:
                    local_start[at] += common.start[d] - piece.box.start[d]
            made.add_piece(
                piece.tensor,
                target.name,
                target.shape,
                Box(start, extent),
                local_start=local_start,
                dim_map=dim_map,
                replicas=piece.replicas or None,
            )
    return made
