"""Engines that follow a publication, held against new engines that load the checkpoint."""

from __future__ import annotations

import secrets
import socket
import unittest
from pathlib import Path
from typing import Any

import models
from engine import Engine, FolderTest, fresh
from processes import Process
from shards import changed_values, fill, save
from trainer import Trainer, trainers

from banyan.integrations.vllm import ShardSource, WeightPublication, WeightSubscription

#: Trainer ranks.
COUNT = 2
SECRET = secrets.token_hex(16)
#: Seconds in which a version arrives on a loaded machine.
ARRIVAL = 60


class Publisher(Trainer):
    """A rank of trainers that call no engine."""

    publication: WeightPublication

    def open(self, address: str) -> list[Any]:
        self.publication = WeightPublication(
            ShardSource(self.model), address, SECRET, name="weights"
        )
        return [list(one) for one in self.publication.tensors]

    def publish(self, version: int) -> int:
        fill(self.model, version, changed_values)
        changed = self.publication.publish(version).changed
        fill(self.model, version + 100)  # the trainers go on
        return changed


class Follower(Engine):
    """An engine, and the subscription of the process that drives it."""

    def __init__(self, folder: Path, tp: int, **options: Any) -> None:
        super().__init__(folder, tp, "banyan_subscription", **options)
        self.workers = tp
        self.followed: Any = None

    def subscribe(self, address: str, secret: str = SECRET, **options: Any) -> int:
        self.followed = WeightSubscription(
            self.llm, address, secret, workers=self.workers, name="weights", **options
        )
        return int(self.followed.version)

    def update(self, version: int = 0, timeout: float = ARRIVAL) -> int:
        return int(self.followed.update(version, timeout))

    def wait(self, version: int) -> int:
        return int(self.followed.wait(version))

    def fetches(self) -> tuple[int, int]:
        one = self.followed.subscription
        return one.whole_fetches, one.delta_fetches

    def unsubscribe(self) -> None:
        self.followed.close()


def free_address() -> str:
    """Return an address where nobody listens, for trainers that are started twice."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


class SubscriptionTest(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        self.address = free_address()

    def engine(self, name: str, folder: Path, tp: int, **options: Any) -> Process:
        return Process(self.at / name, Follower, folder, tp, **options)

    def tokens(self, folder: Path, tp: int, version: int) -> Any:
        """Return what a new engine generates that loads a version."""
        save(folder, version, changed_values)
        return fresh(folder.with_name(f"version{version}"), tp)

    def follow(self, family: str, tp: int) -> None:
        folder = models.save(family, self.at / "model", 1)
        seen = []
        with (
            self.engine("engine", folder, tp) as engine,
            trainers(COUNT, folder, self.at, Publisher) as training,
        ):
            seen.append(engine.call("generate"))
            training.call("open", self.address)
            training.call("publish", 1)
            self.assertEqual(engine.call("subscribe", self.address), 1)
            seen.append(engine.call("generate"))
            for version in (2, 3):
                training.call("publish", version)
                self.assertEqual(engine.call("generate"), seen[-1])  # until it commits
                self.assertEqual(engine.call("update", version), version)
                self.assertEqual(engine.call("get_weight_version"), str(version))
                seen.append(engine.call("generate"))
            self.assertEqual(engine.call("fetches"), (1, 2))
            self.assertEqual(engine.call("update"), 3)  # nothing is newer
            if tp == 2:
                with self.engine("later", folder, tp) as later:
                    self.assertEqual(later.call("subscribe", self.address), 3)
                    self.assertEqual(later.call("generate"), seen[-1])
                    self.assertEqual(later.call("get_weight_version"), "3")
        self.assertEqual(len({str(one) for one in seen}), 4)
        self.assertEqual(seen[-1], self.tokens(folder, tp, 3))

    def test_tokens_of_llama_on_1(self) -> None:
        self.follow("llama", 1)

    def test_tokens_of_llama_on_2(self) -> None:
        self.follow("llama", 2)

    def test_tokens_of_qwen3_moe_on_1(self) -> None:
        self.follow("qwen3_moe", 1)

    def test_tokens_of_qwen3_moe_on_2(self) -> None:
        self.follow("qwen3_moe", 2)

    def test_an_engine_serves_while_trainers_are_started_again(self) -> None:
        folder = models.save("llama", self.at / "model", 1)
        (self.at / "second").mkdir()
        with self.engine("engine", folder, 1, load_format="dummy") as engine:
            with trainers(COUNT, folder, self.at, Publisher) as training:
                (tensors, _) = training.call("open", self.address)
                training.call("publish", 1)
                self.assertEqual(engine.call("subscribe", self.address, tensors=tensors), 1)
                training.call("publish", 2)
                self.assertEqual(engine.call("update", 2), 2)
                old = engine.call("generate")
            # The trainers were killed.
            self.assertEqual(engine.call("generate"), old)
            with self.assertRaisesRegex(RuntimeError, "Timeout: waited .* above 2"):
                engine.call("update", 3, 1)
            self.assertEqual(engine.call("update"), 2)
            self.assertEqual(engine.call("generate"), old)
            with trainers(COUNT, folder, self.at / "second", Publisher) as training:
                training.call("open", self.address)
                training.call("publish", 3)
                self.assertEqual(engine.call("update", 3), 3)
                self.assertEqual(engine.call("get_weight_version"), "3")
                # Versions that nobody commits are skipped.
                for version in (4, 5):
                    training.call("publish", version)
                self.assertEqual(engine.call("update", 5), 5)
                new = engine.call("generate")
                # A subscription that is made again continues.
                engine.call("unsubscribe")
                self.assertEqual(engine.call("generate"), new)
                training.call("publish", 6)
                self.assertEqual(engine.call("subscribe", self.address, tensors=tensors), 6)
                self.assertEqual(engine.call("generate"), self.tokens(folder, 1, 6))
        self.assertEqual(new, self.tokens(folder, 1, 5))

    def test_what_does_not_fit_is_refused_and_the_engine_serves(self) -> None:
        folder = models.save("llama", self.at / "model", 1)
        other = models.save("llama", self.at / "other", 1, intermediate_size=256)
        (self.at / "second").mkdir()
        with self.engine("engine", folder, 2) as engine:
            before = engine.call("generate")
            with self.assertRaisesRegex(RuntimeError, "waited .* for a version above 0"):
                engine.call("subscribe", self.address, timeout=1)  # nobody publishes
            with trainers(COUNT, other, self.at, Publisher) as training:
                training.call("open", self.address)
                training.call("publish", 1)
                with self.assertRaisesRegex(RuntimeError, "model.layers.0.mlp"):
                    engine.call("subscribe", self.address, timeout=10)
                with self.assertRaisesRegex(RuntimeError, "a wrong secret here"):
                    engine.call("subscribe", self.address, "ab" * 16, timeout=10)
            self.assertEqual(engine.call("generate"), before)
            with self.assertRaisesRegex(RuntimeError, "no trainer has joined"):
                engine.call("start_weight_update")


if __name__ == "__main__":
    unittest.main()
