"""Shards of every kind of source that vLLM's trainers may have reach a real engine."""

from __future__ import annotations

import unittest
from typing import Any

import models
import torch
from engine import Engine, FolderTest, fresh
from processes import Process
from shards import save
from sources import SOURCES
from trainer import PieceTrainer, Trainer, errors, trainers
from transformers import AutoModelForCausalLM

COUNT = 2
#: Shapes of a layer's MLP: its halves, as FSDP divides it, and the whole.
HALVES = {"down_proj": [64, 192], "gate_proj": [96, 128], "up_proj": [96, 128]}
WHOLES = {"down_proj": [128, 192], "gate_proj": [192, 128], "up_proj": [192, 128]}


class SourceTrainer(Trainer):
    """A rank whose source is one of ``sources.SOURCES``."""

    def choose(self, name: str) -> None:
        self.name = name
        if name == "StageSource":  # plain tensors
            self.model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.bfloat16)

    def source(self) -> Any:
        return SOURCES[self.name](self.model)

    def held(self, path: Any) -> dict[str, list[int]]:
        """Return the shapes that this rank sends of the first layer's MLP."""
        tensors = self.engines[path]._reader.tensors()
        return {n.split(".")[-2]: list(t.shape) for n, t in tensors.items() if "layers.0.mlp" in n}


class SourcesTest(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        self.folder = models.save("llama", self.at / "model", 1)

    def fresh(self, version: int) -> Any:
        save(self.folder, version)
        return fresh(self.folder.with_name(f"version{version}"), 1)

    def test_shards_of_all_sources(self) -> None:
        wanted = [self.fresh(version) for version in (0, 1)]
        self.assertNotEqual(*wanted)
        with (
            Process(self.at / "engine", Engine, self.folder, 1, "banyan") as engine,
            trainers(COUNT, self.folder, self.at, SourceTrainer) as training,
        ):
            sent = 0

            def use(name: str, held: list[dict[str, list[int]]]) -> None:
                nonlocal sent
                training.call("choose", name)
                training.call("join", engine.path, 1)
                self.assertEqual(training.call("held", engine.path), held)
                for _ in range(2):
                    sent += 1
                    self.assertEqual(training.call("send", engine.path, sent % 2), [sent] * COUNT)
                    self.assertEqual(engine.call("generate"), wanted[sent % 2])

            def refused(name: str) -> list[str]:
                training.call("choose", name)
                return errors(training.each([("join", engine.path, 1)] * COUNT))

            for name in (
                "DTensorModuleSource",
                "PolicySource",
                "PolicyShards",
                "FullSource",
                "ModuleSource",
            ):
                with self.subTest(name):
                    use(name, [HALVES, HALVES])
            for name, reason in (
                (
                    "GatheringSource",
                    "GatheringSource cannot .* collective operation c10d.allgather_",
                ),
                ("CuttingSource", "CuttingSource cannot .* collective operation _c10d_functional"),
                ("ReusingSource", 'it overwrote "model.layers.0.self_attn.q_proj.weight" after'),
                ("dict", "dict is no source of weights"),
                ("WideSource", r"is float32 .* \(give cast=True to round\)"),
            ):
                with self.subTest(name):
                    for text in refused(name):
                        self.assertRegex(text, reason)
            with self.subTest("LyingSource"):
                first, second = refused("LyingSource")
                reason = 'it yields "model.layers.0.input_layernorm.weight" as torch.float32 [128]'
                self.assertIn("trainer 1 cannot send: Unsupported: LyingSource cannot be", first)
                self.assertIn(reason, first)
                self.assertIn(reason, second)
            self.assertEqual(engine.call("generate"), wanted[sent % 2])
            with self.subTest("StageSource"):
                use("StageSource", [WHOLES, {}])
                use("ModuleSource", [WHOLES, WHOLES])  # of a plain module

    def test_pieces_as_of_vllm_0_33(self) -> None:
        with (
            Process(self.at / "engine", Engine, self.folder, 1, "banyan") as engine,
            trainers(COUNT, self.folder, self.at, PieceTrainer) as training,
        ):
            training.call("join", engine.path, 1)
            training.call("send", engine.path, 1)
            self.assertEqual(engine.call("generate"), self.fresh(1))


if __name__ == "__main__":
    unittest.main()
