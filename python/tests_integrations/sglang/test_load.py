"""Trainers fill the parameters of SGLang's own models, as SGLang's own loader would."""

from __future__ import annotations

import os
import signal
import tempfile
import time
import unittest
import zlib
from typing import Any

from groups import seed, torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

# isort: split
import transformers
from engines import run, save

from banyan.integrations.sglang import Trainer
from banyan.integrations.sglang._engine import weights_of

Shapes = dict[str, tuple[int, ...]]

SIZES: dict[str, Any] = {
    "vocab_size": 1030,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(architectures=["LlamaForCausalLM"], **SIZES),
    "qwen3": lambda: transformers.Qwen3Config(
        architectures=["Qwen3ForCausalLM"], head_dim=16, tie_word_embeddings=True, **SIZES
    ),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
        architectures=["Qwen3MoeForCausalLM"],
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        decoder_sparse_step=1,
        **SIZES,
    ),
}


def weight(name: str, shape: tuple[int, ...], version: int) -> torch.Tensor:
    """Return a weight of a version: finite bf16 elements that follow from name and index."""
    numbers = torch.arange(torch.Size(shape).numel(), dtype=torch.int64)
    start = zlib.crc32(f"{name} {version}".encode())
    mixed = ((numbers + start) * 2654435761 >> 9) & 0xBFFF
    mixed[mixed >= 0x8000] -= 0x10000
    return mixed.to(torch.int16).view(torch.bfloat16).view(shape)


def checkpoint(shapes: Shapes, version: int) -> dict[str, torch.Tensor]:
    return {name: weight(name, shape, version) for name, shape in shapes.items()}


def held(shapes: Shapes, version: int, mesh: Any, rank: int) -> dict[str, Any]:
    """Return what a trainer has: shards in uneven chunks, some weights whole."""
    found: dict[str, Any] = {}
    for i, (name, whole) in enumerate(checkpoint(shapes, version).items()):
        if mesh is None or i % 5 == 4:
            found[name] = whole
            continue
        dim = i % whole.ndim
        parts = torch.chunk(whole, mesh.size(), dim)
        local = parts[rank].contiguous() if i % 5 != 3 else whole
        found[name] = DTensor.from_local(
            local,
            mesh,
            [Shard(dim) if i % 5 != 3 else Replicate()],
            run_check=False,
            shape=whole.shape,
            stride=whole.stride(),
        )
    return found


def three_updates(rank: int, call: Any, shapes: Shapes, sharded: bool, *_: Any) -> None:
    mesh = init_device_mesh("cpu", (2,)) if sharded else None
    now: dict[str, Any] = {}
    trainer = Trainer(lambda: now, ENGINES, timeout=60)
    for version in (1, 2, 3):
        now = held(shapes, version, mesh, rank)
        assert trainer.update(call) == version
    trainer.close()
    trainer = Trainer(held(shapes, 9, mesh, rank), ENGINES, timeout=60)  # a second trainer
    assert trainer.update(call, version=9) == 9


ENGINES = [2]


def serve_three(worker: Any, engine: int, pipe: Any, shapes: Shapes, *_: Any) -> None:
    for version in (1, 2, 3, 9):
        worker.poison()
        worker.update(pipe)
        worker.require_equal(checkpoint(shapes, version))
        assert weights_of(worker.model).version == version


def train_until_killed(rank: int, call: Any, shapes: Shapes, *_: Any) -> None:
    trainer = Trainer(checkpoint(shapes, 1), ENGINES, timeout=30)
    assert trainer.update(call) == 1
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    try:
        trainer.update(call)
    except Exception as error:
        assert "rank 1" in str(error) and time.monotonic() - begun < 20, error
    else:
        raise AssertionError("the update succeeded without a trainer")


def serve_until_killed(worker: Any, engine: int, pipe: Any, shapes: Shapes, *_: Any) -> None:
    worker.update(pipe)
    try:
        worker.update(pipe)
    except Exception as error:
        assert "rank 1" in str(error), error
    else:
        raise AssertionError("the update succeeded without a trainer")


def train_late(rank: int, call: Any, shapes: Shapes, *_: Any) -> None:
    """One engine, and then a second one."""
    trainer = Trainer(checkpoint(shapes, 1), [1], timeout=60)
    assert trainer.update(call) == 1
    trainer.close()
    trainer = Trainer(checkpoint(shapes, 2), [1, 1], timeout=60)
    assert trainer.update(call) == 2


def serve_late(worker: Any, engine: int, pipe: Any, shapes: Shapes, *_: Any) -> None:
    for version in (1, 2) if engine == 0 else (2,):
        worker.poison()
        worker.update(pipe)
        worker.require_equal(checkpoint(shapes, version))


def train_wrong(rank: int, call: Any, shapes: Shapes, *_: Any) -> None:
    weights = checkpoint(shapes, 1)
    weights.pop("model.norm.weight")
    try:
        Trainer(weights, ENGINES, timeout=30).update(call)
    except Exception as error:
        assert "model.norm.weight" in str(error), error
    else:
        raise AssertionError("weights without a norm were accepted")


def serve_wrong(worker: Any, engine: int, pipe: Any, shapes: Shapes, *_: Any) -> None:
    before = {name: one.detach().clone() for name, one in worker.model.named_parameters()}
    try:
        worker.update(pipe)
    except Exception as error:
        assert "model.norm.weight" in str(error), error
    else:
        raise AssertionError("weights without a norm were accepted")
    for name, one in worker.model.named_parameters():
        assert torch.equal(one, before[name]), name
    weights_of(worker.model).require_whole()


class TestLoad(unittest.TestCase):
    def play(self, family: str, engines: list[int], train: Any, serve: Any, *args: Any) -> Any:
        global ENGINES
        ENGINES = engines
        with tempfile.TemporaryDirectory() as folder:
            shapes = save(CONFIGS[family](), folder)
            return run(2, engines, folder, train, serve, shapes, *args)

    def require_fine(self, results: list[Any]) -> None:
        failed = [f"rank {rank}: {text}" for rank, text in enumerate(results) if text is not None]
        if failed:
            self.fail("\n".join(failed))

    def test_llama_from_whole_weights(self) -> None:
        self.require_fine(self.play("llama", [2], three_updates, serve_three, False))

    def test_qwen3_with_tied_weights_from_shards(self) -> None:
        self.require_fine(self.play("qwen3", [2], three_updates, serve_three, True))

    def test_experts_from_shards_in_two_engines(self) -> None:
        self.require_fine(self.play("qwen3_moe", [1, 1], three_updates, serve_three, True))

    def test_a_dead_trainer_is_named(self) -> None:
        results = self.play("qwen3", [1], train_until_killed, serve_until_killed)
        self.assertEqual(results[1], f"the process ended with -{int(signal.SIGKILL)}")
        self.require_fine([results[0], *results[2:]])

    def test_an_engine_that_starts_later(self) -> None:
        self.require_fine(self.play("llama", [1, 1], train_late, serve_late))

    def test_missing_weights_change_nothing(self) -> None:
        self.require_fine(self.play("llama", [1], train_wrong, serve_wrong))


if __name__ == "__main__":
    seed()
    unittest.main()
