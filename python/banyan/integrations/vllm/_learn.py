"""Layouts of vLLM's parameters, learned from its own loader."""

from __future__ import annotations

import contextlib
import copy
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import vllm
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.engine.arg_utils import EngineArgs
from vllm.logger import init_logger
from vllm.model_executor.layers import rotary_embedding
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.meta import materialize_layer
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.utils.torch_utils import set_default_torch_dtype

from ... import Corrupt, Layout, Model
from ..._types import PathLike
from .. import _layout_cache as cache
from .. import _loader
from .._loader import Checkpoint, Learned
from .._verify import available_bytes, needed_bytes
from .._verify import verify as _verify

#: Parameters that vLLM loads once for each matrix of a fused layer; the last one counts.
_REPLACED = ("*.weight_shape",)

logger = init_logger(__name__)


def initialize(vllm_config: VllmConfig, model_config: Any = None) -> Any:
    """Make a model as vLLM does before it loads, in host memory, for this process's rank.

    Its parameters are uninitialized memory, which costs nothing until it is written. The model is
    apart from the engine's own: it registers nothing in ``vllm_config``. Layers that vLLM quantizes
    while it loads have the parameters of the checkpoint's form.
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
            model = initialize_model(config, model_config=model_config)
            _load_at_once(model)
            return model
    finally:
        rotary_embedding._ROPE_DICT.clear()
        rotary_embedding._ROPE_DICT.update(ropes)


def _load_at_once(model: torch.nn.Module) -> None:
    """Let the loaders of layers that are quantized online copy, and not wait for the whole layer.

    vLLM makes such layers without memory. Its loaders keep the tensors of a layer until the last
    one is there, and then quantize.
    """
    for layer in model.modules():
        info = get_layerwise_info(layer)
        if not info.can_load():
            continue
        materialize_layer(layer, info)
        tensors: list[Any] = [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]
        for tensor in tensors:
            loader = getattr(tensor, "weight_loader", None)
            while loader is not None and loader.__name__ == "online_process_loader":
                loader = tensor.weight_loader = loader.__wrapped__
        info.load_numel_total = None  # nothing waits


def learn(
    vllm_config: VllmConfig,
    checkpoint: Checkpoint,
    *,
    model_config: Any = None,
    holes: Sequence[str] = (),
    replaced: Sequence[str] = (),
    verify: bool = False,
) -> Learned:
    """Return the layout of the parameters of this process's rank, as vLLM loads them.

    These are the parameters before ``process_weights_after_loading``, with their names then. Local:
    vLLM's process groups must exist, and no peer takes part.

    ``checkpoint``: type and whole shape of each tensor, by name. ``model_config``: of a draft
    model; None: that of ``vllm_config``. ``holes``, ``replaced``: patterns of parameters that may
    be filled in part, and in which a tensor may replace an earlier one. ``verify``: load random
    values into a second model in host memory, and compare every byte.

    Raise Unsupported, with the names of parameter and tensor, if the loader cannot be followed.
    """
    model = initialize(vllm_config, model_config)
    with set_current_vllm_config(vllm_config):
        learned = _loader.learn(
            model, model.load_weights, checkpoint, holes=holes, replaced=[*_REPLACED, *replaced]
        )
    if verify:
        verify_layout(vllm_config, checkpoint, learned.layout, model_config=model_config)
    return learned


def verify_layout(
    vllm_config: VllmConfig, checkpoint: Checkpoint, layout: Layout, *, model_config: Any = None
) -> None:
    """Load random values into a second model in host memory, and compare every byte.

    Raise Corrupt, with the names of parameter and tensor, if a byte differs. Local.
    """
    model = initialize(vllm_config, model_config)
    with set_current_vllm_config(vllm_config):
        _verify(model, model.load_weights, checkpoint, layout)


def origin(vllm_config: VllmConfig, checkpoint: Checkpoint, model_config: Any = None) -> Any:
    """Return for what this process learns: release, model, tensor-parallel size."""
    model_config = model_config or vllm_config.model_config
    config = model_config.hf_config.to_dict()
    for key in ("_name_or_path", "transformers_version"):
        config.pop(key, None)
    pp, dp = parallel_state.get_pp_group(), parallel_state.get_dp_group()
    is_expert_parallel = bool(vllm_config.parallel_config.enable_expert_parallel)
    described = {
        "config": config,
        "dtype": str(model_config.dtype),
        "quantization": [str(model_config.quantization), str(model_config.quantization_config)],
        "stage": [pp.rank_in_group, pp.world_size],
        "experts": [dp.rank_in_group, dp.world_size] if is_expert_parallel else None,
    }
    return cache.Origin(
        "vllm",
        vllm.__version__,
        str(config.get("model_type")),
        cache.digest(described, checkpoint),
        parallel_state.get_tp_group().world_size,
    )


def learned_layout(
    vllm_config: VllmConfig,
    checkpoint: Checkpoint,
    *,
    model_config: Any = None,
    verify: bool | None = None,
    **options: Any,
) -> Layout:
    """Return what ``learn`` returns, from a file if there is one; else learn and keep it.

    The folder of the files is BANYAN_LAYOUTS, or banyan/layouts in the user's cache. A file is for
    one release of vLLM, model, checkpoint and tensor-parallel size. ``verify``: a layout that is
    not verified yet, once. None: if half of the free host memory is enough for all workers.
    ``options``: of ``learn``.
    """
    parallel = vllm_config.parallel_config

    def check(layout: Layout) -> bool:
        if verify is False:
            return False
        needed = needed_bytes(layout, checkpoint) * parallel.world_size
        if verify is None and needed > available_bytes() // 2:
            logger.warning(
                "banyan: the layout is not verified, which takes %.1f GB of host memory: "
                "run banyan layout learn",
                needed / 1e9,
            )
            return False
        began = time.perf_counter()
        try:
            verify_layout(vllm_config, checkpoint, layout, model_config=model_config)
        except Exception as error:
            if verify or isinstance(error, Corrupt):
                raise
            logger.warning("banyan: the layout is not verified: %s", error)
            return False
        logger.info("banyan: the layout is verified (%.2f s)", time.perf_counter() - began)
        return True

    return cache.find(
        origin(vllm_config, checkpoint, model_config),
        parallel_state.get_tp_group().rank_in_group,
        lambda: learn(vllm_config, checkpoint, model_config=model_config, **options).layout,
        check,
    )


# ---- without an engine ----


def start() -> None:
    """Make this process a world of one rank, whose tensor-parallel group ``playing`` changes."""
    config = VllmConfig()
    with set_current_vllm_config(config), tempfile.NamedTemporaryFile() as file:
        parallel_state.init_distributed_environment(1, 0, f"file://{file.name}", 0, "gloo")
        parallel_state.initialize_model_parallel(1, 1)


@contextlib.contextmanager
def playing(tp: int, rank: int, pp: int = 1, stage: int = 0) -> Iterator[None]:
    """Let vLLM's groups look like rank ``rank`` of ``tp`` of a stage of ``pp``, without peers."""
    tensor, pipeline = parallel_state.get_tp_group(), parallel_state.get_pp_group()
    kept = [(group, dict(vars(group))) for group in (tensor, pipeline)]
    tensor.world_size, tensor.rank_in_group, tensor.ranks = tp, rank, list(range(tp))
    pipeline.world_size, pipeline.rank_in_group, pipeline.ranks = pp, stage, list(range(pp))
    pipeline.rank = stage  # is it the first or the last one?
    try:
        yield
    finally:
        for group, attributes in kept:
            vars(group).update(attributes)


def checkpoint_of(folder: PathLike) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Return type and shape of each tensor of a Hugging Face folder."""
    return {t.name: (getattr(torch, t.dtype), t.shape) for t in Model(folder).tensors}


def learn_folder(
    folder: PathLike,
    tp: int,
    pp: int = 1,
    *,
    checkpoint: Checkpoint | None = None,
    expert_parallel: bool = False,
    **options: Any,
) -> list[tuple[cache.Origin, Learned]]:
    """Learn the layouts of all ranks of a Hugging Face folder, in this process.

    They are those of the tensor-parallel ranks of the first pipeline stage, then of the others.
    ``checkpoint``: None: all tensors of the folder. ``options``: of ``learn``. Call ``start``
    before.
    """
    config = EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        enforce_eager=True,
        enable_expert_parallel=expert_parallel,
    ).create_engine_config()
    checkpoint = checkpoint_of(folder) if checkpoint is None else checkpoint
    learned = []
    for stage in range(pp):
        for rank in range(tp):
            with playing(tp, rank, pp, stage):
                learned.append((origin(config, checkpoint), learn(config, checkpoint, **options)))
    return learned
