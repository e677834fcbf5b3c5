"""Trainers in processes of their own: transformers' models, sharded by FSDP2 over Gloo."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from engine import Client
from processes import Died, Process
from shards import fill, load_sharded
from torch.distributed.tensor import DTensor
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

import banyan
from banyan.integrations.vllm import BanyanTrainerInitInfo, ShardSource, register


class Deadly:
    """A plan whose run kills the process."""

    def execute(self, *_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Trainer:
    """One rank."""

    def __init__(self, rank: int, count: int, folder: Path, store: Path) -> None:
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", store=dist.FileStore(str(store), count), rank=rank, world_size=count
        )
        self.rank, self.count, self.folder = rank, count, folder
        self.model: Any = self.make()
        register()
        self.engines: dict[Any, Any] = {}

    def make(self) -> Any:
        return load_sharded(self.folder, self.count)

    def client(self, where: Any) -> Any:
        return Client(where)

    def join(self, path: Any, workers: int, group_bytes: int = 2 << 30) -> None:
        """Join an engine."""
        info = BanyanTrainerInitInfo(
            rank=self.rank,
            world_size=self.count + workers,
            num_trainer_ranks=self.count,
            timeout=60,
            group_bytes=group_bytes,
        )
        self.engines[path] = WeightTransferTrainerFactory.trainer_init(
            info, client=self.client(path), source=self.source()
        )

    def source(self) -> Any:
        return ShardSource(self.model)

    def fill(self, version: int) -> None:
        fill(self.model, version)

    def send(self, path: Any, version: int, dies: bool = False, group: int = 0) -> int:
        """Send a version. ``dies``: be killed when all have agreed to begin with a group."""
        self.fill(version)
        engine = self.engines[path]
        if dies:
            engine._updates._plans[group] = Deadly()
        sent: int = engine.send_weights()
        return sent

    def shutdown(self, path: Any) -> None:
        self.engines.pop(path).shutdown()


class PackedTrainer(Trainer):
    """A rank that has what Megatron-Core's has: fused and divided by two, with names of its own."""

    SPEC = "tp=2,packing=megatron"

    def __init__(self, rank: int, count: int, folder: Path, store: Path) -> None:
        super().__init__(rank, count, folder, store)
        self.tensors: dict[str, torch.Tensor] = {}
        self.load(folder)

    def load(self, folder: Path) -> None:
        held = banyan.load_sharded(folder, self.SPEC, rank=self.rank, progress=False)
        self.tensors = {name: held[name].torch().clone() for name in held.keys()}  # noqa: SIM118

    def source(self) -> Any:
        layout = banyan.Layout()
        layout.add_model(banyan.Model(self.folder), banyan.Spec(self.SPEC), self.rank)
        return ShardSource(layout, lambda: self.tensors)

    def fill(self, version: int) -> None:
        self.load(self.folder.with_name(f"version{version}"))


class Pieces:
    """A source with the interface of vLLM 0.33: metadata with owners, and ``iter_local``."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    @property
    def metadata(self) -> list[Any]:
        metas = []
        for name, one in self._model.named_parameters():
            assert isinstance(one, DTensor)
            mesh = one.device_mesh.mesh
            metas.append(
                SimpleNamespace(
                    name=name,
                    dtype=one.dtype,
                    shape=tuple(one.shape),
                    owners=tuple(mesh.flatten().tolist()),
                    mesh_shape=tuple(mesh.shape),
                    placements=tuple(one.placements),
                )
            )
        return metas

    def iter_local(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, one in self._model.named_parameters():
            assert isinstance(one, DTensor)
            yield name, one.to_local()


class PieceTrainer(Trainer):
    """A rank whose source has the interface of vLLM 0.33."""

    def source(self) -> Any:
        return Pieces(self.model)


def errors(results: list[Any]) -> list[str]:
    """Return the errors of ranks as text."""
    return [str(one) if isinstance(one, Exception) else f"returned {one}" for one in results]


class Trainers:
    """All ranks."""

    def __init__(self, processes: list[Any]) -> None:
        self._processes = processes

    def each(self, calls: list[tuple[Any, ...] | None]) -> list[Any]:
        """Let each rank make its call, and return what they return, or their errors."""
        for process, call in zip(self._processes, calls, strict=True):
            if call is not None:
                process.start(*call)
        results: list[Any] = []
        for process, call in zip(self._processes, calls, strict=True):
            try:
                results.append(None if call is None else process.result())
            except (RuntimeError, Died) as error:
                results.append(error)
        return results

    def call(self, *call: Any) -> list[Any]:
        """Let all ranks make a call, and return what they return."""
        results = self.each([call] * len(self._processes))
        for rank, result in enumerate(results):
            assert not isinstance(result, Exception), f"trainer {rank}: {result}"
        return results


@contextlib.contextmanager
def trainers(
    count: int, folder: Path, at: Path, kind: type[Trainer] = Trainer
) -> Iterator[Trainers]:
    """Run the ranks of a trainer, with sockets and a store at a path."""
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                Process(at / f"trainer{rank}", kind, rank, count, folder, at / "store")
            )
            for rank in range(count)
        ]
        yield Trainers(processes)
