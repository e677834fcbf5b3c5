"""verl's CheckpointEngine on Banyan's streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from .._stream import Weights, WeightStream


def _shards(engine: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters of a training engine of verl as DTensors. Nothing is gathered."""
    exported, _ = engine.get_per_tensor_param_shard()
    for name, local, spec in exported:
        if spec.to_hf_chunk is not None or spec.place is not None:
            raise NotImplementedError(
                f"{name}: its shards are not those of a DTensor. Send the whole weights of "
                "get_per_tensor_param()"
            )
        if spec.mesh is None:
            yield name, local.view(spec.full_shape)
            continue
        stride = torch.empty(spec.full_shape, device="meta").stride()
        shape = _local_shape(spec)
        yield (
            name,
            DTensor.from_local(
                local.view(shape),
                spec.mesh,
                spec.placements,
                run_check=False,
                shape=torch.Size(spec.full_shape),
                stride=stride,
            ),
        )


def _local_shape(spec: Any) -> Sequence[int]:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, _ = compute_local_shape_and_global_offset(spec.full_shape, spec.mesh, spec.placements)
    return shape


@CheckpointEngineRegistry.register("banyan")
class BanyanCheckpointEngine(CheckpointEngine):  # type: ignore[misc]
    """Moves weights from all trainer ranks to all ranks of the rollout replicas.

    verl makes it, with ``bucket_size`` bytes (``update_weights_bucket_megabytes``) and the options
    of ``engine_kwargs.banyan``:

    - ``timeout``: seconds that a wait may last without progress; None: 10 minutes.
    - ``device``: of the buckets, ``"cuda"`` or ``"cpu"``; None: CUDA if there is a GPU.
    - ``keep_buckets``: keep the buckets allocated between updates. By default ``finalize`` frees
      them, since the rollout needs the memory.

    The world and the plans are kept while the workers stay.
    """

    def __init__(
        self,
        bucket_size: int,
        is_master: bool = False,
        timeout: float | None = None,
        device: str | None = None,
        keep_buckets: bool = False,
    ) -> None:
        """Make the engine of a worker. ``is_master``: it is trainer rank 0. Local."""
        self.is_master = is_master
        self.keep_buckets = keep_buckets
        self.stream = WeightStream(bucket_size, device=device, timeout=timeout)

    def prepare(self) -> dict[str, Any]:
        """Return what ``build_topology`` needs of this worker. Local."""
        return self.stream.describe(leads=self.is_master)

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Return the arguments of ``init_process_group`` for the trainers and the rollout."""
        size = actor_wg_world_size + rollout_world_size
        if len(metadata) != size:
            raise ValueError(f"metadata of {len(metadata)} workers, but there are {size}")
        unique_id, keep = WeightStream.topology(metadata, actor_wg_world_size)

        def arguments(ranks: range) -> dict[str, list[Any]]:
            return {
                "rank": list(ranks),
                "world_size": [size] * len(ranks),
                "senders": [actor_wg_world_size] * len(ranks),
                "unique_id": [unique_id] * len(ranks),
                "keep": [keep] * len(ranks),
            }

        return arguments(range(actor_wg_world_size)), arguments(range(actor_wg_world_size, size))

    def init_process_group(
        self, rank: int, world_size: int, senders: int, unique_id: bytes, keep: bool
    ) -> None:
        """Join the world of this update. Collective, unless all workers keep the one they have."""
        self.stream.join(rank, world_size, senders, unique_id, keep)

    def finalize(self) -> None:
        """Free the buckets. Local."""
        if not self.keep_buckets:
            self.stream.release()

    async def send_weights(self, weights: Weights | Any, global_steps: int | None = None) -> None:
        """Send the weights. Collective.

        ``weights``: pairs of names and tensors, the same at all trainer ranks. Whole tensors are
        sent by all of them in equal parts; of DTensors each rank sends its shard. Or a training
        engine of verl with ``get_per_tensor_param_shard``, such as FSDP's, whose shards are sent.
        """
        if hasattr(weights, "get_per_tensor_param_shard"):
            weights = _shards(weights)
        await self.stream.send(weights, global_steps)

    async def receive_weights(
        self, global_steps: int | None = None
    ) -> AsyncIterator[tuple[str, Tensor]]:
        """Yield names and tensors. Collective.

        A tensor is valid until the first one of the next bucket is taken, as with verl's engines.
        """
        async for bucket in self.stream.receive(global_steps):
            for one in bucket:
                yield one
