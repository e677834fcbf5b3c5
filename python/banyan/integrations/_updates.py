"""Weight updates from trainers to engines: joined once, planned once, run for every version.

The adapters for inference engines share this. Trainers are the ranks from 0 of one world, and the
engines' workers follow them. A world joins them through a unique id that travels over the
framework's own control channel. Each rank describes what it has as a ``Part``; ``Updates`` compares
both sides by name, plans, and runs as often as the trainers have a new version.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from .. import (
    Cast,
    CopyService,
    Error,
    Layout,
    Mismatch,
    Mxfp8,
    NotFound,
    ReshardPlan,
    Tensors,
    Transform,
    UniqueId,
    World,
    dtype_bytes,
)
from .._reshard import agree, unmatched
from . import _mxfp8

#: Types between which ``Updates`` casts, with their bytes.
_FLOATS = {"float32": 4, "float16": 2, "bfloat16": 2}
#: Seconds that ranks wait for others that leave after an error of all.
_LEAVE = 5.0
#: Names that an error of shapes or types lists.
_MAX_LISTED = 20


class Torn(Error):
    """The weights are of no single version: an update failed, or is active."""


class Meta(NamedTuple):
    """A global tensor: its name, its type as in ``LocalTensor.dtype``, and its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Part(NamedTuple):
    """What a rank has of one side."""

    layout: Layout
    #: The tensors by the names of the layout's local tensors.
    tensors: Mapping[str, Any]


class Learned(NamedTuple):
    """What a worker takes of the trainers' tensors."""

    layout: Layout
    #: The names that it does not take.
    left: Iterable[str]
    #: Its parameters that may arrive quantized.
    quantizer: _mxfp8.Quantizer | None = None


#: Returns what a worker takes of the trainers' tensors.
Learn = Callable[[list[Meta]], Learned]


class Weights:
    """The version of an engine's weights: whole, or torn, and why.

    It belongs to the engine, and outlives the worlds over which trainers update it.
    """

    def __init__(self) -> None:
        """Begin whole, with version 0: the weights that the engine loaded itself."""
        self.version = 0
        """Version of the last update that arrived whole."""
        self.torn: str | None = None
        """Reason why the weights are torn; None: they are whole."""

    def require_whole(self) -> None:
        """Raise Torn unless the weights are whole."""
        if self.torn is not None:
            raise Torn(
                f"the weights are torn: {self.torn}. They serve again after a whole update "
                f"(the last one was version {self.version})"
            )


def id_text(unique_id: UniqueId | bytes | str) -> str:
    """Return a unique id as text, for a control channel that carries JSON. Protect it."""
    return unique_id if isinstance(unique_id, str) else bytes(unique_id).hex()


def join(
    unique_id: UniqueId | bytes | str,
    rank: int,
    size: int,
    *,
    node: str | None = None,
    timeout: float | None = None,
) -> World:
    """Join trainers and engines in one world. Collective over all of them.

    ``unique_id``: as made by one process, which lives until all have joined, or its bytes or text.
    ``rank``: trainers come first, the engines' workers follow. ``node``, ``timeout``: of ``World``.
    """
    if isinstance(unique_id, str):
        unique_id = bytes.fromhex(unique_id)
    if isinstance(unique_id, bytes):
        unique_id = UniqueId.from_bytes(unique_id)
    return World(rank, size, unique_id=unique_id, node=node, timeout=timeout)


def leave(world: World, reason: str, *, together: bool = False) -> None:
    """Leave a world. The others' next calls raise, with the reason.

    ``together``: the others leave now, too; wait for them a little, so that each gets the error
    because of which they leave.
    """
    if world.is_open:
        with contextlib.suppress(Error):
            world.timeout = _LEAVE
            if together:
                world.barrier()
        with contextlib.suppress(Error):
            world.abort(reason)
            world.close()


def state_part(state: Any, *, ranks: Sequence[int] | None = None, rank: int = 0) -> Part:
    """Return the part of a state dict or a module of PyTorch: DTensors and plain tensors.

    ``ranks``: the world's rank for each rank of ``torch.distributed``; None: they are equal.
    ``rank``: this rank in the world. Local.
    """
    import torch.distributed as dist

    from ..torch import local_tensors
    from ..torch._layout import State, build, describe

    if ranks is None:
        ranks = range(dist.get_world_size() if dist.is_initialized() else 1)
    entries = describe(State("trainer", state), dict(enumerate(ranks)), rank, lambda _: False)
    return Part(build(rank, entries)[0], local_tensors(state))


def full_part(tensors: Mapping[str, Any]) -> Part:
    """Return the part of a rank that has, or receives, whole tensors by name. Local."""
    layout = Layout()
    first = layout.add_tensors(
        list(tensors),
        [one.dtype for one in tensors.values()],
        [tuple(one.shape) for one in tensors.values()],
    )
    for number, (name, one) in enumerate(tensors.items(), first):
        layout.add_piece(number, name, tuple(one.shape))
    return Part(layout, tensors)


def sharded_part(metadata: Iterable[Any], pieces: Mapping[str, Any], rank: int) -> Part:
    """Return the part of a rank that has pieces of tensors, as metadata like vLLM's says.

    Each item of ``metadata`` has ``name`` and ``shape``, and may have ``owners`` (ranks of the
    world, None: all), ``mesh_shape`` over them, and ``placements``, one for each axis of the mesh,
    with ``dim`` if the axis shards (None: each owner has the whole tensor). ``pieces`` are this
    rank's tensors. Local. Raises Mismatch if a piece is missing or has another shape.
    """
    from ..torch._layout import Entry, build, grid_of

    entries = []
    for number, meta in enumerate(metadata):
        owners = getattr(meta, "owners", None)
        if owners is not None and rank not in owners:
            continue
        piece = pieces.get(meta.name)
        if piece is None:
            raise Mismatch(f'trainer {rank} owns "{meta.name}", but has no piece of it')
        grid = None
        placements = getattr(meta, "placements", None)
        if owners is not None and placements is not None:
            dims = [getattr(one, "dim", None) for one in placements]
            grid = grid_of(list(owners), list(meta.mesh_shape or (len(owners),)), dims, rank)
        address = piece.data_ptr() if piece.numel() > 0 else 0
        entries.append(Entry(number, meta.name, tuple(meta.shape), piece, address, grid))
    layout, order = build(rank, entries)
    by_number = {one.number: one for one in entries}
    for number, local in zip(order, layout.tensors, strict=True):
        held = tuple(by_number[number].local.shape)
        if held != local.shape:
            raise Mismatch(
                f'trainer {rank} has a piece of shape {held} of "{local.name}", but its metadata '
                f"says {local.shape}"
            )
    return Part(layout, {one.name: one.local for one in entries})


def _metas(layout: Layout | None) -> dict[str, Meta]:
    """Return the global tensors of which a layout has pieces."""
    if layout is None:
        return {}
    dtypes = [one.dtype for one in layout.tensors]
    found: dict[str, Meta] = {}
    for piece in layout.pieces:
        if piece.name not in found:
            found[piece.name] = Meta(piece.name, dtypes[piece.tensor], piece.shape)
    return found


def _gather_texts(world: World, make: Callable[[], Any]) -> list[Any]:
    """Return what ``make`` returns on every rank, through JSON. Collective.

    Ranks have few different texts. The first rank that has one sends it. An error of one rank is
    raised on all.
    """
    text = b""

    def digest() -> bytes:
        nonlocal text
        text = json.dumps(make()).encode()
        return hashlib.blake2b(text, digest_size=16).digest()

    digests = agree(world, digest)
    firsts = [digests.index(one) for one in digests]
    sent = world.gather(zlib.compress(text, 1) if firsts[world.rank] == world.rank else b"")
    read = {rank: json.loads(zlib.decompress(one)) for rank, one in enumerate(sent) if one}
    return [read[first] for first in firsts]


def published(world: World, source: Layout | None) -> list[Meta]:
    """Return the global tensors that the trainers have, on every rank. Collective.

    ``source``: this rank's layout, None on engines. An engine learns from them where each element
    belongs in its memory.
    """
    found: dict[str, Meta] = {}
    for listed in _gather_texts(world, lambda: list(_metas(source).values())):
        for name, dtype, shape in listed:
            found.setdefault(name, Meta(name, dtype, tuple(shape)))
    return list(found.values())


class _Sides:
    """The global tensors of both sides on all ranks, compared. Raises on all ranks, or on none."""

    def __init__(self, texts: Sequence[Mapping[str, Any]]) -> None:
        casts = [bool(one["cast"]) for one in texts]
        if len(set(casts)) > 1:
            raise Mismatch(
                f"cast is {casts[0]} on rank 0, but not on rank {casts.index(not casts[0])}"
            )
        limits = [one["group_bytes"] for one in texts]
        if len(set(limits)) > 1:
            raise Mismatch(f"group_bytes differs between ranks: {sorted(set(limits))}")
        kinds = [one["device"] for one in texts]
        if len(set(kinds)) > 1:
            other = next(rank for rank, kind in enumerate(kinds) if kind != kinds[0])
            raise Mismatch(
                f"tensors of all ranks are on one kind of device, but those of rank 0 are on "
                f"{kinds[0]}, and those of rank {other} on {kinds[other]}"
            )
        self._source: dict[str, tuple[int, Meta]] = {}
        self._casts: set[str] = set()
        self._wrong: list[str] = []
        for rank, text in enumerate(texts):
            for name, dtype, shape in text["source"]:
                one = Meta(name, dtype, tuple(shape))
                if name not in self._source:
                    self._source[name] = rank, one
                elif self._source[name][1] != one:
                    self._differ(rank, one, "trainers")
        wanted: dict[str, None] = {}
        fillers: set[str] = set()
        for rank, text in enumerate(texts):
            for name, dtype, shape, fallback in text["destination"]:
                filler = name if name in self._source or not fallback else fallback
                if filler in self._source:
                    fillers.add(filler)
                    self._compare(rank, Meta(filler, dtype, tuple(shape)), casts[0])
                wanted[filler] = None
        #: Tensors of the trainers that no worker takes.
        self.unused = {name for text in texts for name in text["unused"]} - fillers
        missing = sorted(wanted.keys() - self._source.keys())
        unsent = sorted(self._source.keys() - fillers - self.unused)
        if missing or unsent:
            raise NotFound(
                "\n".join(
                    [
                        *unmatched("tensors of the engine are at no trainer", missing, unsent),
                        *unmatched("tensors of the trainers are not the engine's", unsent, missing),
                    ]
                )
            )
        if self._wrong:
            more = len(self._wrong) - _MAX_LISTED
            listed = self._wrong[:_MAX_LISTED] + ([f"and {more} more"] if more > 0 else [])
            raise Mismatch("\n".join(listed))

    def _differ(self, rank: int, one: Meta, who: str) -> None:
        first, other = self._source[one.name]
        self._wrong.append(
            f'"{one.name}" is {other.dtype} {list(other.shape)} at trainer {first}, but '
            f"{one.dtype} {list(one.shape)} at rank {rank} of the {who}"
        )

    def _compare(self, rank: int, one: Meta, cast: bool) -> None:
        source = self._source[one.name][1]
        if one.shape != source.shape:
            self._differ(rank, one, "engine")
        elif one.dtype != source.dtype:
            into, of = _FLOATS.get(one.dtype, 0), _FLOATS.get(source.dtype, 0)
            if not into or not of or (into <= of and not cast):
                self._differ(rank, one, "engine")
                if into and of:
                    self._wrong[-1] += " (give cast=True to round)"
            else:
                self._casts.add(one.name)

    def transform(self) -> Cast | None:
        """Return the casts that are needed."""
        return Cast(sorted(self._casts)) if self._casts else None


def _groups(found: Sequence[Meta], limit: int) -> list[set[str]]:
    """Divide tensors into groups of whole layers, of at most ``limit`` bytes if a layer is smaller.

    A layer is the part of a name before its first number, and the number. 0: one group.
    """
    layers: dict[str, list[Meta]] = {}
    for one in found:
        layers.setdefault("".join(re.findall(r"^\D*\d+", one.name)), []).append(one)
    groups: list[set[str]] = []
    filled = 0
    for layer in layers.values():
        nbytes = sum(math.prod(one.shape) * dtype_bytes(one.dtype) for one in layer)
        if not groups or (limit and filled + nbytes > limit):
            groups.append(set())
            filled = 0
        groups[-1].update(one.name for one in layer)
        filled += nbytes
    return groups


class _Part:
    """The tensors of a rank that one transfer sends or fills: their layout, and the last set."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.names = [one.name for one in layout.tensors]
        self._set: Tensors | None = None

    def take(self, tensors: Mapping[str, Any]) -> Tensors:
        """Return the set of this group's tensors; the one before if it has the same memory."""
        given = {name: tensors[name] for name in self.names}
        if self._set is None or not self._set.holds(given):
            self._set = Tensors(self.layout, given)
        return self._set


def _divide(
    layout: Layout, groups: Sequence[set[str]], quantized: Collection[str] = ()
) -> list[Layout]:
    """Return the layouts of a rank's tensors by the groups of names that they have pieces of.

    ``quantized``: names whose pieces are in MXFP8.
    """
    made = [Layout() for _ in groups]
    numbers: dict[tuple[int, int], int] = {}  # of group and tensor: the tensor's in the group
    places: dict[int, list[tuple[int, int]]] = {}  # of a tensor: groups, and its numbers there
    group_of = {name: group for group, names in enumerate(groups) for name in names}
    tensors = layout.tensors
    for piece in layout.pieces:
        group = group_of[piece.name]
        if (group, piece.tensor) not in numbers:
            one = tensors[piece.tensor]
            dtype = _mxfp8.ELEMENTS if piece.name in quantized else one.dtype
            number = made[group].add_tensor(one.name, dtype, one.shape)
            numbers[group, piece.tensor] = number
            places.setdefault(piece.tensor, []).append((group, number))
        made[group].add_piece(
            numbers[group, piece.tensor],
            piece.name,
            piece.shape,
            piece.box,
            local_start=piece.local_start,
            dim_map=piece.dim_map,
            persistent_buffer=piece.persistent_buffer,
            negative_exp=piece.negative_exp,
            replicas=piece.replicas or None,
        )
    for tensor, box, fill in layout.padding:
        for group, number in places.get(tensor, ()):
            made[group].add_padding(number, box, fill)
    for tensor, box in layout.left_alone:
        for group, number in places.get(tensor, ()):
            made[group].leave_alone(number, box)
    return made


def without_empty(layout: Layout) -> Layout:
    """Return a layout without the tensors that have no pieces. Local."""
    return _divide(layout, [{piece.name for piece in layout.pieces}])[0]


def _can_divide(layout: Layout | None, groups: Sequence[set[str]]) -> bool:
    """True if each tensor of a destination gets its pieces from one group."""
    if layout is None:
        return True
    group_of = {name: group for group, names in enumerate(groups) for name in names}
    found: dict[int, int] = {}
    for piece in layout.pieces:
        group = group_of.get(piece.name)
        if group is None or found.setdefault(piece.tensor, group) != group:
            return False
    return len(found) == len(layout)


class Updates:
    """Updates of the engines' weights, over one world: planned once, and run for every version.

    All calls but ``close`` are collective over the trainers and the engines' workers.
    """

    _service: CopyService

    def __init__(
        self,
        world: World,
        source: Layout | None,
        destination: Layout | Learn | None,
        *,
        weights: Weights | None = None,
        unused: Iterable[str] = (),
        cast: bool = False,
        group_bytes: int = 0,
        device: Any = None,
        backend: str | None = None,
        checksums: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Compare both sides, and plan. Moves nothing.

        ``source``: the layout of a trainer, ``destination``: of an engine's worker, or a function
        that returns it for the trainers' tensors; None on ranks that do not have the side.
        ``weights``: those of this worker, with their version. ``unused``: names of the trainers'
        tensors that this worker's model does not have, such as one that is tied there. ``cast``:
        allow rounding to a smaller type; casts to a larger one are always made. ``group_bytes``:
        move groups of layers one after another, each of at most so many bytes of the whole model,
        so that workers need buffers for one group alone (0: all at once). ``device``: of this
        rank's tensors. ``timeout``: seconds that a wait may last without progress.

        Raises on all ranks, before anything moves: NotFound with the names that one side alone has,
        Mismatch with the tensors whose shapes or types differ, or whose elements not all arrive.
        """
        if source is not None and destination is not None:
            raise ValueError("a rank is a trainer or a worker of an engine, not both")
        self.world = world
        self._device = device
        self.weights = weights if weights is not None else Weights()
        self._is_engine = destination is not None
        found = published(world, source)
        into: Layout | None = None
        quantizer: _mxfp8.Quantizer | None = None
        groups = _groups(found, group_bytes)

        def describe() -> dict[str, Any]:
            nonlocal into, quantizer
            into = destination if isinstance(destination, Layout) else None
            left: Iterable[str] = ()
            if callable(destination):
                into, left, quantizer = destination(found)
            quantizable = () if quantizer is None else quantizer.quantizable
            dtypes = {one.name: one.dtype for one in found}
            return {
                "source": list(_metas(source).values()),
                "cut": _mxfp8.cut(source),
                "destination": list(_wanted(into)),
                "mxfp8": _mxfp8.offers(into, quantizable, dtypes),
                "unused": sorted({*unused, *left}),
                "cast": cast,
                "group_bytes": group_bytes,
                "can_divide": len(groups) < 2 or _can_divide(into, groups),
                "device": "cpu" if device is None else str(device).split(":")[0],
            }

        texts = _gather_texts(world, describe)
        #: Ranks of the trainers and of the engines' workers.
        self.trainers = [rank for rank, one in enumerate(texts) if one["source"]]
        self.engines = [rank for rank, one in enumerate(texts) if one["destination"]]
        sides = _Sides(texts)

        side = into if self._is_engine else source
        self.quantized = _mxfp8.chosen(texts)
        """Global tensors that trainers quantize, since the engine would make the same of them."""
        if len(groups) > 1 and not all(one["can_divide"] for one in texts):
            groups = [set().union(*groups)]
        if self.quantized:
            halves = [
                half for one in groups for half in (one - self.quantized, one & self.quantized)
            ]
            groups = [one for one in halves if one]
        parts: list[Layout | None] = [side]
        if len(groups) > 1 or self.quantized:
            into_quantized = self.quantized if self._is_engine else ()
            parts = [None] * len(groups)
            if side is not None:
                parts = list(_divide(side, groups, into_quantized))
        self._parts = [None if one is None or len(one) == 0 else _Part(one) for one in parts]
        self._plans: list[ReshardPlan] = []
        scales: Mapping[str, Any] = {}
        if quantizer is not None and into is not None:
            names = [one.name for one in into.tensors]
            taken = {names[one.tensor] for one in into.pieces if one.name in self.quantized}
            scales = quantizer.quantize(taken)

        def transform_of(number: int) -> Transform | None:
            part = self._parts[number]
            if groups[number].isdisjoint(self.quantized):
                return sides.transform()
            transform = Mxfp8(side="sender")
            for name in part.names if part is not None and self._is_engine else ():
                transform.bind_scales(name, scales[name])
            return transform

        def plan() -> bytes:
            self._service = CopyService(
                world, backend, device=device, progress=False, timeout=timeout
            )
            for number, part in enumerate(self._parts):
                layout = None if part is None else part.layout
                self._plans.append(
                    ReshardPlan(
                        None if self._is_engine else layout,
                        layout if self._is_engine else None,
                        world,
                        require_whole_source=True,
                        skip=sides.unused,
                        transform=transform_of(number),
                        checksums=checksums,
                        timeout=timeout,
                    )
                )
            return b""

        agree(world, plan)

    def _begin(
        self, prepare: Callable[[], Mapping[str, Any]], version: int | None, unmap: bool
    ) -> tuple[Mapping[str, Any], int, bool]:
        """Take this rank's tensors, and agree on the version. Nothing has moved if it raises."""
        tensors: Mapping[str, Any] = {}

        def take() -> bytes:
            nonlocal tensors
            tensors = prepare()
            for part in self._parts[: 1 if self._is_engine else None]:
                if part is not None:
                    part.take(tensors)
            return json.dumps([version, self.weights.version, unmap]).encode()

        words = [json.loads(one) for one in agree(self.world, take)]
        asked = {one[0] for one in words if one[0] is not None}
        newest = max(one[1] for one in words)
        if len(asked) > 1:
            raise Mismatch(f"the trainers send several versions: {sorted(asked)}")
        chosen: int = asked.pop() if asked else newest + 1
        if chosen <= newest:
            raise Mismatch(f"version {chosen} is not newer than version {newest} of the engine")
        return tensors, chosen, any(one[2] for one in words)

    @contextlib.contextmanager
    def _unmoved(self) -> Iterator[None]:
        """Say in errors that nothing has moved."""
        try:
            yield
        except Error as error:
            raise type(error)(f"no weights were moved: {error}{self._roles(error)}") from error

    def check(self) -> None:
        """Raise if the world has ended, so that an update would move nothing."""
        with self._unmoved():
            self.world.check()

    def update(
        self,
        prepare: Callable[[], Mapping[str, Any]],
        *,
        version: int | None = None,
        finish: Callable[[Sequence[str]], object] | None = None,
        unmap: bool = False,
        stream: Any = None,
    ) -> int:
        """Move one version from the trainers to the engines, and return its number.

        ``prepare`` returns this rank's tensors: a trainer's to send, or the memory of a worker that
        receives, by the names in its layout. A worker's memory of a group is looked up when its
        turn comes. ``version``: of the trainers, newer than the engines'; None: one more than
        theirs. ``finish``: what a worker does with received weights before they count as whole,
        called with the names of each group. ``unmap``: keep no memory of this rank mapped at the
        others until the next update, so that it can be freed meanwhile, and be new memory at the
        same addresses then (one rank asks for all). ``stream``: on a GPU; None: the current one.

        If a ``prepare`` raises, all ranks raise, and the engines keep their old weights, whole. If
        anything fails later, all ranks raise, and the weights of every worker are torn until an
        update succeeds. A rank that dies is named by the error of the others.
        """
        with self._unmoved():
            tensors, version, unmaps = self._begin(prepare, version, unmap)
        what = f"update to version {version}"
        if self._is_engine:
            self.weights.torn = f"the {what} is active"
        try:
            for number, plan in enumerate(self._plans):
                try:
                    self._run(plan, self._parts[number], tensors, stream)
                finally:
                    if unmaps:
                        plan.release()
                agree(self.world, partial(self._between, number, tensors, finish))
        except BaseException as error:
            if self._is_engine:
                self.weights.torn = f"the {what} failed ({error})"
            if isinstance(error, Error):
                raise type(error)(f"the {what} failed: {error}{self._roles(error)}") from error
            raise
        self.weights.version, self.weights.torn = version, None
        return version

    def _run(
        self, plan: ReshardPlan, part: _Part | None, tensors: Mapping[str, Any], stream: Any
    ) -> None:
        held = None if part is None else part.take(tensors)
        source, into = (None, held) if self._is_engine else (held, None)
        plan.execute(source, into, self._service, stream=stream)
        self._wait(stream)

    def _between(
        self,
        number: int,
        tensors: Mapping[str, Any],
        finish: Callable[[Sequence[str]], object] | None,
    ) -> bytes:
        """Finish a group, and take the memory of the next one. May raise on one rank."""
        part = self._parts[number]
        if finish is not None and part is not None:
            finish(part.names)
        following = self._parts[number + 1] if number + 1 < len(self._parts) else None
        if following is not None:
            following.take(tensors)
        return b""

    def _wait(self, stream: Any) -> None:
        """Wait for the transfers that a GPU queued."""
        if self._service.device == "cpu":
            return
        import torch

        if stream is None:
            stream = torch.cuda.current_stream(torch.device(self._device))
        stream.synchronize()
        self._service.check()

    def _roles(self, error: Error) -> str:
        """Say which ranks are which, if the message names a rank."""
        if "rank" not in str(error):
            return ""
        return f" ({_ranks('trainers', self.trainers)}, {_ranks('workers', self.engines)})"

    def close(self) -> None:
        """Free the plans. Local; the world stays open."""
        for plan in self._plans:
            plan.close()
        self._service.close()


def _ranks(who: str, ranks: Sequence[int]) -> str:
    return f"{who}: ranks {', '.join(map(str, ranks))}"


def _wanted(destination: Layout | None) -> Iterator[tuple[str, str, tuple[int, ...], str | None]]:
    """Yield the global tensors that a destination needs, each with its fallback."""
    fallbacks = {} if destination is None else {p.name: p.fallback_name for p in destination.pieces}
    for meta in _metas(destination).values():
        yield (*meta, fallbacks[meta.name])
