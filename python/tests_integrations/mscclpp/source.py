"""MSCCL++'s sources: a checkout that BANYAN_MSCCLPP names, or files that are downloaded."""

from __future__ import annotations

import os
import sys
import urllib.request
from pathlib import Path

COMMIT = "1f5f065d7b13ab02df32c22568f38785d1eeec01"
ADDRESS = f"https://raw.githubusercontent.com/microsoft/mscclpp/{COMMIT}/"


def checkout(folder: str, names: list[str]) -> Path:
    """Return the folder that has these files; exit with 77 if they cannot be had."""
    if "BANYAN_MSCCLPP" in os.environ:
        return Path(os.environ["BANYAN_MSCCLPP"])
    try:
        for name in names:
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with urllib.request.urlopen(ADDRESS + name, timeout=20) as answer:
                path.write_bytes(answer.read())
    except OSError as error:
        print(f"skipped: MSCCL++'s sources are not there (set BANYAN_MSCCLPP): {error}")
        sys.exit(77)
    return Path(folder)
