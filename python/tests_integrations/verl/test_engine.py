"""verl's manager, Ray workers and FSDP engine with the checkpoint engine "banyan"."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
import unittest
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
if os.environ.get("BANYAN_TEST_DEVICE", "cpu") == "cpu":
    os.environ |= {
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "cpu_platform",
        "VERL_ENGINE_DEVICE": "cuda",  # verl registers its FSDP engine for this name alone
    }

import ray
import torch
import transformers
from tests.checkpoint_engine.test_utils import MockReplica
from verl.checkpoint_engine import CheckpointEngineManager, CheckpointEngineRegistry
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.single_controller.ray.base import split_resource_pool
from verl.utils.import_utils import import_external_libs
from verl.workers.config import (
    CheckpointEngineConfig,
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    RolloutConfig,
)
from verl.workers.engine_workers import TrainingWorkerConfig
from workers import Rollout, Trainer

BUCKET_BYTES = 1 << 20
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
    words = {f"w{i}": i for i in range(100)}
    from tokenizers import Tokenizer, models

    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, "w0")), eos_token="w1", pad_token="w2"
    )
    tokenizer.save_pretrained(folder)
    return len(model.state_dict())


def connect() -> None:
    """Start Ray, with this process's environment."""
    begins = ("PYTHONPATH", "VERL_", "BANYAN_")
    passed = {name: text for name, text in os.environ.items() if name.startswith(begins)}
    ray.init(
        num_cpus=8,
        include_dashboard=False,
        log_to_driver=bool(os.environ.get("BANYAN_TEST_VERBOSE")),
        object_store_memory=200 << 20,
        runtime_env={"env_vars": {"OMP_NUM_THREADS": "1", **passed}},
    )


class Job:
    """Two trainers and two replicas of one rank, as verl arranges them."""

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
        rollout = RolloutConfig(name="vllm", checkpoint_engine=self.config)
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


class TestVerl(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()  # type: ignore[attr-defined]
        cls.count = save_model(cls.folder.name, small_config())  # type: ignore[attr-defined]
        connect()

    @classmethod
    def tearDownClass(cls) -> None:
        ray.shutdown()
        cls.folder.cleanup()  # type: ignore[attr-defined]

    def test_backend_is_registered(self) -> None:
        import_external_libs(MODULE)
        self.assertEqual(CheckpointEngineRegistry.get("banyan").__module__, f"{MODULE}._engine")

    def test_updates_and_failures(self) -> None:
        job = Job(self.folder.name)  # type: ignore[attr-defined]
        count = self.count  # type: ignore[attr-defined]

        def check(version: int) -> None:
            job.update(version)
            self.assertEqual(job.rollout.compare(version, torch.float32), [count] * 2)

        for version in (1, 2, 3):  # whole weights, which the FSDP engine gathers
            check(version)
        planned, runs = job.trainers.counts()[0]
        self.assertGreater(planned, 1)
        self.assertEqual(runs, 3 * planned)
        job.trainers.use_shards(True)  # shards: nothing is gathered
        for version in (4, 5, 6):
            check(version)
        job.trainers.use_shards(False)

        job.rollout.refuse(True)
        with self.assertRaisesRegex(Exception, "the loader refuses|stopped in the middle"):
            job.update(7)
        job.rollout.refuse(False)
        check(8)

        job.trainers.use_shards(True)  # else the other trainer waits in FSDP's gathering
        job.trainers.fail_at(1, "raises")
        begun = time.monotonic()
        with self.assertRaisesRegex(Exception, "no memory for the whole weights"):
            job.update(8)
        check(9)  # the replicas, which waited for that trainer, join again
        self.assertLess(time.monotonic() - begun, 30)
        job.trainers.use_shards(False)

        job.manager.remove_replicas(job.replicas[1:])
        job.update(10)
        job.manager.add_replicas(job.replicas[1:])
        check(11)
        job.trainers.die_at(1)
        self.dead(job, 12)

    def test_a_trainer_that_dies_before_it_sends(self) -> None:
        job = Job(self.folder.name)  # type: ignore[attr-defined]
        job.update(1)
        job.trainers.fail_at(1, "dies")
        self.dead(job, 2)

    def dead(self, job: Job, version: int) -> None:
        """Update with a trainer that dies. The waits of all others end, and name it."""
        job.rollout.forget()
        begun = time.monotonic()
        with self.assertRaises(Exception) as caught:
            job.update(version)
        print("a dead trainer:", str(caught.exception)[-300:])
        for text in job.rollout.failure():
            self.assertRegex(text, "rank 1 .*died")
            self.assertIn("ranks 0 to 1 send, ranks 2 to 3 receive", text)
        self.assertLess(time.monotonic() - begun, 30)


if __name__ == "__main__":
    unittest.main()
