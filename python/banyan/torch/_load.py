"""Loads of model folders into state dicts: each rank reads the parts that it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist

from .. import Checkpoint, Mismatch, NotFound, Tensors, Transform
from .._load import matcher, open_checkpoint
from .._reshard import unmatched
from .._types import PathLike
from ._layout import Entry, Rename, State, StateLike, build, describe
from ._reshard import count_changes, divide


def _choose(ties: list[list[Entry]], names: set[str]) -> tuple[list[Entry], list[str]]:
    """Return an entry for each tensor, by the name that the folder has, and missing names."""
    chosen, missing = [], []
    for tied in ties:
        found = [one for one in tied if one.name in names]
        if len(found) > 1:
            raise Mismatch(
                f"{', '.join(sorted(repr(one.name) for one in found))} are one tensor here, but "
                "the folder has a tensor for each: skip all of these names but one"
            )
        chosen += found
        missing += [] if found else [tied[0].name]
    return chosen, missing


def load_sharded(
    folder: PathLike | Checkpoint,
    state: StateLike,
    *,
    rename: Rename = None,
    skip: Iterable[str] = (),
    strict: bool = True,
    transform: Transform | None = None,
    threads: int = 0,
    progress: bool | Callable[[int, int], object] | None = True,
) -> Tensors:
    """Fill the tensors of a state dict or a module from a model's folder, in place. Local.

    Each rank reads the boxes that its tensors hold, and nothing else: of a DTensor the shard that
    its mesh and its placements say, so modules of FSDP2 and of tensor parallelism need no
    gathering. A plain tensor is the whole tensor. Tensors may be on the CPU or on GPUs; a module
    on the meta device gets memory by its ``to_empty`` first.

    ``folder``, ``threads`` and ``transform`` (``banyan.Cast()``: types may differ) are those of
    ``banyan.load_sharded``. ``rename``: the folder's names of the tensors, a mapping or a function.
    ``skip``: patterns of the folder's names that are left out (``*``: any characters but a dot;
    ``**``: any). ``strict``: raise NotFound if the folder or the state dict lacks a tensor; False:
    leave it out. Of tensors with several names (tied weights) the folder needs one.

    Returns the set of the filled tensors. Raises as ``banyan.load_sharded``.
    """
    is_skipped = matcher(skip)
    given = State("destination", state, rename)
    rank = dist.get_rank() if dist.is_initialized() else 0
    ranks = {i: i for i in range(dist.get_world_size() if dist.is_initialized() else 1)}
    entries = describe(given, ranks, rank, is_skipped)
    checkpoint = open_checkpoint(folder)
    names = {name for name in map(str, checkpoint.keys()) if not is_skipped(name)}
    chosen, missing = _choose(divide(entries, given), names)
    extra = sorted(names.difference(given.names))
    if strict and (missing or extra):
        raise NotFound(
            "\n".join(
                [
                    *unmatched(f"tensors are not in {checkpoint.path}", missing, extra),
                    *unmatched(f"tensors of {checkpoint.path} have no place", extra, missing),
                    "give rename= or skip=, or strict=False to leave them out",
                ]
            )
        )
    layout, order = build(rank, chosen)
    memory = {one.number: one.local for one in chosen}
    tensors = Tensors(layout, [memory[i] for i in order])
    for device in {one.local.device for one in chosen if one.local.is_cuda}:
        torch.cuda.synchronize(device)
    try:
        checkpoint.load(layout, tensors, transform=transform, threads=threads, progress=progress)
    finally:
        count_changes([given.tensors[i] for i in order])
    if checkpoint is not folder:
        checkpoint.close()
    return tensors
