"""Ask vLLM's own loader which checkpoint element every place of every parameter takes.

One process plays every rank: it sets the tensor-parallel group's size and rank, builds the model,
and loads tensors whose values number their elements. In float32 these numbers are exact, so that
one load tells everything. A second load, of random values in the checkpoint's own types, must give
what the first one predicts; it also tells the parameters' types.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.layers.quantization import fp8
from vllm.model_executor.models import registry
from vllm.utils.torch_utils import set_default_torch_dtype

from families import Family
from places import UNTOUCHED, ZERO, Parameter, first_numbers

Tensors = dict[str, torch.Tensor]
Dtype = Literal["float32", "bfloat16"]

# vLLM looks at a model's class in a process of its own, which takes ten seconds.
registry._run_in_subprocess = lambda fn: fn()

# The CPU has no kernels for FP8: parameters are made and loaded without, with numbers in float32.
fp8.Fp8Config.get_supported_act_dtypes = lambda _: [torch.bfloat16, torch.float32]
fp8.init_fp8_linear_kernel = lambda **_: None
fp8.select_fp8_moe_backend = lambda **_: (None, None)

TYPES = {torch.float8_e4m3fn: "F8_E4M3", torch.bfloat16: "BF16", torch.float32: "F32", torch.int32: "I32", torch.int64: "I64"}


@dataclasses.dataclass(frozen=True)
class Held:
    """One rank's parameters: their places, and what the model's own values fill them with."""

    parameters: dict[str, Parameter]
    values: Tensors
    computed: set[str]  # of these every value is -exp of a checkpoint element


def start() -> None:
    """Make this process a world of one rank."""
    config = VllmConfig()
    with set_current_vllm_config(config), tempfile.NamedTemporaryFile() as file:
        parallel_state.init_distributed_environment(1, 0, f"file://{file.name}", 0, "gloo")
        parallel_state.initialize_model_parallel(1, 1)


@contextlib.contextmanager
def playing(tp: int, rank: int) -> Iterator[None]:
    """Let the tensor-parallel group look like rank `rank` of `tp`."""
    group = parallel_state.get_tp_group()
    kept = group.world_size, group.rank_in_group, group.ranks
    group.world_size, group.rank_in_group, group.ranks = tp, rank, list(range(tp))
    try:
        yield
    finally:
        group.world_size, group.rank_in_group, group.ranks = kept


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


def engine_config(case: Case, dtype: Dtype) -> VllmConfig:
    drafts = case.packing == "vllm_mtp"
    draft = {"method": "mtp", "num_speculative_tokens": 1} if drafts else None
    return EngineArgs(
        model=str(case.folder),
        dtype=dtype,
        skip_tokenizer_init=True,
        enforce_eager=True,
        speculative_config=draft,
        enable_expert_parallel=case.expert_parallel,
    ).create_engine_config()


def load(case: Case, tensors: Tensors, dtype: Dtype, rank: int) -> Tensors:
    """Every parameter and buffer of the rank's model, after the loader had the tensors."""
    config = engine_config(case, dtype)
    loaded = config.model_config
    if config.speculative_config:
        loaded = config.speculative_config.draft_model_config
    with playing(case.tp, rank), set_current_vllm_config(config):
        with set_default_torch_dtype(getattr(torch, dtype)):
            model: Any = initialize_model(config, model_config=loaded)
        held = dict(model.named_parameters())
        memory = {p.untyped_storage().data_ptr() for p in held.values()}
        buffers = {  # some are views of parameters
            n: b for n, b in model.named_buffers() if b.untyped_storage().data_ptr() not in memory
        }
        before = {n: b.clone() for n, b in buffers.items()}
        for parameter in held.values():
            if dtype == "float32":  # which holds the numbers of elements
                parameter.data = parameter.data.float()
            parameter.data.fill_(UNTOUCHED)
        model.load_weights((n, t.clone()) for n, t in tensors.items())
        held |= {n: b for n, b in buffers.items() if not torch.equal(b, before[n])}
        return {n: p.data for n, p in held.items()}


def number(family: Family, tensors: Tensors) -> Tensors:
    """Tensors of these shapes whose values, as vLLM keeps them, are their elements' numbers."""
    numbered: Tensors = {}
    for name, first in first_numbers({n: t.shape for n, t in tensors.items()}).items():
        count = tensors[name].numel()
        assert first + count <= 1 << 24, "float32 holds no more numbers exactly"
        numbers = torch.arange(first, first + count).reshape(tensors[name].shape).float()
        numbered[name] = numbers.log() if is_exponential(family, name) else numbers
    return numbered


def is_exponential(family: Family, name: str) -> bool:
    return bool(family.exponential) and name.endswith(family.exponential)


def expect(tensors: Tensors, places: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Values that the places predict for the checkpoint."""
    values = torch.cat([t.float().flatten() for _, t in sorted(tensors.items())])
    if (places < UNTOUCHED).any():
        return -values[UNTOUCHED - places.long() - 1].exp().to(dtype)
    filled = values[places.clamp(min=1).long() - 1]
    return torch.where(places > ZERO, filled, places).to(dtype)


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def learn(case: Case, rank: int) -> Held:
    """Load numbers and then values, and check that the one explains the other."""
    family, tensors = case.family, load_file(case.folder / "model.safetensors")
    numbers = load(case, number(family, tensors), "float32", rank)
    values = load(case, tensors, "bfloat16", rank)
    if numbers.keys() != values.keys():
        raise ValueError(f"{case}: other parameters in bfloat16: {numbers.keys() ^ values.keys()}")
    held = Held({}, {}, set())
    for name, value in values.items():
        places = numbers[name].float().round()
        if (places < UNTOUCHED).any():  # -exp(log n) for element n
            held.computed.add(name)
            places += UNTOUCHED
        if not same_bytes(value, expect(tensors, places, value.dtype)):
            raise ValueError(f"{case}: {name} does not hold what its places predict")
        flat = array.array("i", places.to(torch.int32).numpy().tobytes())
        held.parameters[name] = Parameter(TYPES[value.dtype], tuple(value.shape), flat)
        held.values[name] = value
    return held
