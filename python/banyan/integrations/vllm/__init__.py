"""Banyan for vLLM: a weight-transfer engine, and layouts that are learned from vLLM's loader.

``WeightTransferConfig(backend="banyan")`` selects the engine. The trainers' side is
``WeightTransferTrainerFactory.trainer_init(BanyanTrainerInitInfo(...), client=..., source=...)``:
each trainer rank sends its own shards straight to the places that the engine's loader would give
them. An engine with ``backend="banyan_subscription"`` fetches what changed while it serves:
``WeightPublication`` is the trainers' side, and ``WeightSubscription`` drives the engine. An entry
point registers all in every process of vLLM. Importing this package imports neither vLLM nor
PyTorch.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._learn import learn, learned_layout
    from ._publication import WeightPublication
    from ._source import ShardSource
    from ._subscription import BanyanSubscriptionEngine, WeightSubscription
    from ._trainer import BanyanTrainerEngine, BanyanTrainerInitInfo
    from ._worker import BanyanWorkerEngine

__all__ = [
    "BanyanSubscriptionEngine",
    "BanyanTrainerEngine",
    "BanyanTrainerInitInfo",
    "BanyanWorkerEngine",
    "ShardSource",
    "WeightPublication",
    "WeightSubscription",
    "learn",
    "learned_layout",
    "register",
]

_MODULES = {
    "BanyanSubscriptionEngine": "_subscription",
    "BanyanTrainerEngine": "_trainer",
    "BanyanTrainerInitInfo": "_trainer",
    "BanyanWorkerEngine": "_worker",
    "ShardSource": "_source",
    "WeightPublication": "_publication",
    "WeightSubscription": "_subscription",
    "learn": "_learn",
    "learned_layout": "_learn",
}


def __getattr__(name: str) -> Any:
    """Import a class when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)


def register() -> None:
    """Register the engines "banyan" and "banyan_subscription", once.

    vLLM calls this in each of its processes. Trainers that do not load vLLM's plugins call it
    themselves, or ``vllm.plugins.load_general_plugins()``. Does nothing in a vLLM without
    weight-transfer engines for trainers (before 0.32).
    """
    try:
        from vllm.distributed.weight_transfer import factory

        workers, trainers = (
            factory.WeightTransferEngineFactory,
            factory.WeightTransferTrainerFactory,
        )
    except (ImportError, AttributeError):
        return
    for one, backend, name in (
        (workers, "banyan", "BanyanWorkerEngine"),
        (workers, "banyan_subscription", "BanyanSubscriptionEngine"),
        (trainers, "banyan", "BanyanTrainerEngine"),
    ):
        with contextlib.suppress(ValueError):  # it is registered
            one.register_engine(backend, f"{__name__}.{_MODULES[name]}", name)
