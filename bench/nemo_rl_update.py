"""A whole refit of an engine of vLLM with a model of 1 GB through NeMo-RL.

    PYTHONPATH=build/python:python/tests_torch:python/tests_integrations/nemo_rl \
        NEMO_RL=checkout build/venv-nemo_rl/bin/python bench/nemo_rl_update.py [--layers N]

NeMo-RL's synchronizer, its mixins of policy workers and its extension of vLLM's workers run on the
host: two policies (FSDP2), and an engine of vLLM with tensor_parallel_size 2. The time is from the
call of ``CheckpointEngineWeightSynchronizer.sync_weights`` to the first token, the median of
several turns. The peer is what NeMo-RL's collective refit does, over Gloo.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import generation

# isort: split
import extension
import jobs
import ray
import torch
import workers
from gloo_buckets import GlooBuckets
from nemo_rl.utils.checkpoint_engines.base import CheckpointEngine
from torch.distributed.tensor import DTensor
from whole_updates import Copying, Updates, Way, main, negate, save_versions

BUCKET = 128  # MiB
PEER = "nemo_rl_update:GlooEngine"
EXTENSION = "nemo_rl_update.Extension"


class GlooEngine(CheckpointEngine):  # type: ignore[misc]
    """Policy 0 broadcasts whole weights, as NeMo-RL's collective refit does."""

    shard_expert_weights = False

    def __init__(self, bucket_size: int, **_: Any) -> None:
        """Allocate the buckets."""
        self.buckets = GlooBuckets(bucket_size)
        self.sends = False

    def get_target_weight_layout(self) -> None:
        """Have no layout."""

    def prepare(self) -> dict[str, Any]:
        """Return the port of a store; that of policy 0 is used."""
        return {"port": self.buckets.open()}

    def init_policy_process_group(
        self, *, worker_rank: int, rollout_world_size: int, metadata: Any, **_: Any
    ) -> None:
        """Join as the sender, or take part in the gathering alone."""
        self.sends = worker_rank == 0
        if self.sends:
            self.buckets.join(0, 1 + rollout_world_size, metadata[0]["port"])

    def init_rollout_process_group(
        self, *, rollout_rank: int, rollout_world_size: int, metadata: Any, **_: Any
    ) -> None:
        """Join as a receiver."""
        self.buckets.store = None
        self.buckets.join(1 + rollout_rank, 1 + rollout_world_size, metadata[0]["port"])

    def finalize(self) -> None:
        """Keep everything."""

    async def send_weights(self, weights: Any) -> None:
        """Send the weights in buckets."""
        if self.sends:
            self.buckets.send(weights)
        else:
            for _ in weights:
                pass

    async def receive_weight_batches(self) -> AsyncIterator[list[tuple[str, torch.Tensor]]]:
        """Yield the weights of each bucket."""
        for batch in self.buckets.receive():
            yield batch


class Choosing:
    """A worker with several checkpoint engines."""

    checkpoint_engine: Any
    chosen = "banyan"

    def choose(self, name: str) -> None:
        """Let the next refits use an engine. NeMo-RL makes it when it is not there."""
        kept = self.__dict__.setdefault("kept", {})
        kept[self.chosen] = getattr(self, "checkpoint_engine", None)
        self.chosen, self.checkpoint_engine = name, kept.get(name)


class Extension(Choosing, Copying, extension.Extension):
    """NeMo-RL's extension of vLLM's workers."""


class Policy(Choosing, Copying, generation.ModelPolicy):
    """A policy worker that sends shards or whole weights."""

    gathers = False

    def change(self) -> None:
        """Change to the other version of the model."""
        negate(self.model)

    def gather_first(self, wanted: bool) -> None:
        """Send whole weights, gathered as NeMo-RL's DTensor policy does, or shards."""
        self.gathers = wanted

    def _checkpoint_engine_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, one in super()._checkpoint_engine_params():
            yield name, one.full_tensor() if self.gathers and isinstance(one, DTensor) else one

    def gather(self) -> None:
        """Make the whole weights and drop them."""
        for one in self.model.state_dict().values():
            one.full_tensor()

    def nbytes(self) -> int:
        """Return the bytes of the whole model."""
        return sum(one.numel() * one.element_size() for one in self.model.state_dict().values())


def measure(at: Path, layers: int) -> None:
    """Compare all ways."""
    folders = save_versions(at, layers)
    with generation.start_engine(at / "other", folders[1], 2) as other:
        expected = [other.call("first_token")]
    with generation.start_engine(at / "engine", folders[0], 2, EXTENSION) as engine:
        expected.insert(0, engine.call("first_token"))
        jobs.connect()
        ratio = {"update_weights_bucket_memory_ratio": (BUCKET << 20) / workers.MEMORY_BYTES}
        job = generation.make_job(engine.path, folders[0], Policy, **ratio)
        peer = job.synchronizer(transport=PEER, **ratio)

        def each(method: str, *args: Any) -> list[Any]:
            found: list[Any] = ray.get([getattr(one, method).remote(*args) for one in job.policies])
            return found

        def choose(name: str, gathers: bool) -> None:
            each("choose", name)
            each("gather_first", gathers)
            engine.call("collective_rpc", "choose", args=(name,))

        def copy() -> float:
            engine.start("collective_rpc", "copy", args=(nbytes // 2,))
            seconds: float = max(*each("copy", nbytes // 2), *engine.result())
            return seconds

        nbytes = each("nbytes")[0]
        ours = job.sync.sync_weights
        Updates([engine], expected, lambda: each("change")).compare(
            f"{nbytes / 1e6:.0f} MB from 2 policies (FSDP2) to vLLM with tp=2, buckets of "
            f"{BUCKET} MiB",
            [
                Way("Banyan, shards", ours, partial(choose, "banyan", False)),
                Way("Banyan, whole weights", ours, partial(choose, "banyan", True)),
                Way("policy 0 broadcasts (Gloo)", peer.sync_weights, partial(choose, "gloo", True)),
            ],
            {"the gathering of whole weights": lambda: each("gather")},
            copy,
        )
        job.close()


if __name__ == "__main__":
    main(measure, __doc__, ray.shutdown)
