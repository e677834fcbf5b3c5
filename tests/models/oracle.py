"""Ask vLLM's own loader what it does: learn its layouts, and load the model's own values."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import torch
from safetensors.torch import load_file
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.quantization import fp8
from vllm.model_executor.models import registry

from banyan import Layout
from banyan.integrations._loader import tensors_of
from banyan.integrations.vllm import _learn as loader
from families import Family

Tensors = dict[str, torch.Tensor]

# vLLM looks at a model's class in a process of its own, which takes ten seconds.
registry._run_in_subprocess = lambda fn: fn()

# The CPU has no kernels for FP8: parameters are made and loaded without.
fp8.Fp8Config.get_supported_act_dtypes = lambda _: [torch.bfloat16]
fp8.init_fp8_linear_kernel = lambda **_: None
fp8.select_fp8_moe_backend = lambda **_: (None, None)

# Draft models take these from the model, or from their own copies, which come last.
REPLACED = ["model.embed_tokens.weight", "*.shared_head.head.weight"]


@dataclasses.dataclass(frozen=True)
class Held:
    """One rank's layout, and what the model's own values fill its tensors with."""

    layout: Layout
    values: Tensors

    @property
    def computed(self) -> set[str]:
        """Tensors of which every value is -exp of a checkpoint element."""
        tensors = self.layout.tensors
        return {tensors[p.tensor].name for p in self.layout.pieces if p.negative_exp}


@dataclasses.dataclass(frozen=True)
class Case:
    """One model in one packing, for one number of ranks."""

    family: Family
    folder: pathlib.Path
    packing: str
    tp: int
    expert_parallel: bool

    @property
    def size(self) -> str:
        return f"tp={self.tp},ep={self.tp}" if self.expert_parallel else f"tp={self.tp}"

    @property
    def spec(self) -> str:
        return f"{self.size},packing={self.packing}"

    @property
    def is_draft(self) -> bool:
        return self.packing == "vllm_mtp"


def engine_config(case: Case) -> VllmConfig:
    draft = {"method": "mtp", "num_speculative_tokens": 1} if case.is_draft else None
    return EngineArgs(
        model=str(case.folder),
        dtype="bfloat16",
        skip_tokenizer_init=True,
        enforce_eager=True,
        speculative_config=draft,
        enable_expert_parallel=case.expert_parallel,
    ).create_engine_config()


def learn(case: Case, rank: int) -> Held:
    """Learn the rank's layout, and load the model's values into a model of its own."""
    config: Any = engine_config(case)
    loaded = config.speculative_config.draft_model_config if case.is_draft else config.model_config
    tensors = load_file(case.folder / "model.safetensors")
    checkpoint = {n: (t.dtype, tuple(t.shape)) for n, t in tensors.items()}
    replaced = REPLACED if case.is_draft else []
    with loader.playing(case.tp, rank):
        learned = loader.learn(config, checkpoint, model_config=loaded, replaced=replaced)
        model = loader.initialize(config, loaded)
        with set_current_vllm_config(config), torch.no_grad():
            for tensor in model.parameters():
                tensor.fill_(-1)
            model.load_weights(tensors.items())
    held = tensors_of(model)
    names = {local.name for local in learned.layout.tensors}
    return Held(learned.layout, {n: t for n, t in held.items() if n in names})
