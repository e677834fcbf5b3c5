"""Predicted time of weight updates of large models on clusters of DGX H100, with the limit that the
network cards set. DeepSeek-V3 and Kimi-K2 go from 256 trainers to 128 ranks of inference engines.

    python3 bench/forecast.py BUILD [NAME]        # only cases whose name contains NAME
    python3 bench/forecast.py --write FOLDER MODEL DTYPE  # a model's tensor list and config.json
"""

import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

CARD_BYTES_PER_S = 50e9
GOAL = 0.9
TRAINER = "tp=8,pp=8,dp=4,ep=32"
# Engines of 64 GPUs, two of them: experts over all, attention over tp.
ENGINES = [(f"tp={tp}", f"tp={tp},dp={128 // tp},ep=64") for tp in (8, 4, 2, 1)]

# The values of config.json in the models' public repositories.
CONFIGS = {
    "deepseek-v3": {"experts": 256, "dense_layers": 3, "heads": 128, "vocabulary": 129280},
    "kimi-k2": {"experts": 384, "dense_layers": 1, "heads": 64, "vocabulary": 163840},
}
LAYERS, HIDDEN, DENSE, EXPERT = 61, 7168, 18432, 2048
QUERY_RANK, KEY_RANK, NOPE, ROPE, VALUE = 1536, 512, 128, 64, 128
BLOCK = 128  # rows and columns of a block with one scale, in FP8


def attention(heads: int) -> dict[str, tuple[int, int]]:
    """Return the matrices of latent attention."""
    return {
        "q_a_proj": (QUERY_RANK, HIDDEN),
        "q_b_proj": (heads * (NOPE + ROPE), QUERY_RANK),
        "kv_a_proj_with_mqa": (KEY_RANK + ROPE, HIDDEN),
        "kv_b_proj": (heads * (NOPE + VALUE), KEY_RANK),
        "o_proj": (HIDDEN, heads * VALUE),
    }


def mlp(width: int) -> dict[str, tuple[int, int]]:
    """Return the matrices of an MLP."""
    return {
        "gate_proj": (width, HIDDEN),
        "up_proj": (width, HIDDEN),
        "down_proj": (HIDDEN, width),
    }


def tensors(model: str, dtype: str) -> dict[str, Any]:
    """Return the model's tensor list, in BF16 or F8_E4M3 with block scales."""
    config = CONFIGS[model]
    found: dict[str, Any] = {}

    def add(name: str, *shape: int, dtype: str = "BF16") -> None:
        found[name] = {"shape": list(shape), "dtype": dtype}

    def add_matrices(prefix: str, matrices: dict[str, tuple[int, int]]) -> None:
        for name, shape in matrices.items():
            add(f"{prefix}.{name}.weight", *shape, dtype=dtype)
            if dtype != "BF16":
                blocks = [-(-extent // BLOCK) for extent in shape]
                add(f"{prefix}.{name}.weight_scale_inv", *blocks, dtype="F32")

    add("model.embed_tokens.weight", config["vocabulary"], HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        add(f"{at}.input_layernorm.weight", HIDDEN)
        add(f"{at}.post_attention_layernorm.weight", HIDDEN)
        add(f"{at}.self_attn.q_a_layernorm.weight", QUERY_RANK)
        add(f"{at}.self_attn.kv_a_layernorm.weight", KEY_RANK)
        add_matrices(f"{at}.self_attn", attention(config["heads"]))
        if layer < config["dense_layers"]:
            add_matrices(f"{at}.mlp", mlp(DENSE))
            continue
        add(f"{at}.mlp.gate.weight", config["experts"], HIDDEN)
        add(f"{at}.mlp.gate.e_score_correction_bias", config["experts"], dtype="F32")
        add_matrices(f"{at}.mlp.shared_experts", mlp(EXPERT))
        for expert in range(config["experts"]):
            add_matrices(f"{at}.mlp.experts.{expert}", mlp(EXPERT))
    add("model.norm.weight", HIDDEN)
    add("lm_head.weight", config["vocabulary"], HIDDEN)
    return found


def config_of(model: str, dtype: str) -> Any:
    """Return the values of config.json that layouts need."""
    config = {
        "model_type": "deepseek_v3",
        "num_hidden_layers": LAYERS,
        "hidden_size": HIDDEN,
        "n_routed_experts": CONFIGS[model]["experts"],
        "num_attention_heads": CONFIGS[model]["heads"],
        "num_key_value_heads": CONFIGS[model]["heads"],
        "q_lora_rank": QUERY_RANK,
        "kv_lora_rank": KEY_RANK,
        "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": ROPE,
        "v_head_dim": VALUE,
    }
    if dtype != "BF16":
        config["quantization_config"] = {
            "quant_method": "fp8",
            "weight_block_size": [BLOCK, BLOCK],
        }
    return config


def write_model(folder: pathlib.Path, model: str, dtype: str) -> pathlib.Path:
    """Write the tensor list and config.json into a new folder; return the list's path."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_of(model, dtype)))
    path = folder / f"{model}.json"
    path.write_text(json.dumps(tensors(model, dtype)))
    return path


def forecast(build: str, path: str, to: str, *options: str) -> Any:
    """Return what `banyan simulate` predicts for the direct service."""
    command = [
        f"{build}/bin/banyan",
        "simulate",
        "--model",
        path,
        "--config",
        str(pathlib.Path(path).parent / "config.json"),
        "--from",
        TRAINER,
        "--to",
        to,
        "--disjoint",
        "-t",
        "dgx-h100x1024",
        "--service",
        "direct",
        "--json",
        *options,
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def limit_of(links: Any) -> float:
    """Return the seconds in which the cards of one side carry the least that must cross."""
    fewest = int(min(links["in"]["links"], links["out"]["links"]))
    return int(links["least_network_bytes"]) / fewest / CARD_BYTES_PER_S


def report(name: str, build: str, path: str, to: str) -> bool:
    """Print one case, once over the network for each node, and with a fetch by each rank."""
    found = forecast(build, path, to)
    alone = forecast(build, path, to, "--each-rank-fetches")
    links, limit = found["links"], limit_of(found["links"])
    seconds = float(found["forecasts"][0]["seconds"])
    share = limit / seconds
    print(
        f"{name:24}{seconds:8.3f} s  limit {limit:6.3f} s  {share:4.0%}"
        f"{'' if share >= GOAL else '  MISSED'}"
        f"  (each rank for itself {alone['forecasts'][0]['seconds']:.3f} s)\n"
        f"{'':24}{links['in']['bytes'] / 1e12:.3f} TB cross the network, of at least "
        f"{links['least_network_bytes'] / 1e12:.3f}; a card receives "
        f"{links['in']['least'] / 1e9:.2f} to {links['in']['most'] / 1e9:.2f} GB",
        flush=True,
    )
    return share >= GOAL


def main() -> int:
    """Print all cases; return 1 if one misses the goal."""
    if sys.argv[1] == "--write":
        print(write_model(pathlib.Path(sys.argv[2]), sys.argv[3], sys.argv[4]))
        return 0
    build, wanted = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    good = True
    print(
        f"{TRAINER} to 128 ranks of engines, on DGX H100, simulated (goal: {GOAL:.0%} of the limit)"
    )
    with tempfile.TemporaryDirectory() as folder:
        for model in CONFIGS:
            for dtype, short in (("BF16", "bf16"), ("F8_E4M3", "fp8")):
                path = write_model(pathlib.Path(folder) / f"{model}-{short}", model, dtype)
                for engine, to in ENGINES:
                    name = f"{model} {short} {engine}"
                    if wanted in name:
                        good &= report(name, build, str(path), to)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
