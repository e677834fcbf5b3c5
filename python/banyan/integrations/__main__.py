"""``banyan layout learn``: the part of the command that needs Python."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import Error, LayoutFile

#: Engines, and the packages that learn from their loaders.
ENGINES = {"vllm": "banyan.integrations.vllm._learn"}


def _patterns(text: str) -> list[str]:
    return text.split(",")


def learn_command(argv: Sequence[str]) -> int:
    """Learn the layouts of all ranks of a model, and write them to a layout file."""
    parser = argparse.ArgumentParser(prog="banyan layout learn", allow_abbrev=False)
    parser.add_argument("engine", choices=sorted(ENGINES))
    parser.add_argument("model", type=Path)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--pp", type=int, default=1)
    parser.add_argument("--expert-parallel", action="store_true")
    parser.add_argument("--holes", type=_patterns, default=[])
    parser.add_argument("--replaced", type=_patterns, default=[])
    parser.add_argument("--no-verify", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        return _learn(options)
    except (Error, ImportError) as error:
        print(f"banyan layout learn: {error}", file=sys.stderr)
    except Exception as error:  # of the engine
        name = type(error).__name__
        print(f"banyan layout learn: {options.engine}: {name}: {error}", file=sys.stderr)
    return 1


def _learn(options: argparse.Namespace) -> int:
    from . import _layout_cache as cache

    engine = importlib.import_module(ENGINES[options.engine])
    engine.start()
    began = time.monotonic()
    checkpoint = engine.checkpoint_of(options.model)

    def learn(checkpoint: Any, verify: bool) -> Any:
        return engine.learn_folder(
            options.model,
            options.tp,
            options.pp,
            checkpoint=checkpoint,
            expert_parallel=options.expert_parallel,
            holes=options.holes,
            replaced=options.replaced,
            verify=verify,
        )

    learned = learn(checkpoint, not options.no_verify)
    unused = set.intersection(*(set(one.unused) for _, one in learned))
    ways = [learned]
    if unused and not options.out:
        # Trainers may lack these tensors. Their layouts are in a file of their own.
        used = {name: kind for name, kind in checkpoint.items() if name not in unused}
        ways.append(learn(used, not options.no_verify))
    seconds = time.monotonic() - began
    paths = {}
    for way in ways:
        ranks = {rank: (origin, one.layout) for rank, (origin, one) in enumerate(way)}
        if options.out:
            paths[options.out] = ranks
            continue
        for rank, (origin, layout) in ranks.items():  # a file for each pipeline stage
            path = cache.folder() / origin.file_name
            paths.setdefault(path, {})[rank % options.tp] = (origin, layout)
    for path, ranks in paths.items():
        cache.save(path, ranks, is_verified=not options.no_verify)
        LayoutFile(path).check("destination")
    for rank, (_, one) in enumerate(learned):
        layout = one.layout
        print(
            f"rank {rank}: {len(layout)} tensors, {len(layout.pieces)} pieces, "
            f"{len(layout.padding)} boxes of padding, {layout.nbytes} bytes"
        )
    _list("left alone", {name for _, one in learned for name in one.left_alone})
    _list("not used by any rank", unused)
    what = "learned" if options.no_verify else "learned and verified"
    origin = learned[0][0]
    for path in paths:
        print(f"{path}: {what} from {origin.engine} {origin.engine_release} in {seconds:.2f} s")
    return 0


def _list(what: str, names: set[str]) -> None:
    for name in sorted(names):
        print(f"{what}: {name}")


def main(argv: Sequence[str]) -> int:
    """Run the command that ``argv`` names."""
    if argv[:1] == ["learn"]:
        return learn_command(argv[1:])
    print("usage: learn ENGINE FOLDER --tp N (banyan layout learn)", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
