"""Learns a layout from a model's own loader.

An engine's loader decides which elements of a checkpoint become which elements of its parameters:
it fuses, cuts, transposes, pads and casts. ``learn`` runs it once with tensors that have no memory,
and follows every view and copy. Values that the loader computes are refused by name.
``_verify.verify`` compares the result with what the loader does to random values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .. import Box, Layout, Unsupported, dtype_bytes
from .._errors import NotFound
from ._contents import Constant, Node, Opaque, Part, Source, overwritten, simplify
from ._contents import frame_of as _frame_of
from ._recorder import Recorder

#: Types and shapes of a checkpoint's tensors, by name.
Checkpoint = Mapping[str, tuple[torch.dtype, Sequence[int]]]
#: A model's own loading function. It takes pairs of names and tensors.
Load = Callable[[Iterable[tuple[str, Tensor]]], object]

_CASTS = {torch.float32, torch.float16, torch.bfloat16}


@dataclasses.dataclass(frozen=True)
class Learned:
    """What a loader does with a checkpoint, on one rank."""

    layout: Layout
    """Layout of the parameters, and of the buffers that the loader writes, as a destination."""
    left_alone: tuple[str, ...]
    """Parameters and buffers that take nothing of the checkpoint. Parameters are in the layout, as
    left alone or as a constant; buffers are not."""
    unused: tuple[str, ...]
    """Checkpoint tensors of which this rank takes nothing."""


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of a model and the buffers that have memory of their own.

    A parameter with several names is there once. Empty tensors are not there. Raise Unsupported if
    two parameters share a part of their memory, or if one is a tensor around other tensors.
    """
    held: dict[str, Tensor] = {}
    names: dict[int, list[str]] = {}  # by storage
    parameters = [(name, tensor, True) for name, tensor in model.named_parameters()]
    buffers = [(name, tensor, False) for name, tensor in model.named_buffers()]
    for name, tensor, is_parameter in parameters + buffers:
        if is_traceable_wrapper_subclass(tensor):
            raise Unsupported(f'"{name}" is a {type(tensor).__name__}, whose memory is elsewhere')
        frame = _frame_of(tensor)
        shares = names.setdefault(tensor.untyped_storage()._cdata, [])
        others = {other: _frame_of(held[other]) for other in shares}
        near = [n for n, f in others.items() if f.offset < frame.end and frame.offset < f.end]
        if tensor.numel() == 0 or (near and not is_parameter):
            continue
        if near and others[near[0]] != frame:
            raise Unsupported(f'parameters "{near[0]}" and "{name}" share a part of their memory')
        if not near:
            held[name] = tensor.detach()
            shares.append(name)
    return held


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _box(part: Part) -> Box:
    return Box(*part.box)


def _source_box(part: Part, shape: Sequence[int]) -> tuple[Box, list[int | None]]:
    """Return the box of the checkpoint tensor, and the local dimension of each of its own."""
    value = part.value
    assert isinstance(value, Source)
    extent = [1] * len(shape)
    dim_map: list[int | None] = [None] * len(shape)
    free = [k for k, d in enumerate(value.dims) if d is None]
    for k, d in enumerate(value.dims):
        if d is not None:
            extent[d], dim_map[d] = part.box[1][k], k
    for d in range(len(shape)):  # dimensions of one element: as they stand, from the last
        keep = d + len(value.dims) - len(shape)
        if dim_map[d] is None and keep in free:
            dim_map[d] = keep
            free.remove(keep)
    return Box(value.start, extent), dim_map


def _refusal(name: str, kind: str, part: Part) -> Unsupported:
    """Return the error for a part that is no copy of the checkpoint."""
    value = part.value
    where = f'{kind} "{name}" {_box(part)}'
    if isinstance(value, Opaque):
        of = f" of {_listed(value.names[:4])}" if value.names else ""
        return Unsupported(f"{where}: the loader computes it ({value.reason}{of})")
    assert isinstance(value, Source)
    steps = " → ".join(str(step).removeprefix("torch.") for step in value.steps)
    return Unsupported(f'{where}: the loader computes it from "{value.name}" ({steps})')


def _check_overlaps(name: str, kind: str, parts: Sequence[Part]) -> None:
    """Raise Unsupported if two checkpoint tensors are written to one place."""
    for a, b in overwritten(parts):
        first, last = a.value, b.value
        if not (isinstance(first, Source) and isinstance(last, Source)):
            continue
        if first.name != last.name:
            raise Unsupported(
                f'{kind} "{name}": the loader writes "{last.name}" to {_box(b)} over "{first.name}"'
            )


def _add(
    layout: Layout,
    name: str,
    kind: str,
    tensor: Tensor,
    parts: Sequence[Part],
    checkpoint: Checkpoint,
    may_have_holes: bool,
) -> None:
    """Add a parameter and its parts to the layout."""
    try:
        dtype_bytes(tensor.dtype)
    except NotFound:
        raise Unsupported(f'{kind} "{name}" has the type {tensor.dtype}') from None
    number = layout.add_tensor(name, tensor.dtype, tuple(tensor.shape))
    left = tensor.numel() - sum(_box(part).elems for part in parts)
    for part in parts:
        value = part.value
        if isinstance(value, Constant):
            fill = torch.tensor([value.value], dtype=tensor.dtype).view(torch.uint8)
            layout.add_padding(number, _box(part), bytes(fill.tolist()))
            continue
        mapped = simplify(value.steps) if isinstance(value, Source) else None
        if not isinstance(value, Source) or mapped is None:
            raise _refusal(name, kind, part)
        if value.steps[0] != tensor.dtype and not {value.steps[0], tensor.dtype} <= _CASTS:
            raise _refusal(name, kind, part)
        box, dim_map = _source_box(part, checkpoint[value.name][1])
        layout.add_piece(
            number,
            value.name,
            tuple(checkpoint[value.name][1]),
            box,
            local_start=part.box[0],
            dim_map=dim_map,
            negative_exp=mapped == "negative_exp",
        )
    if left > 0:
        holes = [Box((0,) * tensor.ndim, tuple(tensor.shape))]
        for part in parts:
            holes = [rest for hole in holes for rest in hole.subtract(_box(part))]
        if not may_have_holes:
            raise Unsupported(f'{kind} "{name}" {holes[0]}: the loader fills it with nothing')
        for hole in holes:
            layout.leave_alone(number, hole)


def _run(recorder: Recorder, load: Load, checkpoint: Checkpoint) -> set[str]:
    """Run the loader with tensors that have no memory. Return the parameters that it reports."""
    last = "no tensor"

    def pairs() -> Iterator[tuple[str, Tensor]]:
        nonlocal last
        for name, (dtype, shape) in checkpoint.items():
            last = f'"{name}"'
            yield name, recorder.add_checkpoint(name, dtype, shape)

    try:
        with torch.no_grad(), recorder:
            reported = load(pairs())
    except Unsupported as error:
        if last in str(error):
            raise
        raise Unsupported(f"{last}: {error}") from None
    except Exception as error:
        raise Unsupported(
            f"the loader cannot be followed: it failed at {last} ({type(error).__name__}: {error})"
        ) from error
    return set(reported) if isinstance(reported, (set, frozenset)) else set()


def learn(
    model: nn.Module,
    load: Load,
    checkpoint: Checkpoint,
    *,
    holes: Sequence[str] = (),
    replaced: Sequence[str] = (),
) -> Learned:
    """Return the layout of a model's parameters, as its own loader fills them from a checkpoint.

    ``model``: initialized, with its parameters on any device (also meta), before anything is
    processed after loading. ``load``: its loading function, called once with tensors on the device
    meta; it may return the set of parameters that it loaded. ``checkpoint``: type and whole shape
    of each tensor, in the order in which they are loaded. ``holes``: patterns of parameters
    (``*``: any characters) that may be filled in part; their other elements are left alone.
    ``replaced``: patterns of parameters in which a tensor may replace an earlier one; the last one
    counts.

    The memory of the model is not written, and the checkpoint's tensors need none. A loader may
    change other attributes: use the model for nothing else.

    Every element of a parameter in the layout is copied or cast from one checkpoint element, is
    -exp of one, or is a constant (padding). Raise Unsupported, with the names of parameter and
    tensor, if the loader computes a value, reads values, writes two tensors to one place, leaves a
    hole, or copies in a way that is not seen (in other threads). Local.
    """
    recorder = Recorder()
    nodes = {name: recorder.add(tensor) for name, tensor in tensors_of(model).items()}
    reported = _run(recorder, load, checkpoint)
    parameters = {name for name, _ in model.named_parameters()}
    layout = Layout()
    used: set[str] = set()
    left_alone: list[str] = []
    for name, tensor in tensors_of(model).items():
        kind = "parameter" if name in parameters else "buffer"
        node = nodes.get(name)
        if node is None or node.storage._cdata != tensor.untyped_storage()._cdata:
            frame = _frame_of(tensor)  # the loader put another tensor in its place
            node = Node(frame, tensor.dtype, None, recorder.read(tensor, frame))
        if not _matches(name, replaced):
            _check_overlaps(name, kind, node.parts)
        parts = sorted(node.settle(), key=lambda part: part.box)
        if name in reported and not parts:
            raise Unsupported(f'{kind} "{name}": the loader reports it, but no copy to it was seen')
        sources = {part.value.name for part in parts if isinstance(part.value, Source)}
        opaque = [part.value for part in parts if isinstance(part.value, Opaque)]
        if not sources and not any(value.names for value in opaque):
            left_alone.append(name)
            if kind == "buffer":
                continue
        _add(layout, name, kind, tensor, parts, checkpoint, not parts or _matches(name, holes))
        used |= sources
    if not used:
        raise Unsupported(f"the loader uses none of the checkpoint's {len(checkpoint)} tensors")
    layout.check()
    unused = tuple(name for name in checkpoint if name not in used)
    return Learned(layout, tuple(left_alone), unused)
