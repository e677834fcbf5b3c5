"""After each update two engines of vLLM generate the tokens of a new engine with these weights."""

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
    def test_shards_and_whole_weights(self) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            at = Path(temporary)
            folder = models.save("qwen3", at / "model", 1)
            jobs.save_tokenizer(str(folder))
            wanted = {}
            for version in (2, 3, 4):  # before Ray starts, since engines are forked
                save(folder, version)
                wanted[version] = fresh_state(folder.with_name(f"version{version}"), 1)
            with start_engine(at / "one", folder) as one, start_engine(at / "two", folder) as two:
                engines = [one, two]
                seen = [engine.call("generate") for engine in engines]
                jobs.connect()
                self.addCleanup(ray.shutdown)
                job = make_job(engines, folder, model_dtype="bf16")
                for version in (2, 3, 4):
                    job.trainers.fill(version)
                    job.trainers.use_shards(version != 3)
                    began = time.perf_counter()
                    job.manager.update_weights(global_steps=version)
                    for engine in engines:
                        engine.call("first_token")
                    seconds = time.perf_counter() - began
                    for engine, server in zip(engines, job.servers, strict=True):
                        made = require_state(engine, wanted[version])
                        self.assertNotIn(made, seen)
                        self.assertEqual(ray.get(server.global_steps.remote()), version)
                    seen.append(made)
                    print(f"update {version}: {seconds:.2f} s", flush=True)


if __name__ == "__main__":
    unittest.main()
