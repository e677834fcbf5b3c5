"""Worlds that do not exist: jobs, the cost of plans, predicted times."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path
from typing import Any

import banyan

MODEL: dict[str, Any] = {
    f"model.layers.{layer}.self_attn.{name}.weight": {"shape": [64, 64], "dtype": "BF16"}
    for name in ("q_proj", "k_proj", "v_proj", "o_proj")
    for layer in range(3)
}


class ForecastTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "model.json"
        self.path.write_text(json.dumps(MODEL))
        self.model = banyan.Model(self.path)

    def job(self, **options: Any) -> banyan.Job:
        return banyan.Job("tp=4,dp=2,head=8", "tp=2,dp=8,head=8", model=self.model, **options)

    def test_jobs(self) -> None:
        job = self.job(disjoint=True)
        self.assertEqual((job.world_size, job.source_ranks, job.destination_ranks), (24, 8, 16))
        source, destination = job.layouts(3)
        self.assertEqual((len(source), len(destination)), (12, 0))
        source, destination = job.layouts(9)
        self.assertEqual((len(source), len(destination)), (0, 12))
        self.assertIn(9, destination.pieces[0].replicas)
        self.assertEqual(self.job().world_size, 16)
        with self.assertRaisesRegex(ValueError, "needs model"):
            banyan.Job("tp=2", "tp=4")
        with self.assertRaises(banyan.Invalid):
            banyan.Job("tp=two", "tp=4", model=self.model)
        with self.assertRaisesRegex(TypeError, "a side of a job"):
            banyan.Job(3, "tp=4", model=self.model)  # type: ignore[arg-type]

    def test_cost_of_plans(self) -> None:
        job = self.job()
        steps: list[tuple[int, int]] = []
        costs = banyan.plan_scale(
            job, ranks=5, progress=lambda done, total: steps.append((done, total))
        )
        self.assertEqual([cost.rank for cost in costs], [0, 3, 7, 11, 15])
        self.assertTrue(steps and steps[-1][0] == steps[-1][1])
        kept: list[banyan.Layout] = []

        def layouts(rank: int, source: banyan.Layout, destination: banyan.Layout) -> None:
            if rank < 8:
                source.add_model(self.model, banyan.Spec("tp=4,dp=2,head=8"), rank)
            destination.add_model(self.model, banyan.Spec("tp=2,dp=8,head=8"), rank)
            kept.append(source)

        own = banyan.plan_scale(layouts, 16, ranks=[0, 3, 7, 11, 15])
        for a, b in zip(costs, own, strict=True):
            self.assertEqual(a.transfers, b.transfers)
            self.assertEqual(a.transfer_nbytes, b.transfer_nbytes)
            self.assertGreater(a.seconds, 0)
            self.assertGreater(a.transfer_nbytes, 0)
        self.assertEqual(len(kept[0]), 0)  # the library's layout was lent
        with self.assertRaisesRegex(KeyError, "7"):
            banyan.plan_scale(lambda rank, source, destination: MODEL[str(rank + 7)], 4)
        with self.assertRaisesRegex(ValueError, "world_size"):
            banyan.plan_scale(layouts)

    def test_predicted_times(self) -> None:
        traffic = banyan.Traffic(self.job(), require_whole_source=True)
        self.assertEqual(traffic.ranks, 16)
        # Ranks 8 to 15 hold no source: each receives half of the model.
        half = self.model.nbytes // 2
        self.assertEqual(traffic.most_received, half)
        self.assertGreaterEqual(traffic.nbytes, 8 * half)
        name = "gb200-nvl72"
        direct = traffic.simulate(name)
        self.assertGreater(direct.seconds, 0)
        self.assertEqual(direct.simulation.seconds, direct.seconds)
        self.assertEqual({step.what for step in direct.simulation.steps}, {"copy"})
        pipeline = traffic.simulate(
            banyan.Topology.read(name), service="pipeline", slot_bytes=1 << 16
        )
        self.assertGreater(pipeline.batches, 0)
        self.assertEqual((pipeline.slot_bytes, direct.batches), (1 << 16, 0))
        with self.assertRaises(banyan.Invalid):
            traffic.simulate("h200x4")
        with self.assertRaises(banyan.NotFound):
            traffic.simulate("abacus")

    def test_bytes_that_cross_links(self) -> None:
        job = banyan.Job("tp=4,head=8", "tp=2,dp=2,head=8", model=self.model, disjoint=True)
        once = banyan.Traffic(job, ranks_per_node=4)
        self.assertEqual(once.network_nbytes, once.least_network_nbytes)
        self.assertEqual(once.network_nbytes, self.model.nbytes)
        self.assertGreater(once.inside_nbytes, 0)
        self.assertGreater(once.turns, 0)
        alone = banyan.Traffic(job, ranks_per_node=4, each_rank_fetches=True)
        self.assertEqual((alone.inside_nbytes, alone.turns), (0, 0))
        self.assertGreater(alone.network_nbytes, once.network_nbytes)
        self.assertGreater(alone.most_card_received, once.most_card_received)
        self.assertGreaterEqual(alone.most_card_sent, once.most_card_sent)


if __name__ == "__main__":
    unittest.main()
