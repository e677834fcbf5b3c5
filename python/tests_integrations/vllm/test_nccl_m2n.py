"""vLLM's own backend ``nccl_m2n`` on banyan.integrations.m2n: its engine, trainer and source.

Its code is vLLM's. It takes streams and devices of CUDA for granted; on the host, PyTorch's
functions for them are replaced here.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import tempfile
import time
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import models
import torch
import unpacked  # noqa: F401
from engine import Engine, fresh_state, require_state
from environment import DEVICE
from processes import Died, Process
from shards import save
from trainer import Trainer, trainers
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.m2n_source import DTensorModuleSource
from vllm.distributed.weight_transfer.m2n_trainer import M2NTrainerInitInfo

import banyan.integrations.m2n as m2n

COUNT = 2
if DEVICE == "cpu":
    torch.accelerator.current_device_index = lambda: 0
    torch.accelerator.synchronize = lambda *_: None
    torch.cuda.current_stream = lambda *_: torch.Stream(device="cpu")  # type: ignore[assignment]
    torch.Tensor.record_stream = lambda *_: None  # type: ignore[method-assign]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class M2NTrainer(Trainer):
    """A rank that sends by vLLM's trainer."""

    def join(self, path: Any, workers: int, port: int = 0, dims: Any = None) -> None:  # type: ignore[override]
        import banyan.integrations.m2n.vllm  # noqa: F401

        info = M2NTrainerInitInfo(
            master_address="127.0.0.1",
            master_port=port,
            rank=self.rank,
            world_size=self.count + workers,
            num_trainer_ranks=self.count,
            dst_mesh_dims=dims,
            max_cta=8,
        )
        self.engines[path] = WeightTransferTrainerFactory.trainer_init(
            info, client=self.client(path), source=DTensorModuleSource(self.model, self.count)
        )

    def kinds(self, path: Any) -> tuple[str, str, str]:
        """Return the classes in use."""
        engine = self.engines[path]
        return type(engine).__name__, type(engine.group).__name__, engine._m2n.__name__

    def send(self, path: Any, version: int, dies: bool = False) -> float:  # type: ignore[override]
        self.fill(version)
        engine = self.engines[path]
        if dies:
            engine.source = self.few(engine.source)
        began = time.perf_counter()
        engine.send_weights()
        return time.perf_counter() - began

    def few(self, source: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield some tensors, and be killed."""
        yield from itertools.islice(source, 3)
        os.kill(os.getpid(), signal.SIGKILL)


class M2NTest(unittest.TestCase):
    def engine(self, at: Path, folder: Path, tp: int) -> Process:
        extension = "banyan.integrations.m2n.vllm.Extension"
        return Process(at, Engine, folder, tp, "nccl_m2n", worker_extension_cls=extension)

    def updates(self, family: str, tp: int, dims: Any) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            at = Path(temporary)
            folder = models.save(family, at / "model", 1)
            with (
                self.engine(at / "engine", folder, tp) as engine,
                trainers(COUNT, folder, at, M2NTrainer) as training,
            ):
                training.call("join", at / "engine", tp, free_port(), dims)
                self.assertEqual(
                    training.call("kinds", at / "engine"),
                    [("M2NTrainerWeightTransferEngine", "Communicator", m2n.__name__)] * COUNT,
                )
                seen = [engine.call("generate")]
                for version in (2, 3, 4):
                    save(folder, version)
                    seconds = training.call("send", at / "engine", version)
                    path = folder.with_name(f"version{version}")
                    wanted = require_state(engine, fresh_state(path, tp))
                    self.assertNotIn(wanted, seen)
                    seen.append(wanted)
                    print(f"{family} tp={tp}: update {version} {max(seconds):.2f} s", flush=True)
                training.call("shutdown", at / "engine")

    def test_llama_on_one_worker(self) -> None:
        self.updates("llama", 1, None)

    def test_qwen3_on_two_workers(self) -> None:
        self.updates("qwen3", 2, (1, 2))

    def test_a_killed_trainer_ends_the_update_of_all(self) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            at = Path(temporary)
            folder = models.save("llama", at / "model", 1)
            with (
                self.engine(at / "engine", folder, 1) as engine,
                trainers(COUNT, folder, at, M2NTrainer) as training,
            ):
                training.call("join", at / "engine", 1, free_port(), None)
                began = time.monotonic()
                calls = [("send", at / "engine", 2, dies) for dies in (False, True)]
                results = training.each(calls)
                seconds = time.monotonic() - began
                self.assertIsInstance(results[1], Died)
                self.assertRegex(str(results[0]), r"rank 1 \(pid \d+ on node .*\) died while rank")
                self.assertLess(seconds, 60)
                print(f"killed trainer: all have the error after {seconds:.1f} s", flush=True)
                engine.call("shutdown_weight_transfer_engine")
                again = at / "again"
                again.mkdir()
                save(folder, 3)
                with trainers(COUNT, folder, again, M2NTrainer) as others:
                    others.call("join", at / "engine", 1, free_port(), None)
                    others.call("send", at / "engine", 3)
                    with Process(at / "fresh", Engine, folder.with_name("version3"), 1) as fresh:
                        wanted = fresh.call("digests")
                    self.assertEqual(engine.call("digests"), wanted)


if __name__ == "__main__":
    unittest.main()
