"""Stands in for SGLang's kernels, whose build for CPUs is not on PyPI.

SGLang's engine imports names of this package before it knows whether it uses them. Each name is a
function that raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} has no build for CPUs on PyPI")

    return absent
