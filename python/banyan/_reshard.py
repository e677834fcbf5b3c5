"""Reshards of dictionaries of tensors: planned once, and kept."""

from __future__ import annotations

from array import array

from ._core import CopyService, Layout, Request, ReshardPlan, Tensors, World
from ._errors import Invalid

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any, TypeAlias

    from ._core import Transform
    from ._types import DeviceLike, StreamLike, TensorLike

    Progress: TypeAlias = bool | Callable[[int, int], object] | None
    Side: TypeAlias = Tensors | Mapping[str, TensorLike] | Sequence[TensorLike] | None


class Reshard:
    """A reshard between two layouts: a plan, a copy service, and the tensors of the last run.

    Call it with the tensors of both sides as often as you like. A run with the same tensors as the
    one before costs the transfers alone; other tensors are prepared again.
    """

    def __init__(
        self,
        source: Layout | None,
        destination: Layout | None,
        world: World,
        *,
        backend: str | None = None,
        device: DeviceLike = None,
        min_split_bytes: int = 0,
        require_whole_source: bool = False,
        skip: Iterable[str] = (),
        transform: Transform | None = None,
        max_staging_bytes: int = 0,
        checksums: bool = False,
        each_rank_fetches: bool = False,
        progress: Progress = True,
        timeout: float | None = None,
    ) -> None:
        """Plan. Collective; ``backend``, ``device`` and ``progress`` are the CopyService's."""
        self.layouts = (source, destination)
        """Layouts of the source and the destination."""
        self.key: object = None  # by which `reshard` finds it
        self.transform = transform
        """Transform of the plan, or None."""
        self.plan = ReshardPlan(
            source,
            destination,
            world,
            min_split_bytes=min_split_bytes,
            require_whole_source=require_whole_source,
            skip=skip,
            transform=transform,
            max_staging_bytes=max_staging_bytes,
            checksums=checksums,
            each_rank_fetches=each_rank_fetches,
            timeout=timeout,
        )
        """Plan of this rank."""
        self.service = CopyService(
            world, backend, device=device, progress=progress, timeout=timeout
        )
        """Service that moves the tensors."""
        self._sets: list[Tensors | None] = [None, None]

    def set_of(self, side: int, tensors: Side) -> Tensors | None:
        """Return the set of tensors of the source (0) or the destination (1). Local."""
        layout, kept = self.layouts[side], self._sets[side]
        if tensors is None or isinstance(tensors, Tensors):
            return tensors
        if layout is None:
            name = ("source", "destination")[side]
            raise ValueError(f"{name}: tensors are given, but this rank's layout is None")
        if kept is None or not kept.holds(tensors):
            kept = self._sets[side] = Tensors(layout, tensors)
        return kept

    def __call__(
        self, source: Side, destination: Side, *, stream: StreamLike = None
    ) -> Tensors | None:
        """Fill the destination from the source. Return the destination's set, with its version.

        Tensors are given as mappings with the names of the layout's local tensors, as sequences in
        their order, or as Tensors. Collective.
        """
        into = self.set_of(1, destination)
        self.plan.execute(self.set_of(0, source), into, self.service, stream=stream)
        return into

    def start(self, source: Side, destination: Side) -> Request:
        """Start a run on the host, and return its request. Collective."""
        return self.plan.start(self.set_of(0, source), self.set_of(1, destination), self.service)

    def close(self) -> None:
        """Free the plan, the service and the sets. Local."""
        self._sets = [None, None]
        self.plan.close()
        self.service.close()

    def __enter__(self) -> Reshard:
        """Return self."""
        return self

    def __exit__(self, *args: object) -> None:
        """Close."""
        self.close()


#: Plans that a world keeps; the one that has been unused longest makes room.
MAX_KEPT = 16


def agree(world: World, call: Callable[[], bytes]) -> list[bytes]:
    """Return what ``call`` returns on every rank. If it raises on one, raise on all. Collective."""
    error = None
    try:
        word = b"\0" + call()
    except Exception as raised:
        error, word = raised, b"\1" + str(raised).encode()
    words = world.gather(word)
    if error is not None:
        raise error
    for rank, other in enumerate(words):
        if other[0] == 1:
            raise Invalid(f"rank {rank}: {other[1:].decode()}")
    return [other[1:] for other in words]


#: Names of one side that an error lists, and those of them to which it adds the nearest name.
_MAX_LISTED, _MAX_NEAREST = 200, 10


def unmatched(what: str, names: Sequence[str], others: Sequence[str]) -> Iterator[str]:
    """List the names that one side only has, with the nearest ones of the other side."""
    import difflib

    if names:
        yield f"{len(names)} {what}:"
    for i, name in enumerate(names[:_MAX_LISTED]):
        near = difflib.get_close_matches(name, others, 1) if i < _MAX_NEAREST else []
        yield f'  "{name}"' + (f' (nearest: "{near[0]}")' if near else "")
    if len(names) > _MAX_LISTED:
        yield f"  and {len(names) - _MAX_LISTED} more"


def kept(world: World, fits: Callable[[Any], bool], plan: Callable[[], Any]) -> Any:
    """Return the newest of the world's plans that fits on every rank, or a new one. Collective.

    The ranks make and close plans together, so a plan has the same number on every rank. Ranks that
    see one side only may find that several plans fit.
    """
    plans: dict[int, Any] = world._plans
    words = agree(world, lambda: array("q", [i for i, one in plans.items() if fits(one)]).tobytes())
    common = set.intersection(*(set(array("q", word)) for word in words))
    number = max(common) if common else max(plans, default=0) + 1
    found = plans.pop(number) if common else plan()
    plans[number] = found  # the newest is the last
    if len(plans) > MAX_KEPT:
        plans.pop(next(iter(plans))).close()
    return found


def reshard(
    source: Side,
    destination: Side,
    world: World,
    *,
    source_layout: Layout | None = None,
    destination_layout: Layout | None = None,
    backend: str | None = None,
    device: DeviceLike = None,
    require_whole_source: bool = False,
    skip: Iterable[str] = (),
    transform: Transform | None = None,
    checksums: bool = False,
    progress: Progress = True,
    timeout: float | None = None,
    stream: StreamLike = None,
) -> Tensors | None:
    """Fill the destination's tensors from the source's, as their layouts say. Collective.

    The first call with these layouts plans, and later calls with the same layout objects run the
    plan again. The world keeps the last 16 plans; make a ``banyan.Reshard`` to keep one as long as
    you want. None for a side on which this rank holds nothing. Return the destination's set of
    tensors, with its version.
    """
    options: dict[str, Any] = {
        "backend": backend,
        "device": device,
        "require_whole_source": require_whole_source,
        "skip": tuple(skip),
        "transform": transform,
        "checksums": checksums,
        "progress": progress,
        "timeout": timeout,
    }
    # A kept reshard holds its layouts and its transform, so their ids stay theirs. An addition to a
    # layout makes it another one.
    key = (
        tuple(
            one and (id(one), len(one), one.nbytes) for one in (source_layout, destination_layout)
        ),
        id(transform),
        *(str(option) for option in options.values()),
    )

    def plan() -> Reshard:
        made = Reshard(source_layout, destination_layout, world, **options)
        made.key = key
        return made

    found: Reshard = kept(world, lambda one: getattr(one, "key", None) == key, plan)
    return found(source, destination, stream=stream)
