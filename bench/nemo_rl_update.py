"""A whole refit of a model of 1 GB through NeMo-RL.

    PYTHONPATH=build/python:python/tests_torch:python/tests_integrations/nemo_rl \
        NEMO_RL=checkout build/venv-nemo_rl/bin/python bench/nemo_rl_update.py [--layers N]

NeMo-RL's synchronizer and its mixins of policy and vLLM workers run over Ray on the host, two of
each. The time is that of ``CheckpointEngineWeightSynchronizer.sync_weights``, the median of several
turns. Each worker copies the weights into parameters that exist. No engine computes a token.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import Any

from test_engine import Job, connect

# isort: split
import ray
import torch
import workers
from copies import copy_seconds
from torch.distributed.tensor import DTensor, Shard
from torch_reshard import shapes

TURNS = 4
MEMORY_BYTES = 1 << 30  # of a device; the bucket is a share of it


class Policy(workers.Policy):
    """A policy worker with shards of a model."""

    gathers = False

    def fill(self, sizes: dict[str, Any]) -> int:
        """Make the shards. Return the bytes of the model."""
        self.sizes = sizes
        self.shards = {}
        for name, (shape, _) in sizes.items():
            whole = torch.full(shape, 0.5, dtype=torch.bfloat16)
            part = torch.chunk(whole, 2)[self.rank].clone()
            self.shards[name] = DTensor.from_local(
                part,
                self.mesh,
                [Shard(0)],
                run_check=False,
                shape=whole.shape,
                stride=whole.stride(),
            )
        return sum(one.numel() * one.element_size() for one in self.shards.values())

    def gather_first(self, wanted: bool) -> None:
        """Send whole weights, gathered as NeMo-RL's DTensor policy does, or shards."""
        self.gathers = wanted

    def _checkpoint_engine_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, one in self.shards.items():
            yield name, one.full_tensor() if self.gathers else one

    def gather(self) -> None:
        """Make the whole weights and drop them."""
        for one in self.shards.values():
            one.full_tensor()

    def prepare_refit_info(self) -> dict[str, Any]:
        """Return shapes and types."""
        return {name: (shape, torch.bfloat16) for name, (shape, _) in self.sizes.items()}

    async def checkpoint_engine_rpc(self, checkpoint_method: str, method_kwargs: Any = None) -> Any:
        """Pretend to have a device."""
        if checkpoint_method == "checkpoint_engine_total_memory_bytes":
            return MEMORY_BYTES
        return await super().checkpoint_engine_rpc(checkpoint_method, method_kwargs)

    def copy(self, nbytes: int) -> float:
        """Copy so many bytes, and return the seconds."""
        return copy_seconds(nbytes)


class Worker(workers.Worker):
    """A worker that copies weights into its parameters."""

    def __init__(self, rank: int, size: int, path: str) -> None:
        """Have no parameters yet."""
        super().__init__(rank, size, path)
        self.parameters: dict[str, torch.Tensor] = {}

    def _load_hf_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        for name, weight in weights:
            if name not in self.parameters:
                self.parameters[name] = torch.empty_like(weight)
            self.parameters[name].copy_(weight)

    def checkpoint_engine_total_memory_bytes(self) -> int:
        """Pretend to have a device."""
        return MEMORY_BYTES

    def check(self) -> int:
        """Return the bytes of the parameters, all of which must have arrived."""
        assert all(bool((one == 0.5).all()) for one in self.parameters.values())
        return sum(one.nbytes for one in self.parameters.values())

    def copy(self, nbytes: int) -> float:
        """Copy so many bytes, and return the seconds."""
        return copy_seconds(nbytes)


def measure(layers: int) -> None:
    """Let all ways take turns, and print their times."""
    job = Job(2, 2, Policy, Worker, update_weights_bucket_memory_ratio=0.125)
    nbytes = ray.get([one.fill.remote(shapes(layers)) for one in job.policies])[0]
    times: dict[str, list[float]] = {name: [] for name in ("shards", "whole", "gather", "copies")}
    for _ in range(TURNS + 1):
        for name in ("shards", "whole"):
            ray.get([one.gather_first.remote(name == "whole") for one in job.policies])
            began = time.perf_counter()
            job.sync.sync_weights()
            times[name].append(time.perf_counter() - began)
        began = time.perf_counter()
        ray.get([one.gather.remote() for one in job.policies])
        times["gather"].append(time.perf_counter() - began)
        ranks = [*job.policies, *job.workers]
        times["copies"].append(max(ray.get([one.copy.remote(nbytes // 2) for one in ranks])))
    assert ray.get([one.check.remote() for one in job.workers]) == [nbytes] * 2
    job.close()
    found = {name: statistics.median(one[1:]) * 1e3 for name, one in times.items()}
    print(
        f"{nbytes / 1e6:.0f} MB from 2 policies to 2 workers, buckets of 128 MiB",
        f"  Banyan, shards                         {found['shards']:6.0f} ms",
        f"    the first refit, which joins         {times['shards'][0] * 1e3:6.0f} ms",
        f"  Banyan, whole weights, gathered before {found['whole']:6.0f} ms",
        f"    the gathering alone                  {found['gather']:6.0f} ms",
        f"  limit: all ranks copy these bytes once {found['copies']:6.0f} ms",
        sep="\n",
    )


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    options = parser.parse_args()
    connect()
    try:
        measure(options.layers)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
