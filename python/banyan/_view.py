"""Pictures of plans.

The command `banyan plan view` draws them. Drawing is no part of libbanyan: a page of HTML, figures
and their options would come into every process that moves tensors, for one that looks at a plan.
The command lies beside the package in every wheel, and the JSON that it reads has all that it
needs, the lines of the program included.
"""

from __future__ import annotations

import os
import tempfile
from html import escape
from typing import TYPE_CHECKING

from ._command import command

if TYPE_CHECKING:
    from . import Plan, Topology
    from ._types import PathLike

#: A notebook shows a figure of at most this many bytes, and the page beyond it.
_INLINE_BYTES = 2 << 20


class View:
    """A picture of a plan, which notebooks show. ``Plan.view`` makes it."""

    def __init__(
        self, plan: str, common: list[str], figure: list[str], topology: str | None
    ) -> None:
        """Draw the JSON text of a plan with options of `banyan plan view`."""
        self._plan = plan
        self._common = common
        self._figure = figure
        self._topology = topology

    def _draw(self, *options: str) -> str:
        words = ["plan", "view", "-", "--out", "-", *self._common, *options]
        if self._topology is None:
            return command(*words, input=self._plan)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(self._topology)
            file.flush()
            return command(*words, "--topology", file.name, input=self._plan)

    def html(self) -> str:
        """Return a page for a browser, which needs no network."""
        return self._draw()

    def svg(self) -> str:
        """Return a figure."""
        return self._draw("--svg", *self._figure)

    def save(self, path: PathLike) -> None:
        """Write the picture to a file: a figure if its name ends with .svg, else a page."""
        name = os.fsdecode(path)
        text = self.svg() if name.endswith(".svg") else self.html()
        with open(name, "w", encoding="utf-8") as file:
            file.write(text)

    def _repr_svg_(self) -> str:
        """Show the figure in a notebook."""
        return self.svg()

    def _repr_html_(self) -> str:
        """Show the figure in a notebook; a plan that is too large for it, as a page."""
        figure = self.svg()
        if len(figure) <= _INLINE_BYTES:
            return f'<div style="overflow-x: auto">{figure}</div>'
        page = escape(self.html())
        return f'<iframe style="width: 100%; height: 600px; border: 0" srcdoc="{page}"></iframe>'


def view(
    plan: Plan,
    *,
    topology: Topology | PathLike | None = None,
    nbytes: int = 1 << 20,
    trace: PathLike | None = None,
    check: bool = False,
    ranks: str | None = None,
    part: str | None = None,
    width: float | None = None,
) -> View:
    """Draw a plan (Plan.view)."""
    common: list[str] = []
    machine = None
    if topology is not None:
        from . import Topology

        if not isinstance(topology, Topology):
            topology = Topology.read(topology)
        machine = topology.json()
        common += ["--size", str(nbytes)]
    if trace is not None:
        common += ["--trace", os.fsdecode(trace)]
    if check:
        common.append("--check")
    figure: list[str] = []
    for option, value in (("--ranks", ranks), ("--part", part), ("--width", width)):
        if value is not None:
            figure += [option, str(value)]
    return View(plan.json(), common, figure, machine)
