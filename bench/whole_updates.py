"""Whole updates of engines of vLLM, from the trainer's call to the first token with new weights.

A model has two versions with opposite signs, which take turns. So the weights before an update
never give the tokens that are expected after it: those of a new engine with the version.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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


class Way(NamedTuple):
    """A way to update engines."""

    name: str
    update: Callable[[], object]
    prepare: Callable[[], object] = lambda: None
    """What is not timed."""


class Updates:
    """Updates of engines in several ways, which take turns, and their times.

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

    def tokens(self) -> None:
        """Let all engines compute the first tokens, and require those of the version."""
        for engine in self.engines:
            engine.start("first_token")
        for engine in self.engines:
            found = engine.result()
            wanted = self.expected[self.version]
            assert found == wanted, f"version {self.version}: {found}, not {wanted}"

    def _time(self, way: Way) -> tuple[float, float]:
        """Update to the other version. Return the seconds until the first tokens, and without."""
        self.change()
        self.version = 1 - self.version
        way.prepare()
        began = time.perf_counter()
        way.update()
        updated = time.perf_counter() - began
        self.tokens()
        return time.perf_counter() - began, updated

    def compare(
        self,
        title: str,
        ways: Sequence[Way],
        alone: Mapping[str, Callable[[], object]],
        copy: Callable[[], float],
    ) -> None:
        """Let all ways take turns, and print the medians of the turns behind the first one.

        ``alone``: parts of an update that are timed by themselves. ``copy``: returns the seconds of
        the limit.
        """
        times: dict[str, list[float]] = {}
        for _ in range(TURNS + 1):
            for way in ways:
                for note, seconds in zip(("", ", sent"), self._time(way), strict=True):
                    times.setdefault(way.name + note, []).append(seconds)
            for name, part in ({**alone, "the first tokens": self.tokens}).items():
                began = time.perf_counter()
                part()
                times.setdefault(name, []).append(time.perf_counter() - began)
            times.setdefault("copy", []).append(copy())
        medians = {name: statistics.median(one[1:]) for name, one in times.items()}

        def line(text: str, seconds: float, remark: str = "") -> None:
            print(f"  {text:<52}{seconds * 1e3:6.0f} ms{remark}")

        print(title)
        ours = ways[0].name
        for way in ways:
            ratio = medians[way.name] / medians[ours]
            remark = "" if way.name == ours else f", {ratio:.1f} times as long"
            line(f"{way.name}, to the first tokens", medians[way.name], remark)
            line("  of it until the call returns", medians[f"{way.name}, sent"])
            if way.name == ours:
                line("  the first one, which joins", times[ours][0])
        for name in (*alone, "the first tokens"):
            line(f"{name} alone", medians[name])
        share = f", {medians['copy'] / medians[ours]:.0%} of {ours}"
        line("limit: all ranks copy these bytes once, at once", medians["copy"], share)


def main(
    measure: Callable[..., None],
    description: str | None,
    close: Callable[[], object] = lambda: None,
    **options: int,
) -> None:
    """Call ``measure`` with a folder, the model's layers, and more numbers of the command line."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in {"layers": 8, **options}.items():
        parser.add_argument(f"--{name}", type=int, default=default, help="default %(default)s")
    with tempfile.TemporaryDirectory() as at:
        try:
            measure(Path(at), **vars(parser.parse_args()))
        finally:
            close()
