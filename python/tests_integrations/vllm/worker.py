"""What workers of vLLM do in the tests of learned layouts (worker_extension_cls)."""

from __future__ import annotations

import json
from typing import Any

import torch

import banyan
from banyan.integrations._loader import tensors_of
from banyan.integrations.vllm import learned_layout


def described(layout: banyan.Layout) -> str:
    """A layout as text, to be compared."""
    tensors = [(t.name, t.dtype, t.shape) for t in layout.tensors]
    pieces = [(p.tensor, p.name, p.local_start, str(p.box), p.dim_map) for p in layout.pieces]
    others = [(n, str(box), fill) for n, box, fill in layout.padding]
    left = [(n, str(box)) for n, box in layout.left_alone]
    return json.dumps([tensors, pieces, others, left], default=str)


class Extension:
    vllm_config: Any
    model_runner: Any

    def learned(self, names: list[str], dtypes: list[str], shapes: list[list[int]]) -> str:
        before = {n: t.clone() for n, t in tensors_of(self.model_runner.model).items()}
        types = [getattr(torch, dtype) for dtype in dtypes]
        checkpoint = {n: (t, tuple(s)) for n, t, s in zip(names, types, shapes, strict=True)}
        layout = learned_layout(self.vllm_config, checkpoint)
        after = tensors_of(self.model_runner.model)
        assert before.keys() == after.keys()
        for name, tensor in before.items():
            assert torch.equal(tensor, after[name]), name
        return described(layout)
