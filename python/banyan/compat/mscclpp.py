"""MSCCL++'s language and runtime: programs written for it run unchanged after this import.

The import registers the modules ``mscclpp.language.*``, and ``mscclpp`` itself with the names of
``banyan.integrations.mscclpp``. As a command it runs one script::

    python -m banyan.compat.mscclpp allreduce.py --num_gpus 8

``python -m banyan.compat mscclpp FOLDER``, or ``banyan compat mscclpp FOLDER``, runs all scripts of
a folder and checks their plans.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import io
import json
import os
import re
import runpy
import subprocess
import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import banyan

#: Modules of mscclpp.language, and those of banyan.language that have their names.
_MODULES = {
    "channel": "channel",
    "collectives": "collectives",
    "general": "general",
    "loop": "loop",
    "program": "program",
    "rank": "rank",
    "thread_block_group": "thread_block_group",
    "utils": "utils",
    "internal.globals": "context",
    "internal.types": "types",
}


def _lazy(name: str, ours: str, doc: str) -> types.ModuleType:
    """Return a module with the public names of one of ours, which is imported on first use."""

    def attribute(wanted: str) -> object:
        module = importlib.import_module(ours)
        if wanted not in module.__all__:
            raise AttributeError(f"module '{name}', by Banyan, has no attribute '{wanted}'")
        return getattr(module, wanted)

    made = types.ModuleType(name, doc)
    made.__getattr__ = attribute  # type: ignore[method-assign]
    return made


def register() -> None:
    """Register ``mscclpp`` and ``mscclpp.language.*``, in place of an installed package.

    Other modules of an installed package, such as ``mscclpp.default_algos``, stay importable. Its
    ``__init__``, which needs CUDA, does not run.
    """
    language = importlib.import_module("banyan.language")
    if "mscclpp" not in sys.modules:
        installed = importlib.util.find_spec("mscclpp")
        folders = installed.submodule_search_locations if installed else None
        package = _lazy(
            "mscclpp",
            "banyan.integrations.mscclpp",
            "MSCCL++'s language and runtime, by Banyan.",
        )
        package.__path__ = list(folders or [])
        sys.modules["mscclpp"] = package
        if not installed:
            sys.modules["mscclpp.utils"] = _lazy(
                "mscclpp.utils",
                "banyan.integrations.mscclpp.utils",
                "MSCCL++'s helpers, by Banyan.",
            )
    sys.modules["mscclpp"].language = language  # type: ignore[attr-defined]
    sys.modules["mscclpp.language"] = language
    internal = types.ModuleType("mscclpp.language.internal")
    internal.__path__ = []
    sys.modules["mscclpp.language.internal"] = internal
    for theirs, ours in _MODULES.items():
        module = importlib.import_module(f"banyan.language.{ours}")
        sys.modules[f"mscclpp.language.{theirs}"] = module
        if theirs.startswith("internal."):
            setattr(internal, theirs.removeprefix("internal."), module)


register()


@dataclass
class Outcome:
    """What became of a script."""

    script: Path
    plans: list[banyan.Plan]
    reports: list[banyan.CheckReport]
    error: str = ""

    @property
    def is_sound(self) -> bool:
        """True if the script made a plan, and all its plans are sound."""
        return bool(self.plans) and not self.error and all(r.is_sound for r in self.reports)

    def line(self) -> str:
        """Return the result in words."""
        if self.error:
            return f"no plan: {self.error}"
        texts = []
        for plan, report in zip(self.plans, self.reports, strict=True):
            errors = [f for f in report.findings if not f.is_warning]
            text = "sound"
            if errors:
                place = next((p for p in errors[0].places if p.file), None)
                where = f" at {Path(place.file or '').name}:{place.line}" if place else ""
                number = f"{len(errors)} findings, first " if len(errors) > 1 else ""
                text = f"not sound: {number}{errors[0].rule}{where}"
            texts.append(f"{plan.ranks} ranks, {plan.operations} operations: {text}")
        return "; ".join(texts)

    def summary(self) -> dict[str, object]:
        """Return the result for JSON."""
        return {
            "script": str(self.script),
            "error": self.error,
            "sound": self.is_sound,
            "plans": [
                {
                    "name": plan.name,
                    "ranks": plan.ranks,
                    "operations": plan.operations,
                    "check": json.loads(report.json()),
                }
                for plan, report in zip(self.plans, self.reports, strict=True)
            ],
        }


def _scripts(folder: Path) -> list[Path]:
    """Return the scripts in a folder that use the language, or the file that was named."""
    if not folder.is_dir():
        return [folder]
    pattern = re.compile(r"^\s*(?:from|import)\s+(?:mscclpp|banyan)\.language\b", re.MULTILINE)
    return [
        path
        for path in sorted(folder.rglob("*.py"))
        if pattern.search(path.read_text(encoding="utf-8", errors="replace"))
        and "__main__" not in path.parts
    ]


def _arguments(script: Path, settings: dict[str, str]) -> list[str]:
    """Return the settings that are options of the script."""
    text = script.read_text(encoding="utf-8", errors="replace")
    options = re.findall(r"""add_argument\(\s*["']--(\w+)["']""", text)
    known = {"name": script.stem, **settings}
    return [word for name in options if name in known for word in (f"--{name}", known[name])]


def _plans_of(text: str) -> Iterator[banyan.Plan]:
    """Return the plans among the lines that a script printed."""
    decoder = json.JSONDecoder()
    at = text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except ValueError:
            end = at + 1
        else:
            if isinstance(value, dict) and "gpus" in value:
                yield banyan.Plan.parse(text[at:end])
        at = text.find("{", end)


def run_script(
    script: Path, arguments: Sequence[str], nbytes: int | None, timeout: float
) -> Outcome:
    """Run a script in a process of its own and check the plans that it prints."""
    outcome = Outcome(script, [], [])
    command = [sys.executable, "-m", "banyan.compat.mscclpp", str(script), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        outcome.error = f"the script ran for more than {timeout:g} s"
        return outcome
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        outcome.error = lines[-1] if lines else f"exit code {done.returncode}"
        return outcome
    try:
        outcome.plans.extend(_plans_of(done.stdout))
        outcome.reports.extend(plan.check(nbytes) for plan in outcome.plans)
    except banyan.Error as error:
        outcome.error = str(error)
    if not outcome.plans and not outcome.error:
        outcome.error = "the script printed none"
    return outcome


def folder_command(argv: Sequence[str], prog: str = "banyan compat mscclpp") -> int:
    """Run the scripts of a folder; return 0 if every one makes a sound plan."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Run scripts that are written for MSCCL++'s language, and check the plans "
        "that they print. Exit code 0: every script makes a sound plan; 1: one does not.",
    )
    parser.add_argument("folder", type=Path, help="folder, or one script")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="OPTION=VALUE,...",
        help="options of the scripts that have them "
        "(num_gpus=4,gpus_per_node=2,tbg_size=2,tbg=2,name=SCRIPT)",
    )
    parser.add_argument("-s", "--size", type=int, help="check this message size (all classes)")
    parser.add_argument("--timeout", type=float, default=120, help="seconds of a script (120)")
    parser.add_argument("-o", "--out", type=Path, help="write the plans to this folder")
    parser.add_argument("--json", action="store_true", help="print one JSON list instead")
    given = parser.parse_args(argv)
    settings = {"num_gpus": "4", "gpus_per_node": "2", "tbg_size": "2", "tbg": "2"}
    for setting in (one for list_ in given.set for one in list_.split(",")):
        name, equals, value = setting.partition("=")
        if not equals:
            parser.error(f"--set {setting}: OPTION=VALUE,... is needed")
        settings[name] = value
    if not given.folder.exists():
        parser.error(f"{given.folder} does not exist")
    outcomes = []
    for script in _scripts(given.folder):
        outcome = run_script(script, _arguments(script, settings), given.size, given.timeout)
        outcomes.append(outcome)
        name = script.relative_to(given.folder) if given.folder.is_dir() else script
        if not given.json:
            print(f"{name}: {outcome.line()}", flush=True)
        if given.out and outcome.plans:
            given.out.mkdir(parents=True, exist_ok=True)
            stem = str(name.with_suffix("")).replace(os.sep, "_")
            for i, plan in enumerate(outcome.plans):
                plan.write(given.out / f"{stem}{f'_{i}' if i else ''}.json")
    if given.json:
        print(json.dumps([outcome.summary() for outcome in outcomes], indent=2))
    elif outcomes:
        made = sum(1 for outcome in outcomes if outcome.plans)
        sound = sum(1 for outcome in outcomes if outcome.is_sound)
        print(f"{len(outcomes)} scripts: {made} make a plan, {sound} a sound one")
    else:
        print(f"{given.folder} has no script that uses mscclpp.language", file=sys.stderr)
    return 0 if outcomes and all(outcome.is_sound for outcome in outcomes) else 1


def main(argv: Sequence[str]) -> int:
    """Run a script with the language registered."""
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: python -m banyan.compat.mscclpp SCRIPT.py [arguments of the script]")
        return 0 if argv else 2
    sys.argv = list(argv)
    sys.path.insert(0, str(Path(argv[0]).resolve().parent))
    runpy.run_path(argv[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    # The output of a script is read by others: flush it before an exception's trace.
    out = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", write_through=True)
    with contextlib.redirect_stdout(out):
        code = main(sys.argv[1:])
    sys.exit(code)
