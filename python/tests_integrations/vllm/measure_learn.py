"""Measure `banyan layout learn`: time and memory for a model of 1.1 GB, or of a larger size.

usage: measure_learn.py [1g|8b|30b ...]. The checkpoints have shapes and take no space.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from setting import BUILD, hold


def model(layers: int, hidden: int, intermediate: int, vocab: int, experts: int = 0) -> Any:
    """Return a kept model of tests/models: Llama, or Qwen3-MoE with experts."""
    heads, kv = hidden // 64, hidden // 128
    shapes = {
        "model.embed_tokens.weight": [vocab, hidden],
        "lm_head.weight": [vocab, hidden],
        "model.norm.weight": [hidden],
    }
    for i in range(layers):
        layer = f"model.layers.{i}."
        shapes[layer + "input_layernorm.weight"] = [hidden]
        shapes[layer + "post_attention_layernorm.weight"] = [hidden]
        for name, rows in (("q", heads), ("k", kv), ("v", kv)):
            shapes[f"{layer}self_attn.{name}_proj.weight"] = [64 * rows, hidden]
        shapes[layer + "self_attn.o_proj.weight"] = [hidden, 64 * heads]
        if experts:
            shapes[layer + "self_attn.q_norm.weight"] = [64]
            shapes[layer + "self_attn.k_norm.weight"] = [64]
            shapes[layer + "mlp.gate.weight"] = [experts, hidden]
        for mlp in [f"mlp.experts.{e}." for e in range(experts)] or ["mlp."]:
            shapes[f"{layer}{mlp}gate_proj.weight"] = [intermediate, hidden]
            shapes[f"{layer}{mlp}up_proj.weight"] = [intermediate, hidden]
            shapes[f"{layer}{mlp}down_proj.weight"] = [hidden, intermediate]
    config = {
        "architectures": ["Qwen3MoeForCausalLM" if experts else "LlamaForCausalLM"],
        "model_type": "qwen3_moe" if experts else "llama",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "moe_intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "vocab_size": vocab,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": 64,
        "num_experts": experts,
        "num_experts_per_tok": min(8, experts),
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    tensors = {name: {"dtype": "BF16", "shape": shape} for name, shape in shapes.items()}
    return {"config": config, "tensors": tensors}


MODELS = {
    "1g": model(40, 1024, 3072, 32768),
    "8b": model(32, 4096, 14336, 128256),
    "30b": model(48, 2048, 768, 151936, experts=128),
}


def learn(folder: Path, tp: int, *options: str) -> str:
    """Run the command in a process of its own. Return its last line, and its peak of memory."""
    words = ["layout", "learn", "--engine", "vllm", "--model", folder, "--tp", str(tp), *options]
    code = (
        "import resource, subprocess, sys\n"
        "done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)\n"
        "print(done.stdout.decode().splitlines()[-1])\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, BUILD / "bin/banyan", *words, "-o", folder / "learned.json"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"BANYAN_PYTHON": sys.executable},
    )
    line, peak = done.stdout.splitlines()
    return f"{line.split(': ')[1]}, peak {int(peak) / 2**20:.1f} GiB"


def main() -> None:
    for name in sys.argv[1:] or ["1g"]:
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made) / name
            hold.data.write_folder(MODELS[name], folder)
            size = (folder / "model.safetensors").stat().st_size
            for tp in (1, 2):
                for options in ([], ["--no-verify"]) if name == "1g" else (["--no-verify"],):
                    found = learn(folder, tp, *options)
                    print(f"{name} ({size / 1e9:.1f} GB) tp={tp}: {found}", flush=True)


if __name__ == "__main__":
    main()
