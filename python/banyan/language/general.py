"""The program as JSON."""

from __future__ import annotations

from .context import get_program

__all__ = ["JSON", "get_program"]


def JSON() -> str:
    """Compile the program of the enclosing ``with`` and return its plan as JSON text."""
    return get_program().to_json()
