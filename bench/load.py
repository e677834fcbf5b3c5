"""Load a rank's part of Qwen3-0.6B from the page cache, beside the safetensors package.

usage: load.py

Every call loads the part of rank 0 of tp=2, half of 1.2 GB in two files. The limit is reading as
many bytes of the files by large reads into memory that exists, with as many threads.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

import banyan

ROOT = Path(__file__).resolve().parents[1]
TURNS = 7
PEER_GOAL = 1.0
LIMIT_GOAL = 0.7


def write_model(folder: Path) -> None:
    """Write the model with zeros in two files and an index."""
    model = json.loads((ROOT / "examples/models/qwen3-0.6b.json").read_text())
    config = model.pop("config.json", None)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    names = [name for name in model if isinstance(model[name], dict) and "shape" in model[name]]
    weight_map: dict[str, str] = {}
    for shard in range(2):
        file = f"model-{shard + 1:05}-of-00002.safetensors"
        own = names[shard * len(names) // 2 : (shard + 1) * len(names) // 2]
        random = np.random.default_rng(shard)
        banyan.Checkpoint.write(
            folder / file,
            {
                name: random.integers(0, 1 << 14, math.prod(model[name]["shape"]), np.uint16)
                .view(np.float16)
                .reshape(model[name]["shape"])
                for name in own
            },
            progress=None,
        )
        weight_map |= dict.fromkeys(own, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def peer(folder: Path, layout: banyan.Layout) -> dict[str, Any]:
    """Load the pieces with safe_open and get_slice."""
    open_file: Any = safe_open  # which has no types
    loaded: dict[str, Any] = {}
    weight_map = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    files = {name: open_file(folder / name, "numpy") for name in set(weight_map.values())}
    for piece in layout.pieces:
        loaded[piece.name] = files[weight_map[piece.name]].get_slice(piece.name)[piece.box.slices]
    return loaded


def read(folder: Path, nbytes: int, buffer: memoryview) -> None:
    """Read the first bytes of the files into the buffer, by as many threads as loads have."""
    files = sorted(folder.glob("*.safetensors"))
    threads = min(8, len(os.sched_getaffinity(0)))
    share = nbytes // threads // 4096 * 4096

    def part(number: int) -> None:
        descriptor = os.open(files[number % len(files)], os.O_RDONLY)
        place = buffer[number * share : (number + 1) * share]
        done = 0
        while done < share:
            done += os.preadv(descriptor, [place[done : done + (8 << 20)]], done)
        os.close(descriptor)

    running = [threading.Thread(target=part, args=(number,)) for number in range(threads)]
    for one in running:
        one.start()
    for one in running:
        one.join()


def main() -> int:
    """Measure, and print."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        write_model(folder)
        layout = banyan.Layout()
        layout.add_model(banyan.Model(folder), banyan.Spec("tp=2"), 0)
        given = banyan.Tensors.alloc(layout)
        buffer = memoryview(bytearray(layout.nbytes))
        calls: dict[str, Callable[[], object]] = {
            "limit": lambda: read(folder, layout.nbytes, buffer),
            "given": lambda: banyan.load_sharded(folder, layout, given, progress=None),
            "new": lambda: banyan.load_sharded(folder, layout, progress=None),
            "peer": lambda: peer(folder, layout),
        }
        expected = peer(folder, layout)
        banyan.load_sharded(folder, layout, given, progress=None)
        for name, one in expected.items():
            np.testing.assert_array_equal(np.asarray(given[name]), one)
        del expected
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(TURNS + 1):
            for name, call in calls.items():
                began = time.perf_counter()
                result = call()
                times[name].append(time.perf_counter() - began)
                del result
        seconds = {name: statistics.median(one[1:]) for name, one in times.items()}
        speed = {name: layout.nbytes / 1e9 / one for name, one in seconds.items()}
    print(f"a rank's {layout.nbytes / 1e6:.0f} MB of Qwen3-0.6B (tp=2), files in the page cache")
    print(f"large reads of as many bytes (limit)      {speed['limit']:6.2f} GB/s")
    print(f"safe_open and get_slice, new arrays       {speed['peer']:6.2f} GB/s")
    print(f"banyan.load_sharded, new tensors          {speed['new']:6.2f} GB/s")
    print(f"banyan.load_sharded, tensors that exist   {speed['given']:6.2f} GB/s")
    good = True
    for what, ratio, goal in (
        ("new tensors, beside safetensors", speed["new"] / speed["peer"], PEER_GOAL),
        ("tensors that exist, share of the limit", speed["given"] / speed["limit"], LIMIT_GOAL),
    ):
        good &= ratio >= goal
        print(f"{what}: {ratio:.2f} (goal {goal}): {'met' if ratio >= goal else 'MISSED'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
