"""vLLM that computes on the host with weights as loaded. Import this before an engine is made.

vLLM packs weights once for the kernels of CPUs. Systems that load weights into a running engine, as
they do on GPUs, write to parameters that are not packed.
"""

from __future__ import annotations

import vllm._custom_ops
import vllm.model_executor.layers.utils
from environment import DEVICE

if DEVICE == "cpu":
    vllm._custom_ops._supports_onednn = False
    vllm.model_executor.layers.utils.check_cpu_sgl_kernel = lambda *_: False
