"""vLLM on the host, and the tiny models of tests/models; skips where vLLM is absent."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BUILD = Path(os.environ.setdefault("BANYAN_BUILD", str(ROOT / "build")))
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ["VLLM_WORKER_MULTIPROCESSING_METHOD"] = "spawn"
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.append(str(ROOT / "tests/models"))

try:
    import torch  # noqa: F401
    import vllm  # noqa: F401
except ImportError as error:
    print(f"skipped: vLLM is not installed (make test-vllm installs it): {error}")
    sys.exit(77)

import hold  # noqa: E402, F401
import oracle  # noqa: E402, F401
from families import FAMILIES  # noqa: E402, F401
from tiny import write_model  # noqa: E402, F401
