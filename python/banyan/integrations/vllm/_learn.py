"""Layouts of vLLM's parameters, learned from its own loader."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.model_executor.layers import rotary_embedding
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.utils.torch_utils import set_default_torch_dtype

from .._loader import Checkpoint, Learned
from .._loader import learn as _learn


@contextlib.contextmanager
def playing(tp: int, rank: int) -> Iterator[None]:
    """Let vLLM's tensor-parallel group look like rank ``rank`` of ``tp``.

    For processes that run no model: the group of this process has no such peers.
    """
    group = parallel_state.get_tp_group()
    kept = group.world_size, group.rank_in_group, group.ranks
    group.world_size, group.rank_in_group, group.ranks = tp, rank, list(range(tp))
    try:
        yield
    finally:
        group.world_size, group.rank_in_group, group.ranks = kept


def initialize(vllm_config: VllmConfig, model_config: Any = None) -> Any:
    """Make a model as vLLM does before it loads, in host memory, for this process's rank.

    Its parameters are uninitialized memory, which costs nothing until it is written. The model is
    apart from the engine's own: it registers nothing in ``vllm_config``.
    """
    config = copy.copy(vllm_config)
    config.compilation_config = copy.copy(config.compilation_config)
    config.compilation_config.static_forward_context = {}
    config.compilation_config.static_all_moe_layers = []
    config.quant_config = copy.deepcopy(config.quant_config)
    model_config = model_config or config.model_config
    ropes = dict(rotary_embedding._ROPE_DICT)
    rotary_embedding._ROPE_DICT.clear()
    try:
        with (
            set_current_vllm_config(config),
            set_default_torch_dtype(model_config.dtype),
            torch.device("cpu"),
        ):
            return initialize_model(config, model_config=model_config)
    finally:
        rotary_embedding._ROPE_DICT.clear()
        rotary_embedding._ROPE_DICT.update(ropes)


def learn(vllm_config: VllmConfig, checkpoint: Checkpoint, *, model_config: Any = None) -> Learned:
    """Return the layout of the parameters of this process's rank, as vLLM loads them.

    These are the parameters before ``process_weights_after_loading``, with their names then. Local:
    vLLM's process groups must exist, and no peer takes part. ``checkpoint``: type and whole shape
    of each tensor, by name. ``model_config``: of a draft model; None: that of ``vllm_config``.
    Raise Unsupported, with the names of parameter and tensor, if the loader cannot be followed.
    """
    model = initialize(vllm_config, model_config)
    with set_current_vllm_config(vllm_config):
        return _learn(model, model.load_weights, checkpoint)
