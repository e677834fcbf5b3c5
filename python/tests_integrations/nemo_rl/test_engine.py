"""NeMo-RL's synchronizer and worker mixins over Ray, with Banyan as the refit transport."""

from __future__ import annotations

import time
import unittest
from typing import Any

from jobs import TRANSPORT, Job, connect, refit_config

# isort: split
import ray
import torch
from groups import seed
from nemo_rl.utils.checkpoint_engines.base import create_checkpoint_engine
from streams import Weight, random_weights


class TestNemoRl(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        connect()

    @classmethod
    def tearDownClass(cls) -> None:
        ray.shutdown()

    def test_class_path(self) -> None:
        config = refit_config(timeout=5, shard_expert_weights=True)
        made = create_checkpoint_engine(
            config["backend"],
            bucket_size_bytes=4096,
            engine_kwargs=config["engine_kwargs"][TRANSPORT],
        )
        self.assertTrue(made.shard_expert_weights)
        self.assertFalse(made.release_after_refit)
        self.assertIsNone(made.get_target_weight_layout())
        self.assertEqual((made.stream.bucket_bytes, made.stream.timeout), (4096, 5))

    def test_refits_and_a_dead_policy(self) -> None:
        number = seed()
        job = Job(2, 2)
        for is_sharded in (False, True):
            weights = random_weights(number, 30, 2, is_sharded)
            runs = planned = 0
            for version in (1, 2, 3):
                job.update(weights, version)
                before = runs, planned
                planned, runs = ray.get(job.policies[0].counts.remote())
            self.assertEqual(planned, before[1])
            self.assertGreater(runs, before[0])
        begun = time.monotonic()
        with self.assertRaises(Exception) as caught:
            job.update(weights, 4, dying=1)
        self.assertLess(time.monotonic() - begun, 30)
        self.assertRegex(str(caught.exception), "rank 1|died")
        with self.assertRaisesRegex(Exception, "rank 1"):
            ray.get(job.workers[0].call.remote("update_weights_from_checkpoint_engine", ()))
        job.close()

    def test_workers_receive_their_experts(self) -> None:
        kinds = {"gate_proj": (48, 32), "up_proj": (48, 32), "down_proj": (32, 48)}
        weights: list[Weight] = [("model.norm.weight", torch.float32, (32,), None)]
        weights += [
            (f"model.layers.{i}.mlp.experts.{e}.{kind}.weight", torch.bfloat16, shape, None)
            for i in range(2)
            for e in range(4)
            for kind, shape in kinds.items()
        ]
        parameters = [
            f"model.layers.{i}.mlp.experts.routed_experts.{kind}"
            for i in range(2)
            for kind in ("w13_weight", "w2_weight")
        ]

        def layout(tp_rank: int, tp_size: int, held: Any, missing: list[str]) -> Any:
            one = {"tp_rank": tp_rank, "tp_size": tp_size, "local_expert_ids": held}
            return {
                "expert_params": dict.fromkeys(parameters, one),
                "missing_weight_prefixes": missing,
            }

        pairs = (
            [layout(rank, 2, None, []) for rank in range(2)],
            [layout(0, 1, [rank, rank + 2], ["model.layers.1."] * rank) for rank in range(2)],
        )
        whole = sum(torch.Size(shape).numel() * dtype.itemsize for _, dtype, shape, _ in weights)
        # One policy for two workers. The buckets are released after each refit.
        job = Job(1, 2, shard_expert_weights=True, release_after_refit=True)
        for layouts in pairs:
            ray.get([w.set_layout.remote(one) for w, one in zip(job.workers, layouts, strict=True)])
            for version in (1, 2, 3):
                received = job.update(weights, version)
                self.assertLess(max(received), 0.6 * whole)
        job.close()


if __name__ == "__main__":
    unittest.main()
