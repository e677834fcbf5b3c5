"""NeMo-RL's source. PyPI has a placeholder alone, and the source asks for Python 3.13."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

COMMIT = "7ea279abfbeb698b092856d0dab61e7cf39bc909"
ADDRESS = "https://github.com/NVIDIA-NeMo/RL"


def folder() -> str:
    """Return a checkout at the commit: NEMO_RL, or one that is fetched. Exit with 77 without it."""
    given = os.environ.get("NEMO_RL")
    if given:
        return given
    path = Path(os.environ["BANYAN_BUILD"]) / "nemo-rl"
    if not (path / "nemo_rl").is_dir():
        subprocess.run(["git", "init", "-q", str(path)], check=True)
        for words in (["fetch", "-q", "--depth=1", ADDRESS, COMMIT], ["checkout", "-q", COMMIT]):
            if subprocess.run(["git", "-C", str(path), *words]).returncode != 0:
                print(f"skipped: no NeMo-RL: set NEMO_RL to a checkout of {ADDRESS} at {COMMIT}")
                sys.exit(77)
    return str(path)
