"""Jobs of verl: its manager, Ray workers and FSDP engine with the checkpoint engine "banyan"."""

from __future__ import annotations

import asyncio
import os
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
if os.environ.get("BANYAN_TEST_DEVICE", "cpu") == "cpu":
    os.environ |= {
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "cpu_platform",
        "VERL_ENGINE_DEVICE": "cuda",  # verl registers its FSDP engine for this name alone
    }

import ray
import ray_start
import torch
import transformers
from tests.checkpoint_engine.test_utils import MockReplica
from tokenizers import Tokenizer
from tokenizers import models as tokenizer_models
from verl.checkpoint_engine import CheckpointEngineManager
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.single_controller.ray.base import split_resource_pool
from verl.workers.config import (
    CheckpointEngineConfig,
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    RolloutConfig,
)
from verl.workers.engine_workers import TrainingWorkerConfig
from workers import Rollout, Trainer

MODULE = "banyan.integrations.verl"


def small_config() -> Any:
    """Return a small Qwen3 with sizes that 2 and 3 do not divide."""
    return transformers.Qwen3Config(
        vocab_size=1031,
        hidden_size=168,
        intermediate_size=371,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=42,
        tie_word_embeddings=False,
    )


def save_model(folder: str, config: Any) -> int:
    """Save a model of random weights, and a tokenizer. Return the number of weights."""
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return len(model.state_dict())


def save_tokenizer(folder: str) -> None:
    """Save a tokenizer, which verl reads."""
    words = {f"w{i}": i for i in range(100)}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(tokenizer_models.WordLevel(words, "w0")),
        eos_token="w1",
        pad_token="w2",
    )
    tokenizer.save_pretrained(folder)


def connect() -> None:
    """Start Ray."""
    ray_start.connect(8, "VERL_")


class Job:
    """Two trainers and two replicas of one rank, as verl arranges them."""

    #: Actors with the servers of the replicas, if engines run.
    servers: list[Any]

    def __init__(
        self,
        folder: str,
        megabytes: int = 1,
        trainer: type = Trainer,
        replica: type = Rollout,
        **options: Any,
    ) -> None:
        self.config = CheckpointEngineConfig(
            backend="banyan",
            update_weights_bucket_megabytes=megabytes,
            engine_kwargs={"banyan": {"timeout": 60, "device": "cpu"}},
            custom_backend_module=MODULE,
        )
        model = HFModelConfig(
            path=folder,
            use_remove_padding=False,
            override_config={"attn_implementation": "eager"},
        )
        rollout = RolloutConfig(
            name="vllm", tensor_model_parallel_size=1, checkpoint_engine=self.config
        )
        pool = RayResourcePool(process_on_nodes=[4], use_gpu=False, max_colocate_count=1)
        trainers, rollouts = split_resource_pool(pool, [2, 2])
        training = TrainingWorkerConfig(
            model_type="language_model",
            model_config=model,
            optimizer_config=FSDPOptimizerConfig(lr=1e-3),
            engine_config=FSDPEngineConfig(
                forward_only=False,
                fsdp_size=2,
                strategy="fsdp2",
                use_torch_compile=False,
                **options,
            ),
        )
        made = RayClassWithInitArgs(
            cls=ray.remote(trainer), config=training, checkpoint_engine_config=self.config
        )
        self.trainers = RayWorkerGroup(
            resource_pool=trainers, ray_cls_with_init=made, device_name="cpu"
        )
        self.trainers.reset()
        made = RayClassWithInitArgs(
            cls=ray.remote(replica), model_config=model, rollout_config=rollout
        )
        self.rollout = RayWorkerGroup(
            resource_pool=rollouts, ray_cls_with_init=made, device_name="cpu"
        )
        self.replicas = [MockReplica(rank, rollout, model) for rank in range(2)]
        for replica in self.replicas:
            asyncio.run(replica.init_hybrid(self.rollout))
        self.manager = CheckpointEngineManager(self.config, self.trainers, self.replicas)

    def update(self, version: int) -> None:
        self.trainers.set_version(version)
        self.manager.update_weights(global_steps=version)
