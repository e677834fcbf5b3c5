"""Reshards of state dicts: tensors and DTensors by name, planned once and kept."""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from .. import Layout, Mismatch, NotFound, Request, ReshardPlan, Tensors, Transform, World
from .. import Reshard as LayoutReshard
from .._load import matcher
from .._reshard import agree, kept, unmatched
from ._layout import Entry, Rename, State, StateLike, build, describe, world_and_ranks
from ._world import world as world_of


def divide(entries: Iterable[Entry], state: State) -> list[list[Entry]]:
    """Divide the entries into sets of equal tensors in the same memory, such as tied weights."""
    found: dict[object, list[Entry]] = {}
    for one in entries:
        tied = found.setdefault(one.address or -one.number, [])
        if tied and not _is_same(tied[0], one, state):
            found[-one.number] = [one]
        else:
            tied.append(one)
    return list(found.values())


def _is_same(one: Entry, other: Entry, state: State) -> bool:
    """True if two entries at one address are one tensor."""
    return bool(
        state.specs[one.number] == state.specs[other.number]
        and one.local.dtype == other.local.dtype
        and one.local.shape == other.local.shape
        and one.local.stride() == other.local.stride()
    )


def _require_apart(entries: Iterable[Entry], state: State) -> None:
    """Raise if elements of a tensor share memory. Runs compare tensors with each other."""
    for one in entries:
        local = one.local
        if not local.is_contiguous() and any(
            local.stride(d) == 0 and local.size(d) > 1 for d in range(local.dim())
        ):
            raise ValueError(
                f"{state.where(one.number)} is expanded: some of its elements share memory"
            )


class _Names:
    """The names of one side on all ranks, and which of them are one tensor.

    A list has the names of a rank, and the sets of them that share memory there.
    """

    def __init__(self, side: str, lists: Sequence[tuple[list[str], list[list[str]]]]) -> None:
        self.all: set[str] = set()
        self._leaders: dict[str, str] = {}
        for names, ties in lists:
            self.all.update(names)
            for tied in ties:
                for name in tied[1:]:
                    first, second = sorted((self.leader(tied[0]), self.leader(name)))
                    if first != second:
                        self._leaders[second] = first
        self._followers: dict[str, list[str]] = {}
        for name in self._leaders:
            self._followers.setdefault(self.leader(name), []).append(name)
        for names, ties in lists if self._leaders else ():
            firsts = {name: tied[0] for tied in ties for name in tied}
            seen: dict[str, str] = {}
            for name in names:
                first = firsts.get(name, name)
                other = seen.setdefault(self.leader(name), first)
                if other != first:
                    raise Mismatch(
                        f'"{other}" and "{first}" of the {side} share memory on some ranks only'
                    )

    def leader(self, name: str) -> str:
        """Return the name that stands for all names of a tensor."""
        while name in self._leaders:
            name = self._leaders[name]
        return name

    def tied(self, name: str) -> list[str]:
        """Return all names of a tensor."""
        leader = self.leader(name)
        return [leader, *self._followers.get(leader, ())]

    def all_tied(self) -> set[str]:
        """Return the names of all tensors that have several."""
        return self._leaders.keys() | self._followers.keys()


class _Match:
    """The names of both sides on all ranks, matched. Raises on all ranks, or on none."""

    def __init__(self, lists: Iterable[bytes], strict: bool) -> None:
        read = [json.loads(zlib.decompress(one)) for one in lists if one]
        self.source = _Names("source", [one[0] for one in read])
        self.destination = _Names("destination", [one[1] for one in read])
        self.places: dict[str, str] = {}  # the kinds of devices, and a tensor on each
        for _, _, places in read:
            self.places |= places
        if len(self.places) > 1:
            raise ValueError(
                f"the tensors of all ranks are on one kind of device, but {_listed(self.places)}"
            )
        missing: list[str] = []
        sent = self.source.all & self.destination.all
        sent -= self.source.all_tied() | self.destination.all_tied()
        for name in sorted(self.destination.all - sent):
            leaders = {self.source.leader(one) for one in self._fillers(name)}
            if len(leaders) > 1:
                tied = ", ".join(f'"{one}"' for one in sorted(self.destination.tied(name)))
                raise Mismatch(
                    f"{tied} of the destination are one tensor, but the source has several tensors "
                    "for it: skip all of these names but one"
                )
            sent |= leaders
            if not leaders:
                missing.append(name)
        unsent = sorted(
            one for one in self.source.all - sent if self.source.leader(one) not in sent
        )
        if strict and (missing or unsent):
            raise NotFound(
                "\n".join(
                    [
                        *unmatched("destination tensors are in no source", missing, unsent),
                        *unmatched("source tensors are in no destination", unsent, missing),
                        "give rename= or skip=, or strict=False to leave them out",
                    ]
                )
            )
        if not sent and (missing or unsent):
            raise NotFound("no name is on both sides")

    def _fillers(self, name: str) -> list[str]:
        return [one for one in self.destination.tied(name) if one in self.source.all]

    def filler(self, tied: Sequence[Entry]) -> str | None:
        """Return the name of the source tensor that fills a destination tensor, if there is one."""
        name = tied[0].name
        if len(tied) == 1 and name in self.source.all:
            return name
        names = {one.name for one in tied} & self.source.all or self._fillers(name)
        return min(names, default=None)

    def is_sent(self, tied: Sequence[Entry]) -> bool:
        """True if a destination has a source tensor, by any of its names."""
        name = tied[0].name
        return name in self.destination.all or not self.destination.all.isdisjoint(
            self.source.tied(name)
        )


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python from looking for garbage among all tensors and modules again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _listed(places: Mapping[str, str]) -> str:
    return ", and ".join(f"{where} is on {place}" for place, where in places.items())


class _Side:
    """One side of a plan at this rank."""

    layout: Layout
    order: list[int]  # numbers of the layout's tensors in the state dict
    set: Tensors  # of the last run

    def __init__(
        self, state: State, ranks: Mapping[int, int], rank: int, skip: Callable[[str], object]
    ) -> None:
        self.names, self.specs = state.names, state.specs
        self._is_source = state.side == "source"
        entries = describe(state, ranks, rank, skip)
        self._ties = divide(entries, state)
        # Empty shards tell nothing about names in the same memory.
        held = [one.name for one in entries if one.address]
        self.listed = held, [[one.name for one in tied] for tied in self._ties if len(tied) > 1]
        devices = {one.local.device: one.number for one in reversed(entries)}
        self.places = {str(device): state.where(number) for device, number in devices.items()}
        if not self._is_source:
            _require_apart(entries, state)

    def build(self, rank: int, match: _Match) -> None:
        """Make the layout, and the set of the tensors."""
        entries, unused = [], []
        for tied in self._ties:
            if self._is_source:
                if match.is_sent(tied):
                    entries += [one for one in tied if one.name in match.destination.all]
                    unused += [one for one in tied if one.name not in match.destination.all]
                continue
            name = match.filler(tied)
            if name is not None:  # one of the tied tensors is filled, and so are the others
                first = next((one for one in tied if one.name == name), tied[0])
                entries.append(first._replace(name=name))
                unused += [one for one in tied if one is not first]
        self.layout, self.order = build(rank, entries, unused)
        memory = {one.number: one.local for one in [*entries, *unused]}
        self.set = Tensors(self.layout, [memory[i] for i in self.order])
        self._ties = []

    def is_placed_as(self, other: _Side) -> bool:
        """True if the same tensors share memory, on the same device."""
        return self.listed == other.listed and self.places.keys() == other.places.keys()


def count_changes(tensors: Sequence[torch.Tensor]) -> None:
    """Count a change in the versions by which autograd finds tensors that were changed."""
    changed = [*tensors, *(one._local_tensor for one in tensors if isinstance(one, DTensor))]
    try:
        torch.autograd.graph.increment_version(changed)
    except RuntimeError:  # inference tensors have no versions
        torch.autograd.graph.increment_version([t for t in changed if not t.is_inference()])


class Reshard:
    """A reshard between two state dicts: planned once, and run as often as you like.

    The arguments are those of ``reshard``. State dicts of later runs have the names, shapes, types,
    meshes and placements of those that were planned; their memory may be other memory. The plan
    keeps the tensors of its last run allocated until ``close``.
    """

    @_no_collection()
    def __init__(
        self,
        source: StateLike,
        destination: StateLike,
        *,
        group: dist.ProcessGroup | None = None,
        world: World | None = None,
        ranks: Sequence[int] | None = None,
        rename: Rename = None,
        skip: Iterable[str] = (),
        strict: bool = True,
        transform: Transform | None = None,
        backend: str | None = None,
        min_split_bytes: int = 0,
        max_staging_bytes: int = 0,
        checksums: bool = False,
        progress: bool | Callable[[int, int], object] | None = True,
        timeout: float | None = None,
    ) -> None:
        """Plan. Collective; moves nothing."""
        self.world, self._ranks = world_and_ranks(group, world, ranks)
        self._rename, self._skip = rename, matcher(skip)
        self.key: object = None  # by which `reshard` finds it
        self._sides: list[_Side] = []
        device, listed = None, b""

        def read() -> bytes:
            nonlocal device, listed
            mine = dist.get_rank() if dist.is_initialized() else self.world.rank
            given = self._ranks.get(mine)
            if given != self.world.rank:
                raise ValueError(
                    f"ranks: {given} is given for rank {mine} of torch.distributed, which is rank "
                    f"{self.world.rank} of the world"
                )
            self._sides = [self._side(state) for state in self._states(source, destination)]
            places = self._sides[1].places | self._sides[0].places
            if len(places) > 1:
                raise ValueError(f"the tensors of a rank are on one device, but {_listed(places)}")
            for device, where in places.items():
                places = {torch.device(device).type: where}
            listed = json.dumps([*(side.listed for side in self._sides), places]).encode()
            return hashlib.blake2b(listed, digest_size=16).digest()

        def make() -> bytes:
            for side in self._sides:
                side.build(self.world.rank, match)
            return b""

        # Ranks have few different lists. The first rank that has a list sends it.
        digests = agree(self.world, read)
        is_first = digests.index(digests[self.world.rank]) == self.world.rank
        lists = self.world.gather(zlib.compress(listed, 1) if is_first else b"")
        match = _Match(lists, strict)
        agree(self.world, make)
        if device is None and "cuda" in match.places:
            device = f"cuda:{torch.cuda.current_device()}"
        self._reshard = LayoutReshard(
            self._sides[0].layout,
            self._sides[1].layout,
            self.world,
            backend=backend,
            device=device,
            min_split_bytes=min_split_bytes,
            transform=transform,
            max_staging_bytes=max_staging_bytes,
            checksums=checksums,
            progress=progress,
            timeout=timeout,
        )

    def _side(self, state: State) -> _Side:
        return _Side(state, self._ranks, self.world.rank, self._skip)

    def _states(self, source: StateLike, destination: StateLike) -> tuple[State, State]:
        return State("source", source, self._rename), State("destination", destination)

    @property
    def plan(self) -> ReshardPlan:
        """The transfers of this rank."""
        return self._reshard.plan

    @property
    def destination(self) -> Tensors:
        """The tensors that the last run filled, with their state and version."""
        return self._sides[1].set

    @_no_collection()
    def fits(self, states: Sequence[State]) -> bool:
        """Return True if the plan is for these state dicts. Then the next run takes their tensors.

        Local. Raises if a tensor cannot be moved.
        """
        for side, state in zip(self._sides, states, strict=True):
            if state.names != side.names or state.specs != side.specs:
                return False
            side.specs = state.specs  # next time the same objects, whose comparison is fast
            memory = state.memory(side.order)
            if side.set.holds(memory):
                continue
            if not side.is_placed_as(self._side(state)):
                return False
            side.set = Tensors(side.layout, memory)
        return True

    def _take(self, source: StateLike, destination: StateLike) -> tuple[State, State]:
        states: tuple[State, State] | None = None

        def take() -> bytes:
            nonlocal states
            states = self._states(source, destination)
            if not self.fits(states):
                raise Mismatch(
                    "the state dicts are not those of the plan: names, shapes, types, meshes, "
                    "placements, tied tensors or the device differ"
                )
            return b""

        agree(self.world, take)
        assert states is not None
        return states

    def _count(self, state: State) -> None:
        count_changes([state.tensors[i] for i in self._sides[1].order])

    def run(self, states: Sequence[State], stream: Any = None) -> Tensors:
        """Run with state dicts that fit. Collective."""
        try:
            self._reshard(self._sides[0].set, self._sides[1].set, stream=stream)
        finally:
            self._count(states[1])
        return self._sides[1].set

    def __call__(self, source: StateLike, destination: StateLike, *, stream: Any = None) -> Tensors:
        """Fill the destination's tensors from the source's, and return them, with their version.

        Collective. On a GPU the transfers are queued in ``stream``; None: the current one.
        """
        return self.run(self._take(source, destination), stream)

    def start(self, source: StateLike, destination: StateLike) -> Request:
        """Start a run on the host, and return its request. Collective.

        Until its ``wait`` has returned, no other call of the world is possible.
        """
        states = self._take(source, destination)
        request = self._reshard.start(self._sides[0].set, self._sides[1].set)
        self._count(states[1])
        return request

    def close(self) -> None:
        """Free the plan. All ranks close it, at the same place among the calls of the world."""
        self._reshard.close()

    def __enter__(self) -> Reshard:
        """Return self."""
        return self

    def __exit__(self, *args: object) -> None:
        """Close."""
        self.close()


def reshard(
    source: StateLike,
    destination: StateLike,
    *,
    group: dist.ProcessGroup | None = None,
    world: World | None = None,
    ranks: Sequence[int] | None = None,
    rename: Rename = None,
    skip: Iterable[str] = (),
    strict: bool = True,
    transform: Transform | None = None,
    backend: str | None = None,
    min_split_bytes: int = 0,
    max_staging_bytes: int = 0,
    checksums: bool = False,
    progress: bool | Callable[[int, int], object] | None = True,
    timeout: float | None = None,
    keep: bool = True,
    stream: Any = None,
) -> Tensors:
    """Fill the tensors of one state dict from another one, in place. Collective.

    ``source`` and ``destination`` are mappings from names to tensors, or modules; None on ranks
    that have nothing on a side. A DTensor is the shard that its mesh and its placements say. A
    plain tensor is the whole tensor: in a source each rank that has it may send it, in a
    destination each rank that has it receives it. All tensors of a rank are on one device.

    ``group``: the ranks that take part; None: the default group. ``world``: a world of theirs
    instead, and ``ranks``: its rank for each rank of ``torch.distributed``, needed if the world has
    ranks of several jobs. ``rename``: the destination's names of source tensors, a mapping or a
    function. ``skip``: patterns of names that are left out (``*``: any characters but a dot;
    ``**``: any). ``strict``: raise NotFound if names are on one side only; False: leave them out.
    ``transform``: allows types to differ, such as ``banyan.Cast()``. The other options are those of
    ``banyan.Reshard``.

    The first call plans. Later calls with equal names, shapes, types, meshes, placements and
    options run the plan again, and with the same memory cost little more than the transfers. The
    world keeps the last 16 plans, and with each the tensors of its last run; ``keep=False`` keeps
    nothing. Returns the destination's tensors of this rank, with ``state`` and ``version``.
    """
    options: dict[str, Any] = {
        "skip": skip if isinstance(skip, str) else tuple(skip),
        "strict": strict,
        "transform": transform,
        "backend": backend,
        "min_split_bytes": min_split_bytes,
        "max_staging_bytes": max_staging_bytes,
        "checksums": checksums,
        "progress": progress,
        "timeout": timeout,
    }

    def plan() -> Reshard:
        made = Reshard(
            source, destination, group=group, world=world, ranks=ranks, rename=rename, **options
        )
        made.key = options
        return made

    @functools.cache
    def states() -> tuple[State, State]:
        return State("source", source, rename), State("destination", destination)

    def fits(one: object) -> bool:
        return isinstance(one, Reshard) and one.key == options and one.fits(states())

    if not keep:
        with plan() as once:
            return once.run(states(), stream)
    found: Reshard = kept(world if world is not None else world_of(group), fits, plan)
    return found.run(states(), stream)
