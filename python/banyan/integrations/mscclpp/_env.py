"""What programs ask of their surroundings."""

from __future__ import annotations

import os
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Env:
    """The variables of MSCCL++'s environment that programs read."""

    npkit_dump_dir: str = field(
        default_factory=lambda: os.environ.get("MSCCLPP_NPKIT_DUMP_DIR", "")
    )


def env() -> Env:
    """Return the environment."""
    return Env()


def is_nvls_supported() -> bool:
    """Return whether switch channels use multicast memory, which Banyan does only if asked to."""
    return os.environ.get("BANYAN_MULTICAST") == "1"
