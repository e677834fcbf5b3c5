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
from pathlib import Path
from typing import Any

import models
import torch
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


class SavingTrainer(Trainer):
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


def copy_seconds(size: int) -> float:
    """Return the time of one copy of so many bytes."""
    source, into = torch.ones(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        into.copy_(source)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    """Measure."""
    size = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    layers = max(1, round((size * 1e9 / 2 - REST) / LAYER))
    nbytes = 2 * (layers * LAYER + REST)
    with tempfile.TemporaryDirectory() as temporary:
        at = Path(temporary)
        folder = models.save(
            "llama",
            at / "model",
            1,
            hidden_size=HIDDEN,
            intermediate_size=INNER,
            num_hidden_layers=layers,
            num_attention_heads=16,
            num_key_value_heads=4,
            head_dim=128,
            vocab_size=VOCABULARY,
        )
        saved = at / "saved"
        with (
            Process(at / "engine", Engine, folder, 1, "banyan") as engine,
            trainers(COUNT, folder, at, SavingTrainer) as training,
        ):
            training.call("join", engine.path, 1)
            ours: dict[str, list[float]] = {"sent": [], "all": [], "received": [], "processed": []}
            theirs: dict[str, list[float]] = {"saved": [], "all": []}
            for version in range(1, ROUNDS + 2):  # the first one warms up
                training.call("change", version)
                began = time.perf_counter()
                training.call("send_only", engine.path)
                sent = time.perf_counter() - began
                first = engine.call("first_token")
                times = sent, time.perf_counter() - began, *engine.call("seconds")
                began = time.perf_counter()
                training.call("save", saved)
                wrote = time.perf_counter() - began
                engine.call("collective_rpc", "reload_weights", kwargs={"weights_path": str(saved)})
                assert engine.call("first_token") == first, "the two ways give other tokens"
                if version > 1:
                    for key, value in zip(ours, times, strict=True):
                        ours[key].append(value)
                    theirs["saved"].append(wrote)
                    theirs["all"].append(time.perf_counter() - began)
    print(f"update of {nbytes / 1e9:.2f} GB of {layers} layers, {COUNT} trainers, 1 worker")
    print(f"  trainer's call to first token      {median(ours['all'])}")
    print(f"    until send_weights returns       {median(ours['sent'])}")
    print(f"    received by the worker           {median(ours['received'])}")
    print(f"    repacked for the CPU by vLLM     {median(ours['processed'])}")
    print(f"  checkpoint, reload, first token    {median(theirs['all'])}")
    print(f"    until the checkpoint is saved    {median(theirs['saved'])}")
    limit = copy_seconds(nbytes)
    print(f"  limit: one copy of the bytes       {limit:6.2f} s")
    ratio = statistics.median(theirs["all"]) / statistics.median(ours["all"])
    print(f"  {ratio:.1f} times as fast as checkpoint and reload")


if __name__ == "__main__":
    main()
