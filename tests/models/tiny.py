"""Write the tiny models as folders of Hugging Face's form: config.json and model.safetensors."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from families import Family

Tensors = dict[str, torch.Tensor]


def mtp_tensors(family: Family, tensors: Tensors) -> Tensors:
    """The multi-token-prediction layer: a last layer's copy, and what joins it to the model."""
    layers = family.config["num_hidden_layers"]
    hidden = family.config["hidden_size"]
    last = f"model.layers.{layers - 1}."
    made = {family.mtp + n[len(last) :]: t for n, t in tensors.items() if n.startswith(last)}
    if family.mtp.startswith("mtp."):
        norms = ["mtp.norm", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden"]
        made["mtp.fc.weight"] = torch.ones(hidden, 2 * hidden)
    else:
        norms = [family.mtp + n for n in ("enorm", "hnorm", "shared_head.norm")]
        made[family.mtp + "eh_proj.weight"] = torch.ones(hidden, 2 * hidden)
        made[family.mtp + "embed_tokens.weight"] = tensors["model.embed_tokens.weight"]
        made[family.mtp + "shared_head.head.weight"] = tensors["lm_head.weight"]
    return made | {n + ".weight": torch.ones(hidden) for n in norms}


def write_model(family: Family, folder: pathlib.Path) -> None:
    """Write the family's model, with random weights, into a new folder."""
    torch.manual_seed(1)
    model_class: Any = getattr(transformers, family.model)
    model = model_class(model_class.config_class(**family.config))
    model.to(torch.bfloat16).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    if family.mtp:
        tensors |= mtp_tensors(family, tensors)
    if family.inv_freq:
        for i in range(family.config["num_hidden_layers"]):
            tensors[f"model.layers.{i}.self_attn.rotary_emb.inv_freq"] = torch.ones(16)
    tensors = {n: randomize(n, t) for n, t in tensors.items()}
    if family.fp8:
        tensors = quantized(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config |= {"torch_dtype": "bfloat16", **family.extra_config}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def quantized(tensors: Tensors) -> Tensors:
    """Matrices of attention, MLPs and experts in FP8, each with a scale for 128 × 128 elements."""
    made: Tensors = {}
    for name, tensor in tensors.items():
        is_matrix = tensor.ndim == 2 and "_proj" in name and "eh_proj" not in name
        made[name] = tensor.to(torch.float8_e4m3fn) if is_matrix else tensor
        if is_matrix:
            blocks = [-(-extent // 128) for extent in tensor.shape]
            made[name + "_scale_inv"] = torch.randn(blocks)
    return made


def randomize(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Random values in place of constants, which many tensors (norms, biases) begin with."""
    published_in_f32 = name.endswith(("e_score_correction_bias", "inv_freq"))
    return torch.randn(tensor.shape).to(torch.float32 if published_in_f32 else torch.bfloat16)
