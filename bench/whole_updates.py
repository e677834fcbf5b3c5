"""Whole updates of engines of vLLM, from the trainer's call to the first token with new weights.

A model has two versions with opposite signs, which take turns. So the weights before an update
never give the tokens that are expected after it: those of a new engine with the version.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from copies import copy_seconds

TURNS = 4


def negate(model: torch.nn.Module) -> None:
    """Change a model to its other version."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-1)


def save_versions(at: Path, layers: int) -> tuple[Path, Path]:
    """Save both versions of a Llama with random weights (1,084 MB with 8 layers)."""
    import models  # of vLLM's tests; workers of Ray do not find it

    folders = at / "version0", at / "version1"
    models.save(
        "llama",
        folders[0],
        1,
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=16,
        head_dim=128,
        tie_word_embeddings=False,
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(folders[0], dtype=torch.bfloat16)
    negate(model)
    model.save_pretrained(folders[1])
    return folders


class Copying:
    """The limit: a process copies bytes."""

    def copy(self, nbytes: int) -> float:
        """Copy so many bytes, and return the seconds."""
        return copy_seconds(nbytes)


class Updates:
    """Updates of engines, in turns, and their times.

    ``expected``: the first tokens of new engines with each version. ``change``: lets the trainers
    change to the other version. The engines have version 0.
    """

    def __init__(
        self, engines: Sequence[Any], expected: Sequence[Any], change: Callable[[], object]
    ) -> None:
        """Require that the versions give other tokens for each prompt."""
        assert all(one != other for one, other in zip(*expected, strict=True)), expected
        self.engines, self.expected, self.change = engines, expected, change
        self.version = 0
        self.times: dict[str, list[float]] = {}

    def tokens(self) -> None:
        """Let all engines compute the first tokens, and require those of the version."""
        for engine in self.engines:
            engine.start("first_token")
        for engine in self.engines:
            found = engine.result()
            wanted = self.expected[self.version]
            assert found == wanted, f"version {self.version}: {found}, not {wanted}"

    def time(self, name: str, update: Callable[[], object]) -> None:
        """Update to the other version, and note the seconds until the first tokens."""
        self.change()
        self.version = 1 - self.version
        began = time.perf_counter()
        update()
        self.note(f"{name}, sent", time.perf_counter() - began)
        self.tokens()
        self.note(name, time.perf_counter() - began)

    def note(self, name: str, seconds: float) -> None:
        """Note the seconds of something else."""
        self.times.setdefault(name, []).append(seconds)

    def call(self, name: str, function: Callable[[], object]) -> None:
        """Note the seconds of a call."""
        began = time.perf_counter()
        function()
        self.note(name, time.perf_counter() - began)

    def first(self, name: str) -> float:
        """Return the milliseconds of the first turn."""
        return self.times[name][0] * 1e3

    def median(self, name: str) -> float:
        """Return the median milliseconds of the turns behind the first one."""
        return statistics.median(self.times[name][1:]) * 1e3

    def row(self, text: str, name: str, peer: str | None = None) -> str:
        """Return a line with a median, and how long a peer takes beside it."""
        times = f", {self.median(peer) / self.median(name):.1f} times as fast" if peer else ""
        return f"  {text:<42}{self.median(name):6.0f} ms{times}"
