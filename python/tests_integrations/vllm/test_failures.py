"""Trainers that fail before an update, or in the middle of one, and what a real engine serves."""

from __future__ import annotations

import os
import signal
import unittest
from collections.abc import Mapping
from typing import Any

import models
import torch
from engine import Engine, FolderTest, fresh
from processes import Died, Process
from shards import save
from trainer import Trainer, errors, trainers

from banyan.integrations.vllm import ShardSource

COUNT = 2


class FailingSource(ShardSource):
    """Raises when the tensors of the next update are asked for, or kills the process."""

    fails = ""

    def tensors(self) -> Mapping[str, torch.Tensor]:
        if self.fails == "raises":
            raise ValueError("the optimizer has no weights")
        if self.fails == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().tensors()


class FailingTrainer(Trainer):
    """A rank with such a source."""

    def source(self) -> Any:
        return FailingSource(self.model)

    def fail(self, path: Any, fails: str) -> None:
        self.engines[path].source.fails = fails


class FailuresTest(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        self.folder = models.save("qwen3", self.at / "model", 1)
        for name in ("first", "second", "third"):
            (self.at / name).mkdir()

    def engine(self, tp: int) -> Process:
        return Process(self.at / "engine", Engine, self.folder, tp, "banyan")

    def fresh(self, version: int, tp: int) -> Any:
        save(self.folder, version)
        return fresh(self.folder.with_name(f"version{version}"), tp)

    def before(self, tp: int) -> None:
        """A source that raises and one whose rank dies leave the old weights, which serve."""
        with self.engine(tp) as engine:
            with trainers(COUNT, self.folder, self.at / "first", FailingTrainer) as training:
                training.call("join", engine.path, tp)
                training.call("send", engine.path, 1)
                old = engine.call("generate")
                self.assertEqual(old, self.fresh(1, tp))
                for failing in (1, 0):
                    fail = [None] * COUNT
                    fail[failing] = ("fail", engine.path, "raises")
                    training.each(fail)
                    found = errors(training.each([("send", engine.path, 2)] * COUNT))
                    reason = "the optimizer has no weights"
                    self.assertEqual(found[failing], f"ValueError: {reason}")
                    other = f"no weights were moved: rank {failing}: {reason} (trainers: ranks 0, 1"
                    self.assertIn(other, found[1 - failing])
                    self.assertEqual(engine.call("generate"), old)
                    self.assertEqual(engine.call("get_weight_version"), "1")
                    fail[failing] = ("fail", engine.path, "")
                    training.each(fail)
                training.call("send", engine.path, 3)
                old = engine.call("generate")
                self.assertEqual(old, self.fresh(3, tp))
                training.each([None, ("fail", engine.path, "dies")])
                first, second = training.each([("send", engine.path, 2)] * COUNT)
                self.assertIsInstance(second, Died)
                self.assertRegex(str(first), "PeerLost: no weights were moved: .*rank 1")
                (again, _) = training.each([("send", engine.path, 2), None])
                self.assertRegex(str(again), "PeerLost: no weights were moved: .*rank 1")
                self.assertEqual(engine.call("generate"), old)
                self.assertEqual(engine.call("get_weight_version"), "2")
            with trainers(COUNT, self.folder, self.at / "second", FailingTrainer) as training:
                training.call("join", engine.path, tp)
                training.each([("fail", engine.path, "dies"), None])
                second = training.each([("send", engine.path, 2)] * COUNT)[1]
                self.assertRegex(str(second), "PeerLost: no weights were moved: .*rank 0")
                self.assertEqual(engine.call("generate"), old)
            with trainers(COUNT, self.folder, self.at / "third") as training:
                training.call("join", engine.path, tp)
                self.assertEqual(training.call("send", engine.path, 4), [3] * COUNT)
                self.assertEqual(engine.call("generate"), self.fresh(4, tp))

    def between(self, tp: int) -> None:
        """A rank that dies between two groups of layers leaves the engine torn."""
        with self.engine(tp) as engine:
            for number, name in enumerate(("first", "second")):
                with trainers(COUNT, self.folder, self.at / name) as training:
                    training.call("join", engine.path, tp, 1)
                    sent = training.call("send", engine.path, 5 + number)
                    self.assertEqual(sent, [1 + number] * COUNT)
                    if number:  # after the first ones had died
                        self.assertEqual(engine.call("generate"), self.fresh(6, tp))
                    calls: list[Any] = [("send", engine.path, 7)] * COUNT
                    calls[number] = ("send", engine.path, 7, True, 1)  # each rank in its turn
                    found = training.each(calls)
                    self.assertIsInstance(found[number], Died)
                    failed = f"PeerLost: the update to version {2 + number} failed: .*rank {number}"
                    self.assertRegex(str(found[1 - number]), failed)
                    self.assertEqual(engine.call("torn"), [True] * tp)
                    self.assertEqual(engine.call("get_weight_version"), str(1 + number))
            with self.assertRaisesRegex(
                RuntimeError, "the weights are torn: the update to version 3"
            ):
                engine.call("generate")

    def test_old_weights_serve_on_one_worker(self) -> None:
        self.before(1)

    def test_old_weights_serve_on_two_workers(self) -> None:
        self.before(2)

    def test_a_death_between_two_groups_with_one_worker(self) -> None:
        self.between(1)

    def test_a_death_between_two_groups_with_two_workers(self) -> None:
        self.between(2)


if __name__ == "__main__":
    unittest.main()
