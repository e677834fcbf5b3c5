"""The models and digests that the ordinary tests keep: tests/data/models/FAMILY.json."""

from __future__ import annotations

import json
import math
import pathlib
from typing import Any

BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1}
DATA = pathlib.Path(__file__).parent.parent / "data/models"


def write(path: pathlib.Path, kept: dict[str, Any]) -> None:
    """One line for each tensor and parameter, so that a change is easy to read."""

    def lines(value: Any) -> str:
        if not isinstance(value, dict) or not value or "dtype" in value:
            return json.dumps(value)
        inner = ",\n".join(f'"{k}": {lines(v)}' for k, v in value.items())
        return "{\n" + inner + "\n}"

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(lines(kept) + "\n")


def write_folder(kept: dict[str, Any], folder: pathlib.Path) -> None:
    """The model as a folder of Hugging Face's form; its values are zeros that take no space."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(kept["config"]))
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in kept["tensors"].items():
        dtype, shape = tensor["dtype"], tensor["shape"]
        start, end = end, end + math.prod(shape) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
