"""Public classes, functions and methods have docstrings and types, and are in the reference."""

from __future__ import annotations

import ast
import html
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import unittest
from collections.abc import Iterator
from pathlib import Path

import banyan

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(os.environ["BANYAN_BUILD"]).resolve() / "python/banyan"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def members(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Function | ast.ClassDef]]:
    """Return the public classes, functions and methods, with their names."""
    for node in body:
        if not isinstance(node, Function | ast.ClassDef):
            continue
        if node.name.startswith("_") and node.name != "__init__":
            continue
        yield f"{prefix}.{node.name}", node
        if isinstance(node, ast.ClassDef):
            yield from members(node.body, f"{prefix}.{node.name}")


def problems_of(name: str, node: Function | ast.ClassDef) -> Iterator[str]:
    """Return what the docstring and the types of one of them lack."""
    has_arguments = isinstance(node, Function) and len(node.args.args + node.args.kwonlyargs) > 1
    if not ast.get_docstring(node) and (not name.endswith(".__init__") or has_arguments):
        yield f"{name} has no docstring"
    if isinstance(node, ast.ClassDef):
        return
    if node.returns is None:
        yield f"{name} has no type of its result"
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    every += [argument for argument in (node.args.vararg, node.args.kwarg) if argument]
    for argument in every:
        if argument.annotation is None and argument.arg not in ("self", "cls"):
            yield f"{name} has no type of {argument.arg}"


def setters(node: Function | ast.ClassDef) -> bool:
    """Return True for a property's setter, whose property has the docstring."""
    return any(
        isinstance(d, ast.Attribute) and d.attr == "setter" for d in node.decorator_list
    )  # fmt: skip


class ReferenceTest(unittest.TestCase):
    def test_public_members_have_docstrings_and_types(self) -> None:
        problems: list[str] = []
        count = 0
        files = [PACKAGE / "_core.pyi", *sorted((ROOT / "python/banyan").rglob("*.py"))]
        for path in files:
            for name, node in members(ast.parse(path.read_text()).body, path.stem):
                count += 1
                if not setters(node):
                    problems += problems_of(name, node)
        self.assertEqual(problems, [])
        self.assertGreater(count, 500)

    def test_what_is_missing_is_found(self) -> None:
        source = """if True:
            class A:
                "A docstring."
                def __init__(self, a: int) -> None: ...
                def f(self, b): ...
        """
        body = ast.parse(textwrap.dedent(source)).body[0]
        assert isinstance(body, ast.If)
        found = [
            problem for name, node in members(body.body, "m") for problem in problems_of(name, node)
        ]
        self.assertEqual(
            found,
            [
                "m.A.__init__ has no docstring",
                "m.A.f has no docstring",
                "m.A.f has no type of its result",
                "m.A.f has no type of b",
            ],
        )

    def test_the_reference_has_every_public_name(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            script = ROOT / "scripts/python-reference"
            done = subprocess.run(
                [sys.executable, script, PACKAGE, folder],
                cwd=PACKAGE.parent,
                capture_output=True,
                text=True,
            )
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
            page = (Path(folder) / "banyan.html").read_text()
            for name in banyan.__all__:
                self.assertIn(f'id="{name}"', page)
            text = html.unescape(re.sub("<[^>]*>", "", page))
            self.assertRegex(
                text,
                r"all_reduce\(\s*self,\s*input: TensorLike,\s*output: TensorLike \| None = None,\s*"
                r"\*,\s*op: ReduceOp = 'sum',\s*factor: float \| None = None,\s*"
                r"stream: StreamLike = None\) -> Any:\s+Reduce",
            )
            self.assertRegex(text, r"class\s+TensorLike:\s+A tensor: an object with DLPack")
            language = (Path(folder) / "banyan/language.html").read_text()
            self.assertIn('id="CollectiveProgram.simulate"', language)
            if importlib.util.find_spec("torch") is not None:
                self.assertIn('id="reshard"', (Path(folder) / "banyan/torch.html").read_text())


if __name__ == "__main__":
    unittest.main()
