"""A model of Megatron-Core, on two ranks, updates a real engine."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import time
import unittest
from pathlib import Path

import models
from engine import PROMPTS, Engine, fresh
from processes import Process
from trainer import trainers

if importlib.util.find_spec("megatron") is None:
    print("skipped: megatron-core is not installed (make test-vllm installs it)")
    sys.exit(77)

from megatron_trainer import TP, MegatronTrainer, save_checkpoint


class MegatronTest(unittest.TestCase):
    def check(self, family: str, tp: int) -> None:
        began = time.monotonic()
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        at = Path(made.name)
        folder = models.save(family, at / "model", 1)
        seen = []
        with (
            Process(at / "engine", Engine, folder, tp, "banyan") as engine,
            trainers(TP, folder, at, MegatronTrainer) as training,
        ):
            training.call("join", engine.path, tp)
            for version in (1, 2):
                self.assertEqual(training.call("send", engine.path, version), [version] * TP)
                saved = at / f"version{version}"
                save_checkpoint(folder, training.call("shards", version), saved)
                seen.append(fresh(saved, tp))
                self.assertEqual(engine.call("generate"), seen[-1])
                # Megatron-Core computes the same with these weights, but for rounding.
                for theirs in training.call("chances", PROMPTS, version):
                    for chances, (tokens, logs) in zip(theirs, seen[-1], strict=True):
                        self.assertIn(tokens[0], chances)
                        self.assertAlmostEqual(chances[tokens[0]], logs[0], delta=0.1)
        self.assertNotEqual(*seen)
        print(f"{family} on {tp}: {time.monotonic() - began:.0f} s", flush=True)

    def test_qwen3_on_one_worker(self) -> None:
        self.check("qwen3", 1)

    def test_tied_llama_on_two_workers(self) -> None:
        self.check("llama", 2)


if __name__ == "__main__":
    unittest.main()
