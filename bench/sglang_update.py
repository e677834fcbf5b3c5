"""A whole update of a model of 1 GB in SGLang's workers, beside SGLang's own ways.

usage: sglang_update.py [--layers N]

Two trainers have the whole weights, and an engine has tp=2. The time is from the trainer's call to
the answers of all workers, whose parameters are new then, the median of several turns. SGLang's
kernels are not on PyPI for CPUs, so there is no token. Needs the environment of make test-sglang.
"""

# ruff: noqa: E402
from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python/tests_torch"), str(ROOT / "python/tests_integrations/sglang")]

import torch
import torch.distributed as dist
import transformers
from copies import copy_seconds
from engines import run, save
from safetensors.torch import load_file, save_file

from banyan.integrations.sglang import Trainer

TURNS = 4
WAYS = ("banyan", "tensors", "disk", "saved and disk", "copies")


def train(rank: int, call: Any, folder: str, nbytes: int) -> None:
    """Time all ways at the trainers."""
    read = load_file(os.path.join(folder, "model.safetensors"))
    weights = {name: one.clone() for name, one in read.items()}  # not the mapped file
    del read
    trainer = Trainer(weights, [2], timeout=200)
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(TURNS + 1):
        for way in WAYS:
            dist.barrier()
            began = time.perf_counter()
            if way == "banyan":
                trainer.update(call)
            elif way == "copies":
                times[way].append(copy_seconds(nbytes // 2))
                continue
            elif rank == 0:
                if way == "saved and disk":
                    save_file(weights, os.path.join(folder, "saved", "model.safetensors"))
                call(0, list(weights.items()) if way == "tensors" else [], None)
            times[way].append(time.perf_counter() - began)
    if rank == 0:
        found = {way: statistics.median(times[way][1:]) * 1e3 for way in WAYS}
        print(
            f"{nbytes / 1e6:.0f} MB in both trainers to SGLang with tp=2",
            f"  Banyan, in place                               {found['banyan']:7.0f} ms",
            f"  update_weights_from_tensor, through shared memory {found['tensors']:4.0f} ms",
            f"  update_weights_from_disk, without the saving   {found['disk']:7.0f} ms",
            f"    with the saving                              {found['saved and disk']:7.0f} ms",
            f"  limit: both trainers copy these bytes          {found['copies']:7.0f} ms",
            sep="\n",
            flush=True,
        )


def serve(worker: Any, engine: int, pipe: Any, folder: str, nbytes: int) -> None:
    """Answer the requests of all ways."""
    for _ in range(TURNS + 1):
        worker.update(pipe)
        worker.update(pipe, None)
        for path in (folder, os.path.join(folder, "saved")):
            pipe.recv()
            pipe.send(worker.updater.update_weights_from_disk(path, "safetensors"))


def main() -> int:
    """Print the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    options = parser.parse_args()
    config = transformers.LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=options.layers,
        num_attention_heads=16,
        num_key_value_heads=16,
    )
    with tempfile.TemporaryDirectory() as folder:
        shapes = save(config, folder)
        os.mkdir(os.path.join(folder, "saved"))
        nbytes = sum(torch.Size(shape).numel() * 2 for shape in shapes.values())
        results = run(2, [2], folder, train, serve, folder, nbytes)
    for rank, text in enumerate(results):
        if text is not None:
            print(f"rank {rank}: {text}")
    return int(any(results))


if __name__ == "__main__":
    sys.exit(main())
