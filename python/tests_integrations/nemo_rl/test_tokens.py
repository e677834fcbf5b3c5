"""After each refit an engine of vLLM generates the tokens of a new engine with these weights."""

from __future__ import annotations

import tempfile
import time
import unittest
from pathlib import Path

from generation import make_job, start_engine

# isort: split
import jobs
import models
import ray
import unpacked  # noqa: F401
from engine import fresh_state, require_state
from shards import save


class TestTokens(unittest.TestCase):
    def refits(self, family: str, tp: int) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            at = Path(temporary)
            folder = models.save(family, at / "model", 1)
            wanted = {}
            for version in (2, 3, 4):  # before Ray starts, since engines are forked
                save(folder, version)
                wanted[version] = fresh_state(folder.with_name(f"version{version}"), tp)
            with start_engine(at / "engine", folder, tp) as engine:
                seen = [engine.call("generate")]
                jobs.connect()
                self.addCleanup(ray.shutdown)
                job = make_job(at / "engine", folder)
                for version in (2, 3, 4):
                    ray.get([one.fill.remote(version) for one in job.policies])
                    began = time.perf_counter()
                    job.sync.sync_weights()
                    engine.call("first_token")
                    seconds = time.perf_counter() - began
                    made = require_state(engine, wanted[version])
                    self.assertNotIn(made, seen)
                    seen.append(made)
                    print(f"{family} tp={tp}: refit {version} {seconds:.2f} s", flush=True)
                job.close()

    def test_llama_on_one_worker(self) -> None:
        self.refits("llama", 1)

    def test_qwen3_on_two_workers(self) -> None:
        self.refits("qwen3", 2)


if __name__ == "__main__":
    unittest.main()
