"""Notebooks of examples/notebooks run, and show what they say."""

from __future__ import annotations

import re
import unittest
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import nbformat
from nbclient import NotebookClient

NBFORMAT: Any = nbformat
FOLDER = Path(__file__).resolve().parents[2] / "examples/notebooks"


def run(name: str) -> list[tuple[str, str, str]]:
    """Run a notebook. Return for each cell of code its source, its text, and its picture."""
    notebook = NBFORMAT.read(FOLDER / f"{name}.ipynb", 4)
    NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(FOLDER)}}).execute()
    cells = []
    for cell in notebook.cells:
        if cell["cell_type"] != "code":
            continue
        text, picture = "", ""
        for output in cell["outputs"]:
            data = output.get("data", {})
            text += output.get("text", "") + data.get("text/plain", "")
            found = re.search("<svg.*</svg>", data.get("text/html", ""), re.DOTALL)
            picture += found[0] if found else ""
        cells.append((cell["source"], text, picture))
    return cells


class NotebooksTest(unittest.TestCase):
    def test_all_are_tested(self) -> None:
        names = {path.stem for path in FOLDER.glob("*.ipynb")}
        self.assertEqual(names, {"algorithm", "reshard"})

    def test_they_are_saved_without_outputs(self) -> None:
        for path in FOLDER.glob("*.ipynb"):
            notebook = NBFORMAT.read(path, 4)
            for cell in notebook.cells:
                self.assertFalse(cell.get("outputs") or cell.get("execution_count"), path)

    def test_algorithm(self) -> None:
        cells = run("algorithm")
        pictures = [picture for _, _, picture in cells if picture]
        self.assertEqual(len(pictures), 2)
        for picture in pictures:
            self.assertEqual(ElementTree.fromstring(picture).tag, "{http://www.w3.org/2000/svg}svg")
            self.assertIn("allgather_pairs", picture)
        texts = "\n".join(text for _, text, _ in cells)
        self.assertIn("allgather_pairs: sound, 0 findings", texts)
        self.assertRegex(texts, r"allgather_pairs: not sound, \d+ findings")
        self.assertRegex(texts, r"reuse")
        self.assertRegex(texts, r"\n[\d.]+ us for a message of 1 MiB")
        self.assertRegex(texts, r"allgather_direct +[\d.]+ us")
        self.assertEqual(texts.count(": 0 elements are wrong"), 7)

    def test_reshard(self) -> None:
        texts = "\n".join(text for _, text, _ in run("reshard"))
        self.assertIn("8 ranks; rank 0 holds 113 pieces", texts)
        self.assertIn("1,581 transfers of 1.19 GB between 16 pairs", texts)
        self.assertRegex(texts, r"0\.\d\d ms on eight H200")
        for rank in range(4):
            self.assertRegex(texts, rf"rank {rank} holds version 3: .*from rank {rank}")
        self.assertIn("model.safetensors", texts)
        self.assertIn("8 tensors are right", texts)


if __name__ == "__main__":
    unittest.main()
