"""Trainers with a real model of Megatron-Core, divided by two for tensor parallelism, over Gloo."""

from __future__ import annotations

import logging
import re
import warnings
import zlib
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from environment import ROOT
from trainer import Trainer
from transformers import AutoConfig, AutoModelForCausalLM

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.tensor_parallel.random import initialize_rng_tracker
    from megatron.core.transformer import TransformerConfig

#: Megatron's training script pads the vocabulary to a multiple of this, for each rank.
VOCABULARY_MULTIPLE = 128
TP = 2


def example(core: Any, folder: Path, rank: int) -> Any:
    """Run the lines of docs/vllm.md that make a source of a model of Megatron-Core."""
    text = (ROOT / "docs/vllm.md").read_text()
    (lines,) = re.findall(r"```python\n((?:(?!```).)*packing=megatron(?:(?!```).)*)```", text, re.S)
    # On the host there is no Transformer Engine, so the layers are Megatron-Core's own.
    for old, new in (("Qwen3-8B", str(folder)), ("packing=megatron", "packing=megatron_local")):
        assert lines.count(old) == 1, lines
        lines = lines.replace(old, new)
    names = {"core": core, "rank": rank}
    exec(lines, names)
    return names["source"]


class MegatronTrainer(Trainer):
    """One rank."""

    def make(self) -> Any:
        logging.disable(logging.WARNING)
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=TP)
        initialize_rng_tracker(inference_rng_tracker=True)
        hf = AutoConfig.from_pretrained(self.folder)
        per_rank = -(-hf.vocab_size // (VOCABULARY_MULTIPLE * TP)) * VOCABULARY_MULTIPLE
        config = TransformerConfig(
            num_layers=hf.num_hidden_layers,
            hidden_size=hf.hidden_size,
            num_attention_heads=hf.num_attention_heads,
            num_query_groups=hf.num_key_value_heads,
            kv_channels=hf.head_dim,
            ffn_hidden_size=hf.intermediate_size,
            normalization="RMSNorm",
            layernorm_epsilon=hf.rms_norm_eps,
            qk_layernorm=hf.model_type == "qwen3",
            gated_linear_unit=True,
            activation_func=torch.nn.functional.silu,
            add_bias_linear=False,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            use_cpu_initialization=True,
            tensor_model_parallel_size=TP,
            bf16=True,
            params_dtype=torch.bfloat16,
            pipeline_dtype=torch.bfloat16,
        )
        spec = get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization="RMSNorm")
        return GPTModel(
            config,
            spec,
            vocab_size=per_rank * TP,
            max_sequence_length=hf.max_position_embeddings,
            share_embeddings_and_output_weights=hf.tie_word_embeddings,
            position_embedding_type="rope",
            rotary_base=hf.rope_parameters["rope_theta"],
        ).to(torch.bfloat16)

    def source(self) -> Any:
        return example(self.model, self.folder, self.rank)

    def fill(self, version: int) -> None:
        with torch.no_grad():
            for name, one in self.model.named_parameters():
                is_divided = getattr(one, "tensor_model_parallel", False)
                text = f"{version} {name} {self.rank if is_divided else 0}"
                generator = torch.Generator().manual_seed(zlib.crc32(text.encode()))
                values = torch.randn(one.shape, generator=generator)
                one.copy_(1 + values / 4 if one.ndim == 1 else values * one.shape[-1] ** -0.5)

    def shards(self, version: int) -> dict[str, torch.Tensor]:
        """Return the parameters of this rank."""
        self.fill(version)
        return {name: one.detach().clone() for name, one in self.model.named_parameters()}

    def chances(self, prompts: list[list[int]], version: int) -> list[dict[int, float]]:
        """Return the likeliest next tokens of each prompt, with their log probabilities."""
        self.fill(version)
        found = []
        for prompt in prompts:
            tokens = torch.tensor([prompt])
            count = tokens.shape[1]
            later = torch.ones(1, 1, count, count).triu(1).bool()
            # It puts its rotary embedding there, also if the model is on the host.
            device = mock.patch.object(torch.cuda, "current_device", lambda: "cpu")
            with torch.no_grad(), device:
                mine = self.model(tokens, torch.arange(count)[None], later)[0, -1].contiguous()
            both = [torch.empty_like(mine) for _ in range(TP)]
            dist.all_gather(both, mine)
            vocabulary = AutoConfig.from_pretrained(self.folder).vocab_size
            logs = torch.cat(both)[:vocabulary].float().log_softmax(-1).topk(5)
            found.append(dict(zip(logs.indices.tolist(), logs.values.tolist(), strict=True)))
        return found


def save_checkpoint(folder: Path, shards: list[dict[str, torch.Tensor]], at: Path) -> None:
    """Write a folder for vLLM with the parameters that the ranks have.

    The conversion is written out here, apart from the rules of the library.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    config, state = model.config, {}

    def rows(name: str) -> torch.Tensor:
        return torch.cat([one[name] for one in shards])

    state["model.embed_tokens.weight"] = rows("embedding.word_embeddings.weight")
    if not config.tie_word_embeddings:
        state["lm_head.weight"] = rows("output_layer.weight")
    state = {name: one[: config.vocab_size] for name, one in state.items()}
    state["model.norm.weight"] = shards[0]["decoder.final_layernorm.weight"]
    for layer in range(config.num_hidden_layers):
        core, hf = f"decoder.layers.{layer}.", f"model.layers.{layer}."
        for theirs, name in (
            ("input_layernorm", "input_layernorm"),
            ("pre_mlp_layernorm", "post_attention_layernorm"),
            ("self_attention.q_layernorm", "self_attn.q_norm"),
            ("self_attention.k_layernorm", "self_attn.k_norm"),
        ):
            if f"{core}{theirs}.weight" in shards[0]:
                state[f"{hf}{name}.weight"] = shards[0][f"{core}{theirs}.weight"]
        # Each group has its queries, a key and a value.
        groups, heads = config.num_key_value_heads, config.num_attention_heads
        each = heads // groups
        fused = rows(f"{core}self_attention.linear_qkv.weight")
        fused = fused.view(groups, each + 2, config.head_dim, config.hidden_size)
        for name, part in (
            ("q", fused[:, :each]),
            ("k", fused[:, each : each + 1]),
            ("v", fused[:, each + 1 :]),
        ):
            state[f"{hf}self_attn.{name}_proj.weight"] = part.reshape(-1, config.hidden_size)
        for theirs, name in (
            ("self_attention.linear_proj", "self_attn.o_proj"),
            ("mlp.linear_fc2", "mlp.down_proj"),
        ):
            parts = [one[f"{core}{theirs}.weight"] for one in shards]
            state[f"{hf}{name}.weight"] = torch.cat(parts, 1)
        gate_up = [one[f"{core}mlp.linear_fc1.weight"].chunk(2) for one in shards]
        for place, name in enumerate(("gate", "up")):
            whole = torch.cat([one[place] for one in gate_up])
            state[f"{hf}mlp.{name}_proj.weight"] = whole
    missing = model.load_state_dict(state, strict=False)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    assert set(missing.missing_keys) <= tied and not missing.unexpected_keys, missing
    model.save_pretrained(at)
