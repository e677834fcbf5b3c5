"""Loads of model folders: the parts of safetensors files that a rank holds, straight into place."""

from __future__ import annotations

import os

from ._core import Cast, Checkpoint, Layout, LayoutFile, Model, Rules, Spec, Tensors, dtype_bytes
from ._errors import Invalid, NotFound

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from ._core import Transform
    from ._types import DeviceLike, DTypeLike, PathLike, TensorLike

#: Names that an error lists.
_MAX_LISTED = 20

#: Types between which Cast converts.
_FLOATS = ("float32", "float16", "bfloat16")


def model_folder(path: PathLike) -> str:
    """Return the folder of the files: of a model in the hub's cache, that of its snapshot.

    A cache folder (``models--ORG--NAME``) has ``snapshots/COMMIT``, and ``refs/main`` with a
    commit. Of several snapshots that of ``refs/main`` is taken.
    """
    folder = os.fsdecode(path)
    snapshots = os.path.join(folder, "snapshots")
    if not os.path.isdir(snapshots):
        return folder
    commits = sorted(os.listdir(snapshots))
    try:
        with open(os.path.join(folder, "refs", "main"), encoding="utf-8") as file:
            chosen = file.read().strip()
    except FileNotFoundError:
        if len(commits) != 1:
            raise NotFound(
                f"{folder} has the snapshots {', '.join(commits) or '(none)'} and no refs/main: "
                "give the path of one snapshot"
            ) from None
        chosen = commits[0]
    if chosen not in commits:
        raise NotFound(
            f"{folder}: refs/main is the commit {chosen}, but the snapshots are "
            f"{', '.join(commits) or '(none)'}"
        )
    return os.path.join(snapshots, chosen)


def open_checkpoint(folder: PathLike | Checkpoint) -> Checkpoint:
    """Open a folder, unless it is open."""
    return folder if isinstance(folder, Checkpoint) else Checkpoint(model_folder(folder))


def _layout_of(
    given: Layout | LayoutFile | Spec | str,
    path: str,
    rank: int | None,
    rules: Rules | None,
    skip: Iterable[str],
) -> Layout:
    """Return the layout of a rank."""
    if isinstance(given, Layout):
        if rank is not None or rules is not None:
            raise ValueError("rank and rules belong to a spec or a layout file, not to a Layout")
        return given
    if rank is None:
        raise ValueError("rank: give the rank whose part of the spec or layout file is loaded")
    if isinstance(given, LayoutFile):
        if rules is not None:
            raise ValueError("rules belong to a spec, not to a layout file")
        if not 0 <= rank < given.rank_count:
            raise ValueError(f"rank {rank} is not in the {given.rank_count} ranks of the file")
        return given.layout(rank)
    spec = given if isinstance(given, Spec) else Spec(given)
    if not 0 <= rank < spec.world_size:
        raise ValueError(f"rank {rank} is not in the {spec.world_size} ranks of the spec {spec}")
    model = Model(path)
    for pattern in skip:
        model.skip(pattern)
    layout = Layout()
    layout.add_model(model, spec, rank, rules=rules)
    return layout


def _retyped(layout: Layout, dtypes: Sequence[DTypeLike]) -> Layout:
    """Return the layout with other types of its local tensors."""
    made = Layout()
    made.add_tensors(
        [one.name for one in layout.tensors], dtypes, [one.shape for one in layout.tensors]
    )
    for piece in layout.pieces:
        made.add_piece(
            piece.tensor,
            piece.name,
            piece.shape,
            piece.box,
            local_start=piece.local_start,
            dim_map=piece.dim_map,
            fallback_name=piece.fallback_name,
            persistent_buffer=piece.persistent_buffer,
            negative_exp=piece.negative_exp,
            replicas=piece.replicas,
        )
    for tensor, box, fill in layout.padding:
        if fill is not None and len(fill) != dtype_bytes(dtypes[tensor]):
            raise Invalid(
                f'"{layout.tensors[tensor].name}" has padding with a value of '
                f"{layout.tensors[tensor].dtype}: it cannot be loaded as {dtypes[tensor]}"
            )
        made.add_padding(tensor, box, fill)
    for tensor, box in layout.left_alone:
        made.leave_alone(tensor, box)
    return made


def matcher(patterns: Iterable[str]) -> Callable[[str], object]:
    """Return a function that finds the names that match a pattern, as the skip of a plan does."""
    import re

    if isinstance(patterns, str):
        raise TypeError("skip: a list of patterns is needed, not a string")
    wild = {"*": "[^.]*", "**": ".*"}
    texts = [
        "".join(wild.get(part, re.escape(part)) for part in re.split(r"(\*\*|\*)", pattern))
        for pattern in patterns
    ]
    return re.compile("|".join(texts), re.DOTALL).fullmatch if texts else lambda _: False


def _require_taken(checkpoint: Checkpoint, layout: Layout, skip: Iterable[str]) -> None:
    """Raise if the layout takes nothing of a tensor of the folder."""
    is_skipped = matcher(skip)
    names = {name for name in map(str, checkpoint.keys()) if not is_skipped(name)}
    for piece in layout.pieces:
        names.discard(piece.name)
        names.discard(piece.fallback_name or piece.name)
    if names:
        listed = ", ".join(f'"{name}"' for name in sorted(names)[:_MAX_LISTED])
        more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
        raise NotFound(
            f"{checkpoint.path} has {len(names)} tensors of which the layout takes nothing: "
            f"{listed}{more}; give skip=, or strict=False"
        )


def load_sharded(
    folder: PathLike | Checkpoint,
    layout: Layout | LayoutFile | Spec | str,
    tensors: Tensors | Mapping[str, TensorLike] | Sequence[TensorLike] | None = None,
    *,
    rank: int | None = None,
    rules: Rules | None = None,
    skip: Iterable[str] = (),
    strict: bool = False,
    device: DeviceLike = None,
    dtype: DTypeLike = None,
    transform: Transform | None = None,
    threads: int = 0,
    progress: bool | Callable[[int, int], object] | None = True,
) -> Tensors:
    """Fill a rank's tensors from a model's folder, and return them. Local.

    ``folder``: a folder with ``model.safetensors`` or ``model.safetensors.index.json``, one
    safetensors file, a model's folder in the hub's cache, a folder that ranks saved, or an open
    Checkpoint. ``layout``: what the rank holds. It is a Layout, or a LayoutFile or a spec such as
    ``"tp=4,packing=vllm"``, both with ``rank``; ``rules``: those of the spec. ``tensors``: the
    memory, by the names of the layout or in its order, on the host or on GPUs that do not use it
    meanwhile. None: new memory on ``device``.

    Only the rank's boxes are read from the files, in their order and by several ``threads`` (0:
    one for each processor, at most 8). In host memory they are read straight into place.
    ``Checkpoint.bytes_read`` counts them.

    ``dtype``: type of new tensors instead of float32, float16 and bfloat16. ``transform``: allows
    given tensors to have other types: a Cast, or on the host any other. ``skip``: patterns of
    tensors that a spec leaves out (``*``: any characters but a dot; ``**``: any). ``strict``:
    raise NotFound if the layout takes nothing of a tensor of the folder that ``skip`` does not
    match. Leave it False for ranks of pipelines and of expert parallelism.

    Raises before anything is filled: NotFound (tensors or files are missing; the message names
    them), Mismatch (a shape or type differs), FormatError (a file or index is malformed or
    truncated), Invalid (elements of a tensor belong to nothing). After an error while files are
    read the set is "torn".
    """
    checkpoint = open_checkpoint(folder)
    skip = tuple(skip)
    layout = _layout_of(layout, checkpoint.path, rank, rules, skip)
    if strict:
        _require_taken(checkpoint, layout, skip)
    if tensors is None:
        if dtype is not None:
            layout = _retyped(
                layout, [dtype if one.dtype in _FLOATS else one.dtype for one in layout.tensors]
            )
            transform = transform or Cast()
        tensors = Tensors.alloc(layout, device=device)
    elif dtype is not None or device is not None:
        raise ValueError("dtype and device are those of new tensors, but tensors are given")
    elif not isinstance(tensors, Tensors):
        if transform is not None:
            listed: Any = tensors
            if hasattr(listed, "keys"):
                listed = [listed[one.name] for one in layout.tensors]
            pairs = zip(layout.tensors, listed, strict=True)
            layout = _retyped(layout, [getattr(one, "dtype", at.dtype) for at, one in pairs])
        tensors = Tensors(layout, tensors)
    checkpoint.load(layout, tensors, transform=transform, threads=threads, progress=progress)
    if checkpoint is not folder:
        checkpoint.close()
    return tensors
