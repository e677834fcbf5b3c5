"""NeMo-RL's CheckpointEngine on Banyan's streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from nemo_rl.utils.checkpoint_engines.base import CheckpointEngine
from torch import Tensor

from ... import Box
from .._stream import Select, Weights, WeightStream, is_first_process


def _selection(layout: Any) -> Select:
    """Return the choice of boxes that a layout of NeMo-RL for a vLLM worker describes."""
    from nemo_rl.models.generation.vllm.refit_layout import parse_hf_expert_weight

    def select(name: str, shape: Sequence[int]) -> Box | None:
        if any(name.startswith(prefix) for prefix in layout["missing_weight_prefixes"]):
            return None
        start, extent = [0] * len(shape), list(shape)
        expert = parse_hf_expert_weight(name)
        if expert is None:
            return Box(start, extent)
        parameter = layout["expert_params"].get(expert.parameter_name)
        if parameter is None:  # of another pipeline stage
            return None
        held = parameter["local_expert_ids"]
        if held is not None and expert.expert_id not in held:
            return None
        dim, size = expert.tp_shard_dim, parameter["tp_size"]
        if shape[dim] % size != 0:
            raise ValueError(
                f"{name} has {shape[dim]} elements in dimension {dim}, which tensor parallelism of "
                f"{size} does not divide"
            )
        extent[dim] = shape[dim] // size
        start[dim] = extent[dim] * parameter["tp_rank"]
        return Box(start, extent)

    return select


class BanyanCheckpointEngine(CheckpointEngine):  # type: ignore[misc]
    """Moves weights from all policy ranks to all workers of vLLM.

    NeMo-RL makes it, with ``bucket_size`` bytes and the options of ``refit_cfg``:

    - ``release_after_refit``: free the buckets after each refit.
    - ``shard_expert_weights``: a worker of vLLM receives its part of the experts' weights alone.
      The policy still iterates over whole weights, and Banyan sends the parts.
    - ``timeout``: seconds that a wait may last without progress; None: 10 minutes.
    - ``device``: of the buckets, ``"cuda"`` or ``"cpu"``; None: CUDA if there is a GPU.

    There may be more policy ranks than workers, or fewer. The world and the plans are kept while
    the workers stay.
    """

    def __init__(
        self,
        bucket_size: int,
        release_after_refit: bool = False,
        shard_expert_weights: bool = False,
        timeout: float | None = None,
        device: str | None = None,
    ) -> None:
        """Make the engine of a worker. Local."""
        self.release_after_refit = release_after_refit
        self.shard_expert_weights = shard_expert_weights
        self.stream = WeightStream(bucket_size, device=device, timeout=timeout)
        self._select: Select | None = None
        self._layouts: list[Any] = []

    def get_target_weight_layout(self) -> dict[str, Any] | None:
        """Return None: a policy rank sends to all workers, from whole weights. Local."""
        return None

    def prepare(self) -> dict[str, Any]:
        """Return what the other workers need of this one. Local."""
        return self.stream.describe(leads=is_first_process())

    def _join(
        self, rank: int, train_world_size: int, rollout_world_size: int, metadata: Sequence[Any]
    ) -> None:
        size = train_world_size + rollout_world_size
        if len(metadata) != size:
            raise ValueError(f"metadata of {len(metadata)} workers, but there are {size}")
        unique_id, keep = WeightStream.topology(metadata, train_world_size)
        layouts = [one.get("weight_layout") for one in metadata]
        keep = keep and layouts == self._layouts  # plans depend on them
        self._layouts = layouts
        self.stream.join(rank, size, train_world_size, unique_id, keep)

    def init_policy_process_group(
        self,
        *,
        worker_rank: int,
        train_world_size: int,
        rollout_world_size: int,
        metadata: list[Any],
    ) -> None:
        """Join the world as policy rank ``worker_rank``. Collective, unless it is kept."""
        self._join(worker_rank, train_world_size, rollout_world_size, metadata)

    def init_rollout_process_group(
        self,
        *,
        rollout_rank: int,
        train_world_size: int,
        rollout_world_size: int,
        metadata: list[Any],
    ) -> None:
        """Join the world as rollout rank ``rollout_rank``. Collective, unless it is kept."""
        rank = train_world_size + rollout_rank
        if self.shard_expert_weights:
            self._select = _selection(metadata[rank]["weight_layout"])
        self._join(rank, train_world_size, rollout_world_size, metadata)

    def finalize(self) -> None:
        """Free the buckets, if they are released after each refit. Local."""
        if self.release_after_refit:
            self.stream.release()

    async def send_weights(self, weights: Weights) -> None:
        """Send names and tensors, the same at all policy ranks. Collective."""
        await self.stream.send(weights)

    async def receive_weight_batches(self) -> AsyncIterator[list[tuple[str, Tensor]]]:
        """Yield the weights of each bucket. They are valid until the next one. Collective."""
        async for bucket in self.stream.receive(select=self._select):
            yield bucket
