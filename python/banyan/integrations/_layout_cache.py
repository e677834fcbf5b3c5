"""Layout files of what was learned, and the folder in which they are kept.

A file says for what it was learned, as facts of its ranks: engine and release, type of the model,
digest of its configuration and of its tensors, and number of tensor-parallel ranks; and whether
random values verified it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .. import Layout, LayoutFile, Mismatch, NotFound
from ._loader import Checkpoint


@dataclasses.dataclass(frozen=True)
class Origin:
    """For what a layout was learned. The names are those of the facts in its file."""

    engine: str
    engine_release: str
    model_type: str
    config_digest: str
    tensor_parallel_size: int

    @property
    def file_name(self) -> str:
        """Name of the file of all ranks in the folder."""
        return (
            f"{self.engine}-{self.engine_release}-{self.model_type}-tp{self.tensor_parallel_size}"
            f"-{self.config_digest[:16]}.json"
        )


def digest(config: Mapping[str, Any], checkpoint: Checkpoint) -> str:
    """Return a digest of a model's configuration and of its tensors: names, types and shapes."""
    tensors = [(name, str(dtype), list(shape)) for name, (dtype, shape) in checkpoint.items()]
    text = json.dumps([config, sorted(tensors)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def folder() -> Path:
    """Return the folder of learned layouts: BANYAN_LAYOUTS, or banyan/layouts in the user's cache.

    The user's cache is XDG_CACHE_HOME, or ~/.cache.
    """
    named = os.environ.get("BANYAN_LAYOUTS")
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "banyan/layouts"


def save(path: Path, learned: Mapping[int, tuple[Origin, Layout]], *, is_verified: bool) -> None:
    """Write the layouts of ranks. The file is there only when it is complete."""
    file = LayoutFile()
    for rank, (_, layout) in learned.items():
        file.add(rank, layout)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".learned-") as made:
        plain, whole = Path(made) / "plain.json", Path(made) / "whole.json"
        file.save(plain)
        content = json.loads(plain.read_text())
        groups = []
        for group in content["ranks"]:
            for origin in dict.fromkeys(learned[rank][0] for rank in group["ranks"]):
                ranks = [rank for rank in group["ranks"] if learned[rank][0] == origin]
                facts = dataclasses.asdict(origin) | {"verified": is_verified}
                groups.append(group | {"ranks": ranks, "facts": facts})
        content["ranks"] = groups
        whole.write_text(json.dumps(content))
        LayoutFile(whole)  # as a reader sees it
        os.replace(whole, path)


def load(path: Path, origin: Origin, rank: int) -> tuple[Layout, bool]:
    """Return the layout of a rank from a file, and whether it is verified.

    Raise Mismatch, with both sides, if the file was learned for something else, and NotFound if it
    lacks the rank.
    """
    file = LayoutFile(path)
    for group in json.loads(path.read_text())["ranks"]:
        if rank not in group["ranks"]:
            continue
        facts = group.get("facts", {})
        for name, wanted in dataclasses.asdict(origin).items():
            if facts.get(name) != wanted:
                raise Mismatch(
                    f"{path} was learned for {name} {facts.get(name)}, and this is {name} {wanted}"
                )
        return file.layout(rank), facts.get("verified") is True
    raise NotFound(f"{path} has no rank {rank}")


def find(
    origin: Origin, rank: int, learn: Callable[[], Layout], verify: Callable[[Layout], bool]
) -> Layout:
    """Return the layout of a rank from the folder of learned layouts, or learn and keep it.

    ``banyan layout learn`` writes a file of all ranks, and a rank that learns a file of its own.
    ``verify``: called with a layout that is not verified; it raises if the layout is wrong, and
    returns False if it leaves it unverified. Local.
    """
    every = folder() / origin.file_name
    own = every.with_name(f"{every.stem}-rank{rank}.json")
    kept = [load(path, origin, rank) for path in (every, own) if path.exists()]
    if not kept:
        layout = learn()
    elif any(is_verified for _, is_verified in kept):
        return next(layout for layout, is_verified in kept if is_verified)
    else:
        layout = kept[0][0]
    is_verified = verify(layout)
    if is_verified or not kept:
        save(own, {rank: (origin, layout)}, is_verified=is_verified)
    return layout
