"""Records where a loader puts the elements of the tensors that it is given.

The loader runs with tensors of the checkpoint that have no memory (device meta). A dispatch mode
sees every operation on them. It follows views and copies, and does not execute writes, so that the
model's memory stays as it is. A value that the loader computes is kept as opaque, with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from .. import Unsupported
from ._contents import (
    Constant,
    Node,
    Opaque,
    Part,
    Source,
    Value,
    cast,
    content,
    frame_of,
    moved,
    unwritten,
)
from ._strided import MAX_PATCHES, Frame, intersect, patches, subtract

aten = torch.ops.aten


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the elements of tensors through a loader that runs under this mode."""

    def __init__(self) -> None:
        """Follow nothing yet."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._nodes: dict[int, list[Node]] = {}
        self._frames: dict[int, tuple[Frame, Any]] = {}  # of new tensors that are not followed

    # ---- nodes ----

    def add(self, tensor: Tensor, frame: Frame | None = None) -> Node:
        """Follow a tensor."""
        storage = tensor.untyped_storage()
        node = Node(frame or frame_of(tensor), tensor.dtype, storage)
        self._nodes.setdefault(storage._cdata, []).append(node)
        return node

    def add_checkpoint(self, name: str, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
        """Return a tensor of the checkpoint, without memory, and follow it."""
        tensor = torch.empty(tuple(shape), dtype=dtype, device="meta")
        zeros = (0,) * tensor.ndim
        source = Source(name, zeros, tuple(range(tensor.ndim)), (dtype,))
        self.add(tensor).parts.append(Part((zeros, tuple(tensor.shape)), source))
        return tensor

    def node(self, tensor: Tensor) -> Node | None:
        """Return the node in which a tensor lies."""
        nodes = self._nodes.get(tensor.untyped_storage()._cdata)
        if nodes is None:
            return None
        if len(nodes) > 1:  # parameters in one storage
            view = frame_of(tensor)
            near = [n for n in nodes if n.frame.offset < view.end and view.offset < n.frame.end]
            inside = [n for n in near if n.frame.offset <= view.offset and view.end <= n.frame.end]
            if len(near) > len(inside[:1]):
                raise Unsupported("a view reaches over several parameters in one memory")
            nodes = inside
        return nodes[0] if nodes else None

    def _adopt(self, tensor: Tensor) -> Node:
        """Return the node of a tensor that is about to be written."""
        found = self.node(tensor)
        if found is not None:
            return found
        storage = tensor.untyped_storage()
        flat = Frame(0, (storage.nbytes() // tensor.element_size(),), (1,))
        frame, _ = self._frames.get(storage._cdata, (flat, None))
        whole = tensor.as_strided(frame.shape, frame.strides, frame.offset)
        node = self.add(tensor, frame)
        node.is_made, node.initial = True, whole
        return node

    def _follows(self, tensor: Tensor) -> bool:
        """True if the values of a tensor are not in its memory."""
        node = self.node(tensor)
        return node is not None and (bool(node.parts) or node.is_made)

    # ---- content ----

    def read(self, tensor: Tensor, frame: Frame, at: Frame | None = None) -> list[Part]:
        """Return what a tensor holds, in the coordinates of a frame.

        The elements go to the view ``at`` of the frame; None: to all of it.
        """
        node = self.node(tensor)
        view = frame_of(tensor)
        if tensor.numel() == 0:
            return []
        if node is None:
            return self._filled(frame, at or frame, content(tensor))
        if tensor.dtype != node.dtype:
            reason = f"it is read as {_name(tensor.dtype)} without a cast"
            return self._filled(frame, at or frame, self._opaque(reason, [tensor]))
        parts: list[Part] = []
        contents = node.settle()
        for patch in patches(at or frame, frame, view, node.frame):
            start, extent = list(patch.from_start), [1] * len(patch.from_start)
            for n, _, source in patch.dims:
                extent[source] = n
            left = [(tuple(start), tuple(extent))]
            for part in contents:
                common = intersect(part.box, (tuple(start), tuple(extent)))
                if common is None:
                    continue
                parts.append(moved(part, common, patch))
                left = [rest for box in left for rest in subtract(box, common)]
            parts += [moved(Part(box, unwritten(node, box)), box, patch) for box in left]
        return parts

    def _filled(self, frame: Frame, view: Frame, value: Value) -> list[Part]:
        """Return the parts of a view of a frame that hold one value."""
        parts = []
        for patch in patches(view, frame, view, frame):
            extent = [1] * len(frame.shape)
            for n, d, _ in patch.dims:
                extent[d] = n
            parts.append(Part((patch.to_start, tuple(extent)), value))
        return parts

    def _opaque(self, reason: str, tensors: Sequence[Tensor]) -> Opaque:
        names: dict[str, None] = {}
        for tensor in tensors:
            node = self.node(tensor)
            for part in node.parts if node is not None else ():
                if isinstance(part.value, Source):
                    names[part.value.name] = None
                elif isinstance(part.value, Opaque):
                    names.update(dict.fromkeys(part.value.names))
        return Opaque(reason, tuple(names))

    # ---- operations ----

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Follow an operation, or execute it if it has nothing to do with the checkpoint."""
        kwargs = kwargs or {}
        followed = [t for t in _tensors((args, tuple(kwargs.values()))) if self._follows(t)]
        if func._schema.is_mutable:
            written = self._written(func, args, kwargs)
            if followed or any(self.node(t) is not None for t in written):
                return self._write(func, args, kwargs, written)
        elif followed and not any(result.alias_info for result in func._schema.returns):
            return self._compute(func, args, kwargs, followed)
        result = func(*args, **kwargs)
        is_new = not any(one.alias_info for one in func._schema.returns)
        for made in _tensors(result) if is_new else ():
            if self.node(made) is None:
                storage = made.untyped_storage()
                self._frames[storage._cdata] = frame_of(made), storage
        return result

    def _written(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """Return the arguments that an operation writes."""
        written: list[Tensor] = []
        for i, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[i] if i < len(args) else kwargs.get(argument.name)
                written += _tensors(value)
        return written

    def _write(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], written: list[Tensor]
    ) -> Any:
        """Note what an operation writes, in place of executing it."""
        for into in written:
            node = self._adopt(into)
            view = frame_of(into)
            if into.numel() == 0:
                continue
            if into.dtype != node.dtype and not _is_same_view(self, func, args, node):
                reason = f"it is written as {_name(into.dtype)}"
                added = self._filled(node.frame, view, self._opaque(reason, args[1:2]))
            elif func is aten.copy_.default:
                source = args[1].expand(into.shape)
                if into.dtype != node.dtype:  # both sides are reinterpreted alike
                    source = source.view(node.dtype)
                added = self.read(source, node.frame, view)
            elif func is aten.zero_.default:
                added = self._filled(node.frame, view, Constant(0))
            elif func is aten.fill_.Scalar:
                added = self._filled(node.frame, view, Constant(args[1]))
            else:
                value = self._opaque(_operation(func), list(_tensors(args)))
                added = self._filled(node.frame, view, value)
            node.is_settled = node.is_settled and not node.parts and len(added) == 1
            node.parts += [Part(part.box, cast(part.value, node.dtype)) for part in added]
        if len(func._schema.returns) == 0:
            return None
        return written[0] if len(func._schema.returns) == 1 else tuple(written)

    def _compute(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], followed: list[Tensor]
    ) -> Any:
        """Return the result of an operation on followed tensors, without memory, and follow it."""
        if func in _READS:
            opaque = self._opaque("", followed)
            raise Unsupported(f"the loader reads values of {_listed(opaque.names)}")
        shapes = tree_map(_without_memory, (args, kwargs))
        shapes[1].pop("pin_memory", None)
        if "device" in shapes[1]:
            shapes[1]["device"] = torch.device("meta")
        try:
            result = func(*shapes[0], **shapes[1])
        except NotImplementedError:
            opaque = self._opaque("", followed)
            raise Unsupported(
                f"the loader computes {_operation(func)} of {_listed(opaque.names)}, whose result "
                "depends on the values"
            ) from None
        for made in _tensors(result):
            if self.node(made) is not None:
                continue  # it shares memory with an argument
            node = self.add(made)
            node.is_made = True
            contents = _FOLLOWED.get(func)
            if made.numel() > 0:
                parts = contents and contents(self, made, args)
                if parts is None:
                    value = self._opaque(_operation(func), followed)
                    parts = self._filled(node.frame, node.frame, value)
                node.parts = [Part(part.box, cast(part.value, made.dtype)) for part in parts]
        return result


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors among an operation's arguments or results."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from _tensors(one)


def _without_memory(value: Any) -> Any:
    if not isinstance(value, Tensor) or value.is_meta:
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _operation(func: Any) -> str:
    return str(func._schema.name).removeprefix("aten::")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f'"{name}"' for name in names[:4])
    return shown + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _is_same_view(recorder: Recorder, func: Any, args: tuple[Any, ...], node: Node) -> bool:
    """True for a copy of which both sides see elements of one type as another of that size."""
    if func is not aten.copy_.default or args[0].dtype != args[1].dtype:
        return False
    source = recorder.node(args[1])
    return (
        source is not None
        and source.dtype == node.dtype
        and args[0].element_size() == node.dtype.itemsize
    )


# ---- operations whose results are followed ----


def _same(recorder: Recorder, made: Tensor, args: Any) -> list[Part]:
    return recorder.read(args[0], frame_of(made))


def _mapped(step: str) -> Callable[[Recorder, Tensor, Any], list[Part]]:
    def contents(recorder: Recorder, made: Tensor, args: Any) -> list[Part]:
        parts = []
        for part in _same(recorder, made, args):
            value = part.value
            if isinstance(value, Source):
                value = value._replace(steps=(*value.steps, step))
            elif isinstance(value, Constant):
                value = Opaque(f"{step} of a constant", ())
            parts.append(Part(part.box, value))
        return parts

    return contents


def _joined(recorder: Recorder, made: Tensor, args: Any) -> list[Part]:
    parts: list[Part] = []
    at, dim = 0, args[1] if len(args) > 1 else 0
    for tensor in args[0]:
        view = made.narrow(dim, at, tensor.shape[dim])
        parts += recorder.read(tensor, frame_of(made), frame_of(view)) if tensor.numel() else []
        at += tensor.shape[dim]
    return parts


def _stacked(recorder: Recorder, made: Tensor, args: Any) -> list[Part]:
    dim = args[1] if len(args) > 1 else 0
    views = [made.select(dim, i) for i in range(len(args[0]))]
    return [
        part
        for tensor, view in zip(args[0], views, strict=True)
        for part in recorder.read(tensor, frame_of(made), frame_of(view))
    ]


def _numbered(func: Any) -> Callable[[Recorder, Tensor, Any], list[Part] | None]:
    """Follow an operation that only moves elements: it moves their numbers, too."""

    def contents(recorder: Recorder, made: Tensor, args: Any) -> list[Part] | None:
        tensor, *others = args
        if any(other.is_meta for other in _tensors(others)) or not made.is_contiguous():
            return None
        if not tensor.is_contiguous():
            copied = tensor.new_empty(tensor.shape, device="meta")
            recorder.add(copied).parts = recorder.read(tensor, frame_of(copied))
            tensor = copied
        numbers = func(torch.arange(tensor.numel()).view(tensor.shape), *others).flatten()
        breaks = (numbers.diff() != 1).nonzero().flatten() + 1
        starts = [0, *breaks.tolist()]
        parts: list[Part] = []
        for start, end in zip(starts, [*starts[1:], numbers.numel()], strict=True):
            to = Frame(made.storage_offset() + start, (end - start,), (1,))
            source = tensor.as_strided(
                (end - start,), (1,), tensor.storage_offset() + int(numbers[start])
            )
            parts += recorder.read(source, frame_of(made), to)
            if len(parts) > MAX_PATCHES:
                raise Unsupported(f"a copy falls apart into more than {MAX_PATCHES} boxes")
        return parts

    return contents


def _padded(recorder: Recorder, made: Tensor, args: Any) -> list[Part]:
    tensor, pad, value = args[0], args[1], args[2] if len(args) > 2 else 0
    if min(pad) < 0:
        return recorder._filled(frame_of(made), frame_of(made), Opaque("negative padding", ()))
    inner, box = made, ((0,) * made.ndim, tuple(made.shape))
    for i in range(len(pad) // 2):
        dim = made.ndim - 1 - i
        inner = inner.narrow(dim, pad[2 * i], tensor.shape[dim])
    parts = recorder.read(tensor, frame_of(made), frame_of(inner))
    left = [box]
    for part in parts:
        left = [rest for one in left for rest in subtract(one, part.box)]
    return [*parts, *(Part(one, Constant(value)) for one in left)]


def _empty(recorder: Recorder, made: Tensor, args: Any) -> list[Part]:
    return []


def _constant(value: float | int) -> Callable[[Recorder, Tensor, Any], list[Part]]:
    def contents(recorder: Recorder, made: Tensor, args: Any) -> list[Part]:
        box = (0,) * made.ndim, tuple(made.shape)
        return [Part(box, Constant(value))]

    return contents


def _full(recorder: Recorder, made: Tensor, args: Any) -> list[Part]:
    return _constant(args[-1])(recorder, made, args)


_READS = {
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten.allclose.default,
}
_FOLLOWED: dict[Any, Callable[[Recorder, Tensor, Any], list[Part] | None]] = {
    aten.clone.default: _same,
    aten._to_copy.default: _same,
    aten.exp.default: _mapped("exp"),
    aten.neg.default: _mapped("neg"),
    aten.cat.default: _joined,
    aten.stack.default: _stacked,
    **{
        func: _numbered(func)
        for func in (
            aten.index_select.default,
            aten.index.Tensor,
            aten.gather.default,
            aten.flip.default,
            aten.roll.default,
            aten.repeat.default,
        )
    },
    aten.constant_pad_nd.default: _padded,
    aten.empty_like.default: _empty,
    aten.new_empty.default: _empty,
    aten.new_empty_strided.default: _empty,
    aten.zeros_like.default: _constant(0),
    aten.new_zeros.default: _constant(0),
    aten.ones_like.default: _constant(1),
    aten.new_ones.default: _constant(1),
    aten.full_like.default: _full,
    aten.new_full.default: _full,
}
