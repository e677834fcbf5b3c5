"""Banyan for vLLM: a weight-transfer engine, and layouts that are learned from vLLM's loader.

``WeightTransferConfig(backend="banyan")`` selects the engine. The trainers' side is
``WeightTransferTrainerFactory.trainer_init(BanyanTrainerInitInfo(...), client=..., source=...)``:
each trainer rank sends its own shards straight to the places that the engine's loader would give
them. An entry point registers both in every process of vLLM. Importing this package imports
neither vLLM nor PyTorch.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._learn import learn, learned_layout
    from ._source import ShardSource
    from ._trainer import BanyanTrainerEngine, BanyanTrainerInitInfo
    from ._worker import BanyanWorkerEngine

__all__ = [
    "BanyanTrainerEngine",
    "BanyanTrainerInitInfo",
    "BanyanWorkerEngine",
    "ShardSource",
    "learn",
    "learned_layout",
    "register",
]

_MODULES = {
    "BanyanTrainerEngine": "_trainer",
    "BanyanTrainerInitInfo": "_trainer",
    "BanyanWorkerEngine": "_worker",
    "ShardSource": "_source",
    "learn": "_learn",
    "learned_layout": "_learn",
}


def __getattr__(name: str) -> Any:
    """Import a class when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)


def register() -> None:
    """Register the engine "banyan", once; vLLM calls this in each of its processes.

    Trainers that do not load vLLM's plugins call it themselves, or
    ``vllm.plugins.load_general_plugins()``. Does nothing in a vLLM without weight-transfer engines
    for trainers (before 0.32).
    """
    try:
        from vllm.distributed.weight_transfer import factory

        factories = (
            (factory.WeightTransferEngineFactory, "_worker", "BanyanWorkerEngine"),
            (factory.WeightTransferTrainerFactory, "_trainer", "BanyanTrainerEngine"),
        )
    except (ImportError, AttributeError):
        return
    for one, module, name in factories:
        with contextlib.suppress(ValueError):  # it is registered
            one.register_engine("banyan", f"{__name__}.{module}", name)
