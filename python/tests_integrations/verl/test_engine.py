"""verl's manager, Ray workers and FSDP engine with the checkpoint engine "banyan"."""

from __future__ import annotations

import tempfile
import time
import unittest

from jobs import MODULE, Job, connect, save_model, small_config

# isort: split
import ray
import torch
from verl.checkpoint_engine import CheckpointEngineRegistry
from verl.utils.import_utils import import_external_libs


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
