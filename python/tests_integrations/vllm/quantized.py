"""Tiny Llamas and Qwens whose checkpoints are quantized, with random values."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import models
import torch
from safetensors.torch import load_file, save_file

Made = dict[str, torch.Tensor]
#: Elements of a group of integers that share a scale, and rows and columns of a block of FP8.
GROUP, BLOCK = 32, 128


def _int32(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, shape, generator=generator).to(torch.int32)


def _scales(generator: torch.Generator, columns: int, *shape: int) -> torch.Tensor:
    """Return scales by which values up to 8 have the size of a model's weights."""
    return (torch.rand(shape, generator=generator) + 0.5) * columns**-0.5 / 8


def _awq(generator: torch.Generator, rows: int, columns: int) -> Made:
    return {
        "qweight": _int32(generator, columns, rows // 8),
        "qzeros": _int32(generator, columns // GROUP, rows // 8),
        "scales": _scales(generator, columns, columns // GROUP, rows).bfloat16(),
    }


def _gptq(generator: torch.Generator, rows: int, columns: int) -> Made:
    return {
        "qweight": _int32(generator, columns // 8, rows),
        "qzeros": torch.full((columns // GROUP, rows // 8), 0x77777777, dtype=torch.int32),
        "scales": _scales(generator, columns, columns // GROUP, rows).bfloat16(),
        "g_idx": (torch.arange(columns) // GROUP).to(torch.int32),
    }


def _int8(generator: torch.Generator, rows: int, columns: int) -> Made:
    return {
        "weight": torch.randint(-127, 128, (rows, columns), generator=generator).to(torch.int8),
        "weight_scale": _scales(generator, columns, rows, 1) / 16,
    }


def _int4(generator: torch.Generator, rows: int, columns: int) -> Made:
    return {
        "weight_packed": _int32(generator, rows, columns // 8),
        "weight_scale": _scales(generator, columns, rows, columns // GROUP).bfloat16(),
        "weight_shape": torch.tensor([rows, columns]),
    }


def _fp8(generator: torch.Generator, rows: int, columns: int) -> torch.Tensor:
    values = torch.randn((rows, columns), generator=generator) * 100
    return values.clamp(-448, 448).to(torch.float8_e4m3fn)


def _fp8_channels(generator: torch.Generator, rows: int, columns: int) -> Made:
    return {
        "weight": _fp8(generator, rows, columns),
        "weight_scale": _scales(generator, columns, rows, 1) / 16,
    }


def _fp8_matrices(generator: torch.Generator, rows: int, columns: int) -> Made:
    return {
        "weight": _fp8(generator, rows, columns),
        "weight_scale": _scales(generator, columns, 1)[0] / 16,
    }


def _fp8_blocks(generator: torch.Generator, rows: int, columns: int) -> Made:
    shape = -(-rows // BLOCK), -(-columns // BLOCK)
    return {
        "weight": _fp8(generator, rows, columns),
        "weight_scale_inv": _scales(generator, columns, *shape) / 16,
    }


def _compressed(format: str, inputs: bool = True, **weights: Any) -> dict[str, Any]:
    """Return a configuration of compressed-tensors."""
    common = {"symmetric": True, "num_bits": 8, "type": "int"} | weights
    kind = {name: common[name] for name in ("symmetric", "num_bits", "type")}
    activations = kind | {"strategy": "token", "dynamic": True} if inputs else None
    group = {"targets": ["Linear"], "weights": common, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


#: Of each format: the entry in config.json, and what a matrix becomes.
FORMATS: dict[str, tuple[dict[str, Any], Callable[[torch.Generator, int, int], Made]]] = {
    "awq": (
        {
            "quant_method": "awq",
            "bits": 4,
            "group_size": GROUP,
            "zero_point": True,
            "version": "gemm",
        },
        _awq,
    ),
    "gptq": (
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True},
        _gptq,
    ),
    "int8": (_compressed("int-quantized", strategy="channel"), _int8),
    "int4": (
        _compressed("pack-quantized", False, strategy="group", group_size=GROUP, num_bits=4),
        _int4,
    ),
    "fp8_channels": (
        _compressed("float-quantized", strategy="channel", type="float"),
        _fp8_channels,
    ),
    "fp8_matrices": (
        {"quant_method": "fp8", "activation_scheme": "dynamic", "ignored_layers": ["lm_head"]},
        _fp8_matrices,
    ),
    "fp8_blocks": (
        {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
        },
        _fp8_blocks,
    ),
}


def save(family: str, format: str, folder: Path, seed: int, **changes: Any) -> Path:
    """Write a folder with a quantized model of a family, with random values, and return it."""
    models.save(family, folder, seed, **changes)
    settings, pack = FORMATS[format]
    file = folder / "model.safetensors"
    tensors = {}
    for name, one in load_file(file).items():
        if "_proj" not in name or ("kv_b_proj" in name and format != "fp8_blocks"):
            tensors[name] = one
            continue
        generator = torch.Generator().manual_seed(sum(name.encode()) * 1000 + seed)
        for suffix, made in pack(generator, *one.shape).items():
            tensors[name.removesuffix("weight") + suffix] = made
    save_file(tensors, file, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    return folder
