"""The layouts for Megatron-Core that ordinary tests keep as digests: tests/data/megatron.json.

A digest stands for the names, shapes and places (places.py) of what each rank holds.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import subprocess
import tempfile

from places import Shapes, ranks_of

KEPT = pathlib.Path(__file__).parent.parent / "data/megatron.json"

# Models whose key-value heads are fewer than ranks: the family, and how many.
FEW_HEADS = {"qwen2.5-one-head": ("qwen2.5", 1), "qwen3-moe-one-head": ("qwen3-moe", 1)}
# Megatron-Core 0.16.1 runs these families on a CPU.
DENSE = ["llama2", "llama3", "llama3-tied-bias", "mistral", "phi3", "qwen2", "qwen2.5", "qwen3",
         *FEW_HEADS]
EXPERTS = ["mixtral", "qwen2-moe", "qwen3-moe", "glm4-moe", "llama4", "gpt-oss"]
LATENT = ["deepseek-v2-lite", "deepseek-v2", "deepseek-v3", "kimi-k2"]
# With the layer that predicts a further token.
FURTHER = {"deepseek-v3-mtp": "deepseek-v3", "glm4-moe-mtp": "glm4-moe"}
EXPERTS += [name for name, family in FURTHER.items() if family in EXPERTS]
LATENT += [name for name, family in FURTHER.items() if family in LATENT]
HYBRID = ["nemotron-h"]
# It lacks modules of these, or has them for GPUs only (gated delta nets), so that nothing here can
# tell whether a packing is right. Banyan refuses them.
LACKING = ["gemma2", "gemma3", "glm4", "qwen3-next"]
# True: with the names of Transformer Engine's modules.
PACKINGS = {"megatron": True, "megatron_local": False}

Parallel = dict[str, int]


def is_refused(family: str, packing: str) -> bool:
    """True where Banyan must refuse. Megatron-Core's own modules lack latent attention and Mamba."""
    return family in LACKING or (family in LATENT + HYBRID and not PACKINGS[packing])


def parallels(family: str) -> list[Parallel]:
    """The parallel layouts of two ranks that a family is tried in."""
    made = [{"dp": 2}, {"tp": 2}, {"pp": 2}]
    if family == "gpt-oss":  # Megatron-Core does not cut experts with biases
        made[1]["etp"] = 1
    if family in EXPERTS + LATENT:
        made += [{"dp": 2, "ep": 2}, {"tp": 2, "ep": 2}]
    return made


def spec_of(parallel: Parallel, packing: str) -> str:
    return ",".join(f"{key}={value}" for key, value in parallel.items()) + f",packing={packing}"


def digest(banyan: str, folder: pathlib.Path, spec: str, shapes: Shapes) -> str:
    """The digest of Banyan's layout of the model in `folder`, whose tensors have these shapes."""
    with tempfile.TemporaryDirectory() as work:
        out = pathlib.Path(work) / "layout.json"
        command = [banyan, "layout", "save", "--model", folder, "--spec", spec, "-o", out]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip())
        ranks = ranks_of(json.loads(out.read_text()), shapes)
    total = hashlib.sha256()
    for rank, held in enumerate(ranks):
        for name in sorted(held):
            total.update(f"{rank} {name} {list(held[name].shape)} ".encode())
            total.update(held[name].places.tobytes())
    return total.hexdigest()[:16]


def read_kept() -> dict[str, dict[str, str]]:
    """The kept digests by family and spec."""
    return json.loads(KEPT.read_text()) if KEPT.exists() else {}


def write_kept(kept: dict[str, dict[str, str]]) -> None:
    KEPT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
