"""The command line of Banyan, from Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._errors import Error, Invalid, NotFound

if TYPE_CHECKING:
    from . import Plan, Topology
    from ._types import PathLike


def _executable() -> str:
    """Return the path of the command: the package's own, that of a build folder, or PATH's."""
    package = Path(__file__).parent
    folders = [package, Path(os.path.abspath(package)).parents[1] / "bin"]
    build = os.environ.get("BANYAN_BUILD")
    if build:
        folders.append(Path(build) / "bin")
    for folder in folders:
        path = folder / "banyan"
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    found = shutil.which("banyan")
    if found is None:
        raise NotFound(f"the command banyan is neither in {package} nor in PATH")
    return found


def _environment() -> dict[str, str]:
    """Return the variables of a command: those of this process, with its Python."""
    return {"BANYAN_PYTHON": sys.executable, **os.environ}


def _run(arguments: tuple[str, ...], input: str | bytes | None) -> tuple[int, bytes, str]:
    data = input.encode() if isinstance(input, str) else input
    done = subprocess.run(
        [_executable(), *arguments],
        input=data,
        stdin=subprocess.DEVNULL if data is None else None,
        capture_output=True,
        env=_environment(),
    )
    return done.returncode, done.stdout, done.stderr.decode(errors="replace").strip()


def command(*arguments: PathLike | int, input: str | bytes | None = None) -> str:
    """Run a command of the command line, for example ``command("topo", "probe")``.

    ``input``: its standard input. Return what it prints. Raise banyan.Error with its messages if
    it fails.
    """
    words = tuple(str(a) if isinstance(a, int) else os.fsdecode(a) for a in arguments)
    code, out, errors = _run(words, input)
    if code != 0:
        raise Error(errors or out.decode(errors="replace") or f"exit code {code}")
    return out.decode()


def test(
    plan: Plan,
    *,
    nbytes: int | tuple[int, int] = (1024, 64 << 20),
    dtype: str = "f32",
    gpu: bool = False,
    workers: int = 1,
    symmetric: bool = True,
    shuffle: int | None = None,
    trace: PathLike | None = None,
) -> dict[str, Any]:
    """Run a plan with `banyan run` (Plan.test)."""
    size = str(nbytes) if isinstance(nbytes, int) else f"{nbytes[0]}:{nbytes[1]}"
    words = ["run", "-", "--json", "--size", size, "--dtype", dtype, "--workers", str(workers)]
    words += ["--memory", "symmetric" if symmetric else "ordinary"]
    words += ["--gpu"] if gpu else []
    words += ["--shuffle", str(shuffle)] if shuffle is not None else []
    words += ["--trace", os.fsdecode(trace)] if trace is not None else []
    code, out, errors = _run(tuple(words), plan.json())
    try:
        report: dict[str, Any] = json.loads(out)
    except ValueError:
        raise Error(errors or f"banyan run: exit code {code}") from None
    if code not in (0, 1):
        raise Invalid(errors)
    return report


def probe(ranks: int | None) -> Topology:
    """Measure this machine with `banyan topo probe` (Topology.probe)."""
    from . import Topology

    words = () if ranks is None else ("--ranks", ranks)
    return Topology.parse(command("topo", "probe", *words), "this machine")
