"""A whole update of an engine of SGLang with a model of 1 GB, beside SGLang's own ways.

usage: sglang_update.py [--layers N] [--tp N]

Two trainers have the whole weights. The time is from the trainer's call to the first token with new
weights, the median of several turns. The engine computes on the host with PyTorch's operators,
since PyPI has no build of SGLang's kernels for CPUs. Needs the environment of make test-sglang.
"""

# ruff: noqa: E402
from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python/tests_torch"), str(ROOT / "python/tests_integrations/sglang")]

from generation import Engine, Rank, all_call

# isort: split
import torch
from processes import Process
from transformers import AutoModelForCausalLM
from whole_updates import Copying, Updates, Way, main, negate, save_versions


class Whole(Copying, Rank):
    """A trainer that has the whole weights."""

    def make(self, folder: Path, count: int) -> Any:
        """Load the model."""
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)

    def change(self) -> None:
        """Change to the other version."""
        negate(self.model)

    def nbytes(self) -> int:
        """Return the bytes of the weights."""
        return sum(one.nbytes for one in self.model.parameters())

    def send_tensors(self) -> None:
        """Send all weights in a request."""
        weights = [(name, one.detach()) for name, one in self.model.named_parameters()]
        answer = self.engines[0].call("update", weights, None)
        assert answer[0], answer

    def save(self, folder: Path) -> None:
        """Save the weights."""
        self.model.save_pretrained(folder)

    def load(self, folder: Path) -> None:
        """Let the engine load weights from a folder."""
        answer = self.engines[0].call("load", folder)
        assert answer[0], answer


class Loading(Engine):
    """An engine that loads weights from a folder, too."""

    def load(self, folder: Path) -> Any:
        """Load weights that have been saved."""
        return self.engine.update_weights_from_disk(str(folder))


def measure(at: Path, layers: int, tp: int) -> None:
    """Compare all ways, with an engine of so many workers."""
    folders = save_versions(at, layers)
    with Process(at / "other", Engine, folders[1], tp) as other:
        expected = [other.call("first_token")]
    with (
        Process(at / "engine", Loading, folders[0], tp) as engine,
        Process(at / "rank0", Whole, 0, 2, folders[0], at / "store") as first,
        Process(at / "rank1", Whole, 1, 2, folders[0], at / "store") as second,
    ):
        ranks = [first, second]
        expected.insert(0, engine.call("first_token"))
        all_call(ranks, "join", [at / "engine"], tp)
        nbytes = first.call("nbytes")
        updates = Updates([engine], expected, lambda: all_call(ranks, "change"))

        def save_and_load() -> None:
            first.call("save", at / "saved")
            first.call("load", at / "saved")

        updates.compare(
            f"{nbytes / 1e6:.0f} MB in both trainers to an engine of SGLang with tp={tp}",
            [
                Way("Banyan", lambda: all_call(ranks, "update")),
                Way("update_weights_from_tensor", lambda: first.call("send_tensors")),
                Way("..._from_disk", lambda: first.call("load", folders[updates.version])),
                Way("saving and ..._from_disk", save_and_load),
            ],
            {},
            lambda: max(all_call(ranks, "copy", nbytes // 2)),
        )


if __name__ == "__main__":
    main(measure, __doc__, tp=2)
