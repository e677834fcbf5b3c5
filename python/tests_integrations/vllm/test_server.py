"""A trainer updates a server of vLLM over HTTP: its own client, processes and entry points."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import models
from engine import PROMPTS, TOKENS, fresh
from processes import Process
from shards import changed_values, save
from test_subscription import Follower, Publisher, free_address
from trainer import Trainer
from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient

#: Seconds until the server must have started.
START = 600


class Server:
    """A server of vLLM on the loopback, which ends with the ``with`` block."""

    def __init__(self, folder: Path, *options: str, backend: str = "banyan") -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        # `vllm serve` needs a package of the name vllm.
        words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
        words += ["--host", "127.0.0.1", "--port", str(port), "--skip-tokenizer-init"]
        words += ["--enforce-eager", "--max-model-len", "64", "--no-enable-prefix-caching"]
        words += ["--enable-scale-out"]  # its route for token ids
        words += ["--weight-transfer-config", json.dumps({"backend": backend}), *options]
        # Its routes for reinforcement learning, and its usual processes.
        settings = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
        self._process = subprocess.Popen(words, env=os.environ | settings, start_new_session=True)

    def wait(self) -> None:
        deadline = time.monotonic() + START
        while True:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                return
            except OSError:
                assert self._process.poll() is None, "the server ended"
                assert time.monotonic() < deadline, "the server did not start"
                time.sleep(0.5)

    def post(self, path: str, replica: int | None = None, **body: Any) -> Any:
        headers = {"Content-Type": "application/json"}
        if replica is not None:
            headers["X-data-parallel-rank"] = str(replica)
        content = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/{path}", content, headers)
        with urllib.request.urlopen(request, timeout=120) as reply:
            return json.load(reply)

    def generate(self, replica: int | None = None) -> list[list[int]]:
        """Return the greedy tokens of each prompt. ``replica``: of a data-parallel server."""
        sampling = {
            "temperature": 0,
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "detokenize": False,
        }
        replies = [
            self.post("inference/v1/generate", replica, token_ids=one, sampling_params=sampling)
            for one in PROMPTS
        ]
        return [one["choices"][0]["token_ids"] for one in replies]

    def version(self) -> str:
        with urllib.request.urlopen(f"{self.url}/weight_info", timeout=30) as reply:
            found: str = json.load(reply)["weight_version"]
            return found

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class HttpTrainer(Trainer):
    """A trainer whose client is vLLM's own."""

    def client(self, where: Any) -> Any:
        return HTTPVLLMWeightSyncClient(where)


class HttpFollower(Follower):
    """The process that drives a server: it follows a publication with vLLM's own client."""

    def __init__(self, url: str) -> None:
        self.llm, self.workers = HTTPVLLMWeightSyncClient(url), 1


class ServerTest(unittest.TestCase):
    def updates(self, replicas: int, *options: str) -> None:
        """Update all replicas of a server, and compare the tokens of each with a new engine's."""
        with tempfile.TemporaryDirectory() as temporary:
            at = Path(temporary)
            folder = models.save("qwen3", at / "model", 1)
            with (
                Server(folder, *options) as server,
                Process(at / "trainer", HttpTrainer, 0, 1, folder, at / "store") as trainer,
            ):
                server.wait()
                trainer.call("join", server.url, replicas)
                for version in (1, 2):
                    server.post("pause")
                    self.assertEqual(trainer.call("send", server.url, version), version)
                    server.post("resume")
                    save(folder, version)
                    wanted = [one for one, _ in fresh(folder.with_name(f"version{version}"), 1)]
                    for replica in range(replicas) if options else (None,):
                        self.assertEqual(server.generate(replica), wanted)
                    self.assertEqual(server.version(), str(version))
                if options:
                    with self.assertRaises(urllib.error.HTTPError):  # there is no other replica
                        server.generate(replicas)
                trainer.call("shutdown", server.url)
                self.assertEqual(server.generate(0 if options else None), wanted)

    def test_follows_a_publication(self) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            at, address = Path(temporary), free_address()
            folder = models.save("qwen3", at / "model", 1)
            with (
                Server(folder, backend="banyan_subscription") as server,
                Process(at / "trainer", Publisher, 0, 1, folder, at / "store") as trainer,
                Process(at / "driver", HttpFollower, server.url) as driver,
            ):
                server.wait()
                trainer.call("open", address)
                for version in (1, 2, 3):
                    trainer.call("publish", version)
                    if version > 1:
                        driver.call("wait", version)
                    server.post("pause")
                    if version == 1:
                        self.assertEqual(driver.call("subscribe", address), 1)
                    else:
                        self.assertEqual(driver.call("update", version), version)
                    server.post("resume")
                    save(folder, version, changed_values)
                    wanted = [one for one, _ in fresh(folder.with_name(f"version{version}"), 1)]
                    self.assertEqual(server.generate(), wanted)
                    self.assertEqual(server.version(), str(version))

    def test_updates_over_http(self) -> None:
        self.updates(1)

    def test_updates_of_two_replicas(self) -> None:
        self.updates(2, "--data-parallel-size", "2")


if __name__ == "__main__":
    unittest.main()
