"""After each update engines of SGLang generate the tokens of a new engine with these weights."""

from __future__ import annotations

import contextlib
import tempfile
import time
import unittest
from pathlib import Path

from generation import Engine, Rank, Server, all_call, fresh

# isort: split
import models
from processes import Process
from shards import save


class TestTokens(unittest.TestCase):
    def updates(self, family: str, engines: int, tp: int, kind: type[Engine] = Engine) -> None:
        with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as stack:
            at = Path(temporary)
            folder = models.save(family, at / "model", 1)
            wanted = {}
            for version in (2, 3, 4):
                save(folder, version)
                wanted[version] = fresh(folder.with_name(f"version{version}"), tp)
            paths = [at / f"engine{i}" for i in range(engines)]
            served = [stack.enter_context(Process(path, kind, folder, tp)) for path in paths]
            seen = [engine.call("generate") for engine in served]
            ranks = [
                stack.enter_context(
                    Process(at / f"rank{rank}", Rank, rank, 2, folder, at / "store")
                )
                for rank in range(2)
            ]
            all_call(ranks, "join", paths, tp)
            for version in (2, 3, 4):
                all_call(ranks, "fill", version)
                began = time.perf_counter()
                all_call(ranks, "update")
                all_call(served, "first_token")
                seconds = time.perf_counter() - began
                for engine in served:
                    made = engine.call("generate")
                    self.assertEqual(made, wanted[version])
                    self.assertNotIn(made, seen)
                seen.append(made)
                print(f"{family} tp={tp}: update {version} {seconds:.2f} s", flush=True)

    def test_llama_in_two_engines(self) -> None:
        self.updates("llama", 2, 1)

    def test_qwen3_on_two_workers(self) -> None:
        self.updates("qwen3", 1, 2)

    def test_llama_in_a_server(self) -> None:
        """It is no child of the trainers, as on another machine."""
        self.updates("llama", 1, 2, Server)


if __name__ == "__main__":
    unittest.main()
