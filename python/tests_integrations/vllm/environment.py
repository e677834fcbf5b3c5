"""The environment of these tests: settings of vLLM, and the package's entry points.

Modules of tests with an engine import it before PyTorch and vLLM. Entry points are those of
pyproject.toml, as if the package were installed. Skips where vLLM is absent.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

import tomllib

if importlib.util.find_spec("vllm") is None:
    print("skipped: vLLM is not installed (make test-vllm installs it)")
    sys.exit(77)
# OpenMP of several threads does not survive a fork.
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0|1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
#: BANYAN_TEST_DEVICE=cuda puts trainers and engines on GPUs, which they share.
DEVICE = os.environ.get("BANYAN_TEST_DEVICE", "cpu")
ROOT = Path(__file__).resolve().parents[3]
FOLDER = tempfile.mkdtemp()
os.environ.setdefault("BANYAN_LAYOUTS", f"{FOLDER}/layouts")
_owner = os.getpid()


def _clean() -> None:
    if os.getpid() == _owner:  # not a process that was forked from it
        shutil.rmtree(FOLDER, ignore_errors=True)


atexit.register(_clean)
_points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
_info = Path(FOLDER) / "banyan-0.dist-info"
_info.mkdir()
(_info / "METADATA").write_text("Metadata-Version: 2.1\nName: banyan\nVersion: 0\n")
(_info / "entry_points.txt").write_text(
    "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in _points.items()
    )
)
sys.path.insert(0, FOLDER)
os.environ["PYTHONPATH"] = f"{FOLDER}:{os.environ.get('PYTHONPATH', '')}"
