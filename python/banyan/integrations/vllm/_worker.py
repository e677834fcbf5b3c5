"""The workers' side of vLLM's weight-transfer engine "banyan"."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.logger import init_logger

from ... import Unsupported, World
from .. import _updates as updates
from ._learn import learned_layout
from ._memory import Memory

logger = init_logger(__name__)


class Session(NamedTuple):
    """What a worker tells the trainers when they join."""

    is_active: bool
    """vLLM is in an update, whose trainer is gone."""
    stays_active: bool
    """vLLM stays in an update that failed."""


@dataclass(kw_only=True)
class BanyanInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """How a worker joins the trainers, as they send it; see BanyanTrainerInitInfo."""

    unique_id: str = field(repr=False)
    num_trainer_ranks: int
    world_size: int
    timeout: float = 300.0
    join_timeout: float = 120.0
    cast: bool = False
    checksums: bool = False
    group_bytes: int = 2 << 30
    verify: bool | None = None


@dataclass
class BanyanUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """An update. The trainers send its version over the world."""


class _Guard:
    """Keeps a model from computing while its weights are torn."""

    def __init__(self, model: torch.nn.Module, check: Callable[[], None]) -> None:
        self._model, self._check = model, check
        self._hook: Any = None

    def set(self, is_torn: bool) -> None:
        """Refuse the model's calls, or allow them again."""
        if is_torn == (self._hook is not None):
            return
        if not is_torn:
            self._hook.remove()
            self._hook = None
            self._model.__dict__.pop("compute_logits", None)
            return
        self._hook = self._model.register_forward_pre_hook(lambda *_: self._check())
        if hasattr(self._model, "compute_logits"):
            # CUDA graphs replay without a call of the model, but not without logits.
            self._model.__dict__["compute_logits"] = lambda *_, **__: self._check()


class BanyanWorkerEngine(WeightTransferEngine[BanyanInitInfo, BanyanUpdateInfo]):  # type: ignore[misc]
    """Receives weights in a worker of vLLM, in the places that its loader would give them."""

    init_info_cls: type[Any] = BanyanInitInfo
    update_info_cls = BanyanUpdateInfo
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: torch.device, model: Any) -> None:
        """Keep the model. vLLM makes the engine when the model has been loaded."""
        super().__init__(config, vllm_config, device, model)
        self.weights = updates.Weights()
        """Version of this worker's weights."""
        self._world: World | None = None
        self._updates: updates.Updates | None = None
        self._memory: Memory | None = None
        #: True between vLLM's calls that start and finish an update.
        self._is_active = False
        #: An executor of vLLM reads the replies of a failed call up to the first error, and takes
        #: the others for those of its next call. So the last worker alone may raise, and none if
        #: that would end vLLM's update on this worker alone.
        self._is_last = self.parallel_config.rank == self.parallel_config.world_size - 1
        self._is_alone = self.parallel_config.world_size == 1
        self.seconds = 0.0, 0.0
        """Time in which the last update was moved, and processed."""
        self._processed = 0.0
        self._guard = _Guard(model, self.weights.require_whole)

    def _learn(self, verify: bool | None, found: list[updates.Meta]) -> updates.Learned:
        """Return the layout of this worker's parameters, and the tensors that it does not take."""
        if self.parallel_config.enable_eplb:
            raise Unsupported("vLLM moves experts between workers (enable_eplb)")
        if self.vllm_config.lora_config is not None:
            raise Unsupported("vLLM has wrapped its layers for LoRA (enable_lora)")
        checkpoint = {one.name: (getattr(torch, one.dtype), one.shape) for one in found}
        layout = learned_layout(self.vllm_config, checkpoint, verify=verify)
        with set_current_vllm_config(self.vllm_config):
            self._memory = Memory(self.model, layout, self.device, self.model_config.dtype)
        layout = self._memory.layout
        left = checkpoint.keys() - {piece.name for piece in layout.pieces}
        return updates.Learned(layout, left, self._memory)

    def init_transfer_engine(self, init_info: BanyanInitInfo) -> None:
        """Join the trainers, learn where their tensors belong, and plan.

        Another trainer may call this later: the engine leaves the one before.
        """
        self.shutdown()
        try:
            self._join(init_info)
        except Exception as error:
            self._leave("a worker of vLLM left", together=True)
            logger.error("banyan: no trainer has joined: %s", error)
            if self._is_last:
                raise

    def _join_world(self, init_info: Any, first: int) -> World:
        """Join a world in which vLLM's workers are the ranks from ``first`` on."""
        parallel = self.parallel_config
        rank = parallel.data_parallel_index * parallel.world_size + parallel.rank
        return updates.join(
            init_info.unique_id,
            first + rank,
            init_info.world_size,
            timeout=init_info.join_timeout,
        )

    def _join(self, init_info: BanyanInitInfo) -> None:
        self._world = self._join_world(init_info, init_info.num_trainer_ranks)
        self._world.timeout = init_info.timeout
        self._updates = updates.Updates(
            self._world,
            None,
            partial(self._learn, init_info.verify),
            weights=self.weights,
            cast=init_info.cast,
            group_bytes=init_info.group_bytes,
            device=None if self.device.type == "cpu" else self.device,
            checksums=init_info.checksums,
        )
        self._world.gather(json.dumps(Session(self._is_active, not self._is_alone)).encode())

    def start_weight_update(self) -> None:
        """Do nothing but check that trainers have joined."""
        if self._world is None:
            raise RuntimeError("no trainer has joined: call init_weight_transfer_engine first")
        self._is_active = True

    def receive_weights(self, update_info: BanyanUpdateInfo) -> None:
        """Take one version, and process it.

        After a failure the model refuses to compute, unless nothing had moved. The trainers or the
        engine's process raise, and so does a worker that is alone.
        """
        del update_info
        began, self._processed = time.perf_counter(), 0.0
        try:
            self._receive()
            self.seconds = time.perf_counter() - began - self._processed, self._processed
            logger.info(
                "banyan: version %d: moved in %.3f s, processed in %.3f s",
                self.weights.version,
                *self.seconds,
            )
        except Exception as error:
            logger.error("banyan: %s", error)
            if self._is_alone:
                self._is_active = False
                raise
        finally:
            self._guard.set(self.weights.torn is not None)

    def _receive(self) -> None:
        """Move one version from the trainers to this worker. Collective."""
        assert self._updates is not None and self._memory is not None
        self._updates.update(
            self._memory.tensors,
            finish=self._finish,
            # vLLM's sleep frees the parameters' memory, and maps other memory in its place.
            unmap=self.device.type != "cpu" and self.model_config.enable_sleep_mode,
        )

    def _finish(self, names: Sequence[str]) -> None:
        """Process the layers that have received these tensors."""
        assert self._memory is not None
        began = time.perf_counter()
        self._memory.finish(names)
        self._processed += time.perf_counter() - began

    def finish_weight_update(self) -> None:
        """End the update; torn weights stay torn."""
        self._is_active = False

    def shutdown(self) -> None:
        """Leave the trainers. The version of the weights, or that they are torn, stays."""
        self._leave("a worker of vLLM left")

    def _leave(self, reason: str, together: bool = False) -> None:
        if self._updates is not None:
            self._updates.close()
        if self._world is not None:
            updates.leave(self._world, reason, together=together)
        self._world = self._updates = self._memory = None
