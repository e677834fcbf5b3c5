"""A worker's side of updates of SGLang's weights."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from sglang.srt.model_loader.loader import post_load_weights
from sglang.srt.model_loader.utils import set_default_torch_dtype
from sglang.srt.runtime_context import get_model, get_parallel
from torch import Tensor, nn

from ... import NotFound, Unsupported, World
from .._loader import Learned, learn, tensors_of
from .._updates import Meta, Updates, Weights, join, leave, published
from ._trainer import Handle, read_handle


def _initialize(model: nn.Module) -> nn.Module:
    """Make a model of the same class and configuration, without memory."""
    dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
    shared: Any = getattr(model, "shared_experts_config", None)
    override = contextlib.nullcontext()
    if shared is not None:
        override = get_model().override(shared_experts=shared)
    with override, set_default_torch_dtype(dtype), torch.device("meta"):
        return type(model)(config=model.config, quant_config=None)


def _require_plain(model: nn.Module) -> None:
    """Raise Unsupported if SGLang changes weights of this model after it has loaded them."""
    quantized = getattr(model, "quant_config", None)
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if method is not None and not type(method).__name__.startswith("Unquantized"):
            quantized = quantized or type(method).__name__
        if quantized is not None:
            raise Unsupported(
                f"{type(model).__name__} is quantized ({name or 'model'}: {quantized}): send whole "
                "weights to SGLang's own loader"
            )
        if getattr(module, "use_intel_amx_backend", False):
            raise Unsupported(f"the weights of {name} are packed for AMX")


def learn_layout(model: nn.Module, metas: Iterable[Meta]) -> Learned:
    """Return the layout of a worker's parameters, as the model's own loader fills them. Local.

    Raise Unsupported, with the names, if the loader cannot be followed, or if the parameters of the
    model are not those that its loader fills, and NotFound if it leaves some as they are.
    """
    _require_plain(model)
    checkpoint = {one.name: (getattr(torch, one.dtype), one.shape) for one in metas}
    fresh = _initialize(model)
    learned = learn(fresh, fresh.load_weights, checkpoint)  # type: ignore[arg-type]
    parameters = {name for name, _ in fresh.named_parameters()}
    missing = [name for name in learned.left_alone if name in parameters]
    if missing:
        raise NotFound(f"the trainers have no weights for these parameters: {', '.join(missing)}")
    held = tensors_of(model)
    for local in learned.layout.tensors:
        one = held.get(local.name)
        if one is None:
            raise Unsupported(f'"{local.name}" is no parameter of the running model')
        if tuple(one.shape) != local.shape or str(one.dtype)[6:] != local.dtype:
            raise Unsupported(
                f'"{local.name}" is {str(one.dtype)[6:]} {list(one.shape)} in the running model, '
                f"but the loader fills {local.dtype} {list(local.shape)}: call begin_weight_update "
                "before"
            )
    return learned


class _Worker:
    """The world and the plan of a model, and its version."""

    def __init__(self) -> None:
        self.weights = Weights()
        self._unique_id = ""
        self._world: World | None = None
        self._updates: Updates | None = None
        self._names: list[str] = []

    def leave(self, reason: str) -> None:
        """End the world."""
        if self._updates is not None:
            self._updates.close()
        if self._world is not None:
            leave(self._world, reason)
        self._unique_id, self._world, self._updates = "", None, None

    def _join(self, model: nn.Module, handle: Handle) -> Updates:
        parallel = get_parallel()
        workers = parallel.tp_size * parallel.pp_size
        if workers != handle.workers:
            raise ValueError(
                f"the trainers expect {handle.workers} workers of this engine, which has {workers}"
            )
        rank = handle.first + parallel.pp_rank * parallel.tp_size + parallel.tp_rank
        self._world = join(handle.unique_id, rank, handle.size, timeout=handle.timeout)
        learned = learn_layout(model, published(self._world, None))
        self._names = [local.name for local in learned.layout.tensors]
        device = next(model.parameters()).device
        self._updates = Updates(
            self._world,
            None,
            learned.layout,
            weights=self.weights,
            unused=learned.unused,
            cast=handle.cast,
            device=device if device.type == "cuda" else None,
            timeout=handle.timeout,
        )
        self._unique_id = handle.unique_id
        return self._updates

    def update(self, model: nn.Module, handle: Handle) -> None:
        """Take part in an update."""
        updates = self._updates
        if updates is None or self._unique_id != handle.unique_id:
            self.leave("this worker joins other trainers")
            updates = self._join(model, handle)

        def tensors() -> dict[str, Tensor]:
            held = tensors_of(model)
            return {name: held[name] for name in self._names}

        updates.update(tensors, version=handle.version, finish=lambda _: post_load_weights(model))


_workers: weakref.WeakKeyDictionary[nn.Module, _Worker] = weakref.WeakKeyDictionary()


def weights_of(model: nn.Module) -> Weights:
    """Return the version of a model's weights, and whether they are whole."""
    return _workers.setdefault(model, _Worker()).weights


def load(model: nn.Module, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Fill a model's parameters from trainers (``banyan.integrations.sglang.load``)."""
    handle = read_handle(list(named_tensors))
    worker = _workers.setdefault(model, _Worker())
    try:
        with torch.no_grad():
            worker.update(model, handle)
    except BaseException as error:
        worker.leave(f"{type(error).__name__}: {error}")
        raise
