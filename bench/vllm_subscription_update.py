"""Pause of a vLLM engine that takes a published version, beside an update by all together.

    PYTHONPATH=build/python:python/tests_integrations/vllm build/venv-vllm/bin/python \
        bench/vllm_subscription_update.py [GIGABYTES]

Two trainer processes (FSDP2 over Gloo) change 3 % of the elements in each step. An engine with one
worker on the CPU follows their publication: its pause is a commit, and vLLM's repacking of the
linear layers. Beside it the backend "banyan", where the pause is the whole update. The limit is one
copy of the bytes by one process.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from copies import copy_seconds
from engine import Engine
from processes import Process
from test_subscription import Follower, Publisher, free_address
from torch.distributed.tensor import DTensor
from trainer import trainers
from vllm_update import COUNT, ROUNDS, median, save_model


class Stepping(Publisher):
    """A trainer whose steps change 3 % of the elements."""

    def step(self, number: int) -> None:
        """Change every 33rd element."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
                local.view(-1)[number % 33 :: 33].mul_(-1.25)

    def publish(self, version: int) -> int:
        """Publish what the model has."""
        return self.publication.publish(version).changed

    def send_only(self, where: Any) -> int:
        """Send what the model has."""
        sent: int = self.engines[where].send_weights()
        return sent


def timed(times: dict[str, list[float]], name: str, call: Any, *args: Any) -> Any:
    """Call, and keep the seconds."""
    began = time.perf_counter()
    made = call(*args)
    times.setdefault(name, []).append(time.perf_counter() - began)
    return made


def main() -> None:
    """Measure."""
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        at = Path(temporary)
        folder, layers, nbytes = save_model(at / "model")
        with trainers(COUNT, folder, at, Stepping) as training:
            with Process(at / "follower", Follower, folder, 1) as engine:
                address = free_address()
                training.call("open", address)
                training.call("publish", 1)
                engine.call("subscribe", address)
                for version in range(2, ROUNDS + 2):
                    training.call("step", version)
                    timed(times, "publish", training.call, "publish", version)
                    timed(times, "fetch", engine.call, "wait", version)
                    timed(times, "commit", engine.call, "update", version)
                    committed, processed = engine.call("seconds")
                    times.setdefault("committed", []).append(committed)
                    times.setdefault("processed", []).append(processed)
                tokens = engine.call("first_token")
            with Process(at / "engine", Engine, folder, 1, "banyan") as engine:
                training.call("join", engine.path, 1)
                training.call("send_only", engine.path)
                assert engine.call("first_token") == tokens, "the two ways give other tokens"
                for version in range(1, ROUNDS + 1):
                    training.call("step", version)
                    timed(times, "send", training.call, "send_only", engine.path)
    print(f"3 % of {nbytes / 1e9:.2f} GB of {layers} layers, {COUNT} trainers, 1 worker")
    print(f"  publish, while the engine serves   {median(times['publish'])}")
    print(f"  fetch, while the engine serves     {median(times['fetch'])}")
    print(f"  pause: update of the subscription  {median(times['commit'])}")
    print(f"    committed                        {median(times['committed'])}")
    print(f"    repacked for the CPU by vLLM     {median(times['processed'])}")
    print(f'  pause: update of "banyan"          {median(times["send"])}')
    limit = statistics.median(copy_seconds(nbytes) for _ in range(ROUNDS))
    print(f"  limit: one copy of the bytes       {limit:6.2f} s")


if __name__ == "__main__":
    main()
