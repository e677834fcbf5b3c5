"""Reshards of state dicts hand their progress to the service that moves the tensors."""

from __future__ import annotations

import importlib
import unittest
from typing import Any
from unittest import mock

from groups import banyan, run, torch


def handed_on(rank: int) -> int:
    module: Any = importlib.import_module("banyan.torch._reshard")
    source, destination = {"a": torch.ones(8)}, {"a": torch.zeros(8)}

    def progress(done: int, total: int) -> None:
        raise AssertionError("a short run is reported")

    with mock.patch.object(module, "LayoutReshard", wraps=module.LayoutReshard) as made:
        for wanted in (progress, False, progress):
            banyan.torch.reshard(source, destination, progress=wanted)
    assert torch.equal(destination["a"], source["a"])
    kept = [call.kwargs["progress"] for call in made.call_args_list]
    assert kept == [progress, False], "the third call has the plan of the first"
    return rank


class ProgressTest(unittest.TestCase):
    def test_progress_is_handed_on(self) -> None:
        self.assertEqual(run(2, handed_on), [0, 1])


if __name__ == "__main__":
    unittest.main()
