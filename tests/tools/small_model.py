"""Tensor lists of small models, named like the public ones."""

import json
import math

BYTES = {"BF16": 2, "F32": 4}


def dense(layers=4, hidden=64, heads=8, key_value_heads=4, head=16, wide=96, vocabulary=256,
          dtype="BF16"):
    """A Qwen3 in small: name → {"shape", "dtype"}."""
    shapes = {"model.embed_tokens.weight": [vocabulary, hidden]}
    for layer in range(layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in {
            "input_layernorm.weight": [hidden],
            "self_attn.q_proj.weight": [heads * head, hidden],
            "self_attn.k_proj.weight": [key_value_heads * head, hidden],
            "self_attn.v_proj.weight": [key_value_heads * head, hidden],
            "self_attn.q_norm.weight": [head],
            "self_attn.k_norm.weight": [head],
            "self_attn.o_proj.weight": [hidden, heads * head],
            "post_attention_layernorm.weight": [hidden],
            "mlp.gate_proj.weight": [wide, hidden],
            "mlp.up_proj.weight": [wide, hidden],
            "mlp.down_proj.weight": [hidden, wide],
        }.items()}
    shapes |= {"model.norm.weight": [hidden], "lm_head.weight": [vocabulary, hidden]}
    return {name: {"shape": shape, "dtype": dtype} for name, shape in shapes.items()}


def elements(model):
    return sum(math.prod(tensor["shape"]) for tensor in model.values())


def size(model):
    return sum(math.prod(tensor["shape"]) * BYTES[tensor["dtype"]] for tensor in model.values())


def write(model, path):
    path.write_text(json.dumps(model))
    return path
