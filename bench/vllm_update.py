"""Whole update of a vLLM engine, from the trainer's call to the first token with new weights.

    PYTHONPATH=build/python:python/tests_integrations/vllm build/venv-vllm/bin/python \
        bench/vllm_update.py [GIGABYTES]

Two trainer processes (FSDP2 over Gloo) and an engine with one worker, on the CPU. Beside it vLLM's
own way there: the trainers save a checkpoint, and the engine reloads it layer by layer from the
disk (in the page cache). The limit is one copy of the bytes by one process.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import models
import torch
from copies import copy_seconds
from engine import Engine
from processes import Process
from trainer import Trainer, trainers

ROUNDS = 5
#: Trainer ranks.
COUNT = 2
#: Parameters of a layer, and of the rest, with the shapes below.
HIDDEN, INNER, VOCABULARY = 2048, 5632, 16384
LAYER = HIDDEN * (HIDDEN * 2 + 512 * 2) + 3 * HIDDEN * INNER
REST = VOCABULARY * HIDDEN


class Saving(Trainer):
    """A trainer that can also save its model."""

    def save(self, folder: Path) -> None:
        """Gather the shards at rank 0, which writes them."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_model_state_dict(self.model, options=options)
        if self.rank == 0:
            self.model.save_pretrained(folder, state_dict=state)

    def change(self, version: int) -> None:
        """Make other weights, without much time."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(-1 if version % 2 else 1.25)

    def send_only(self, where: Any) -> int:
        """Send what the model has."""
        sent: int = self.engines[where].send_weights()
        return sent


def median(seconds: list[float]) -> str:
    """Return the median and the range as text."""
    low, high = min(seconds), max(seconds)
    return f"{statistics.median(seconds):6.2f} s (of {len(seconds)}: {low:.2f} to {high:.2f})"


def save_model(folder: Path) -> tuple[Path, int, int]:
    """Save a model of as many gigabytes as the command asks for.

    Return its folder, its number of layers, and its bytes.
    """
    size = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    layers = max(1, round((size * 1e9 / 2 - REST) / LAYER))
    saved = models.save(
        "llama",
        folder,
        1,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=128,
        vocab_size=VOCABULARY,
    )
    return saved, layers, 2 * (layers * LAYER + REST)


def measure(
    kind: type[Saving], backend: str, join: Sequence[Any] = (), **options: Any
) -> dict[str, list[float]]:
    """Let the update by a backend and the way through the disk take turns. Print and return times.

    ``join``: arguments of the trainers' ``join`` behind engine and workers. ``options``: the
    engine's.
    """
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        at = Path(temporary)
        folder, layers, nbytes = save_model(at / "model")
        saved = at / "saved"
        with (
            Process(at / "engine", Engine, folder, 1, backend, **options) as engine,
            trainers(COUNT, folder, at, kind) as training,
        ):
            training.call("join", engine.path, 1, *join)
            for version in range(1, ROUNDS + 2):  # the first one warms up
                training.call("change", version)
                found = {}
                began = time.perf_counter()
                training.call("send_only", engine.path)
                found["sent"] = time.perf_counter() - began
                first = engine.call("first_token")
                found["all"] = time.perf_counter() - began
                if backend == "banyan":
                    found["received"], found["processed"] = engine.call("seconds")
                began = time.perf_counter()
                training.call("save", saved)
                found["saved"] = time.perf_counter() - began
                engine.call("collective_rpc", "reload_weights", kwargs={"weights_path": str(saved)})
                assert engine.call("first_token") == first, "the two ways give other tokens"
                found["reloaded"] = time.perf_counter() - began
                if version > 1:
                    for key, value in found.items():
                        times.setdefault(key, []).append(value)
    print(f"update of {nbytes / 1e9:.2f} GB of {layers} layers, {COUNT} trainers, 1 worker")
    print(f"  trainer's call to first token      {median(times['all'])}")
    print(f"    until send_weights returns       {median(times['sent'])}")
    if backend == "banyan":
        print(f"    received by the worker           {median(times['received'])}")
        print(f"    repacked for the CPU by vLLM     {median(times['processed'])}")
    print(f"  checkpoint, reload, first token    {median(times['reloaded'])}")
    print(f"    until the checkpoint is saved    {median(times['saved'])}")
    limit = statistics.median(copy_seconds(nbytes) for _ in range(ROUNDS))
    print(f"  limit: one copy of the bytes       {limit:6.2f} s")
    return times


def main() -> None:
    """Measure."""
    times = measure(Saving, "banyan")
    ratio = statistics.median(times["reloaded"]) / statistics.median(times["all"])
    print(f"  {ratio:.1f} times as fast as checkpoint and reload")


if __name__ == "__main__":
    main()
