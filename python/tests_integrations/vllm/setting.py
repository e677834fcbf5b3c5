"""vLLM and the tiny models of tests/models, for tests of learned layouts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from environment import ROOT

BUILD = Path(os.environ.setdefault("BANYAN_BUILD", str(ROOT / "build")))
os.environ["VLLM_WORKER_MULTIPROCESSING_METHOD"] = "spawn"
sys.path.append(str(ROOT / "tests/models"))

import hold  # noqa: E402, F401
import oracle  # noqa: E402, F401
import torch  # noqa: E402, F401
import vllm  # noqa: E402, F401
from families import FAMILIES  # noqa: E402, F401
from tiny import write_model  # noqa: E402, F401
