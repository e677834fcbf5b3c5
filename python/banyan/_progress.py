"""Progress bars of long work: on a terminal and in notebooks, and nothing elsewhere.

The extension asks `begin` for a bar where a call's ``progress`` is True, calls it as the work goes
on, and closes it at the end. In a job, rank 0 draws.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any

#: Work that takes less time shows no bar.
DELAY_SECONDS = 0.3
#: A bar is drawn again after this time.
DRAW_SECONDS = 0.1
#: Cells of a bar.
CELLS = 30
#: Variables in which launchers give a process its rank.
RANKS = ("BANYAN_RANK", "RANK", "PMIX_RANK", "SLURM_PROCID")


def _is_first_rank() -> bool:
    from . import _core

    rank = _core._first_rank()
    if rank is not None:
        return rank == 0
    return all(os.environ.get(name, "0") == "0" for name in RANKS)


def _amount(number: float, is_bytes: bool) -> str:
    """Return a number with three digits and a unit."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"] if is_bytes else ["", "k", "M", "G", "T"]
    step = 1024 if is_bytes else 1000
    while number >= step and len(units) > 1:
        number /= step
        del units[0]
    return f"{number:.3g} {units[0]}".rstrip() if number < 1000 else f"{number:.0f} {units[0]}"


def _time(seconds: float) -> str:
    """Return a time like 3.2 s, 1:05 or 2:00:07."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, whole = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole:02}" if hours else f"{minutes}:{whole:02}"


def _terminal() -> Callable[[str, bool], None] | None:
    """Return what draws a line on standard error, if that is a terminal; None: it is not."""
    stream = sys.stderr
    if stream is None or not stream.isatty():
        return None

    def draw(line: str, is_last: bool) -> None:
        stream.write("\r\033[K" if is_last else f"\r{line}\033[K")
        stream.flush()

    return draw


def _notebook() -> Callable[[str, bool], None] | None:
    """Return what draws a line below the cell of a notebook; None: this is not a notebook."""
    if "IPython" not in sys.modules:
        return None
    ipython: Any = importlib.import_module("IPython")
    if getattr(ipython.get_ipython(), "kernel", None) is None:
        return None
    handle: Any = importlib.import_module("IPython.display").DisplayHandle()
    shown = False

    def draw(line: str, is_last: bool) -> None:
        nonlocal shown
        update = handle.update if shown else handle.display
        shown = True
        update({"text/plain": line}, raw=True)

    return draw


class Bar:
    """A bar: call it with the amount that is done and the total, or with a text and a fraction."""

    def __init__(self, what: str, is_bytes: bool, draw: Callable[[str, bool], None]) -> None:
        """Draw nothing yet."""
        self.what = what
        self.is_bytes = is_bytes
        self.draw = draw
        self.began = time.monotonic()
        self.next = self.began + DELAY_SECONDS
        self.line = ""
        self.done: float = 0

    def __call__(self, done: int | str, total: float) -> None:
        """Draw, if the last time is long enough ago."""
        now = time.monotonic()
        if isinstance(done, int):
            self.done = done
        if now < self.next:
            return
        self.next = now + DRAW_SECONDS
        elapsed = now - self.began
        if isinstance(done, str):
            part, text = total, done
        else:
            part, rate = done / total if total else 1.0, done / elapsed if elapsed else 0.0
            left = _time((total - done) / rate) if rate else "?"
            text = f"{_amount(rate, self.is_bytes)}/s  {left} left"
        part = min(max(part, 0.0), 1.0)
        full = int(part * CELLS)
        bar = "#" * full + "." * (CELLS - full)
        self.line = f"{self.what:<12} [{bar}] {part * 100:3.0f} %  {text}"
        self.draw(self.line, False)

    def close(self) -> None:
        """Take the bar away from a terminal, and leave the total in a notebook."""
        if not self.line:
            return
        elapsed = time.monotonic() - self.began
        amount = f"{_amount(self.done, self.is_bytes)} in " if self.done else ""
        self.draw(f"{self.what}: {amount}{_time(elapsed)}", True)
        self.line = ""


def begin(what: str, is_bytes: bool) -> Bar | None:
    """Return a bar, or None where none is drawn: without a terminal or notebook, and on all ranks
    but rank 0.
    """
    draw = _terminal() or _notebook()
    return Bar(what, is_bytes, draw) if draw and _is_first_rank() else None
