"""The sources of Megatron-LM, and Python in them.

BANYAN_MEGATRON_LM is the folder of a checkout. Without it, the commit below is downloaded.
"""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path

COMMIT = "d98e8a64ddf34856e74b24714e3bedb2f5a39553"
URL = f"https://codeload.github.com/NVIDIA/Megatron-LM/tar.gz/{COMMIT}"
HERE = Path(__file__).resolve().parent
TESTS = Path("tests/unit_tests/resharding")


def skip(reason: str) -> None:
    print(f"skipped: {reason}")
    sys.exit(77)


def checkout() -> Path:
    """Return the folder of Megatron-LM's sources. Exit with 77 if something is missing."""
    if importlib.util.find_spec("pytest") is None or importlib.util.find_spec("megatron") is None:
        skip("pytest or Megatron-Core is not installed (make test-megatron installs them)")
    given = os.environ.get("BANYAN_MEGATRON_LM")
    if given:
        return Path(given)
    folder = Path(os.environ.get("BANYAN_BUILD", tempfile.gettempdir())) / f"megatron-lm-{COMMIT}"
    if folder.exists():
        return folder
    try:
        with urllib.request.urlopen(URL, timeout=60) as answer:
            data = answer.read()
    except OSError as error:
        skip(f"cannot download {URL}: {error} (BANYAN_MEGATRON_LM names a checkout)")
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(made)
        shutil.move(str(Path(made) / f"Megatron-LM-{COMMIT}"), folder)
    return folder


def call(
    folder: Path, words: list[str], timeout: float = 600, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Python in the folder, with its Megatron-Core before the installed one."""
    paths = os.environ.get("PYTHONPATH", "").split(":")
    path = ":".join(map(os.path.abspath, (folder, HERE, *filter(None, paths))))
    environment = os.environ | {"PYTHONPATH": path, **variables}
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
