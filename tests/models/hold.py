"""Hold Banyan's vLLM packing against vLLM's own loader, for tiny models of every family.

For each family, packing, tp and rank: the same parameters, of the same types and shapes, filled
from the same places of the checkpoint, in the layout as a file and in the bytes that arrive. The
digests that the ordinary tests keep must be those of what vLLM does; --update writes them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import time
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file

import data
import oracle
from banyan import Layout, LayoutFile
from families import FAMILIES, Family
from oracle import Case, Held
from places import Parameter, Shapes, differences, digests, first_numbers, ranks_of
from tiny import write_model

SIZES = [1, 2, 4]
NOISE = {"transformers_version", "dtype", "torch_dtype", "architectures", "rope_parameters"}
BANYAN = pathlib.Path(os.environ.get("BANYAN_BUILD", "build")) / "bin/banyan"
RELEASE = "vllm 0.32.0"


def banyan(*arguments: str | pathlib.Path) -> None:
    command = [BANYAN, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip() or f"banyan exited with {done.returncode}")


def tensor_list(folder: pathlib.Path) -> dict[str, dict[str, Any]]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        slices = {n: file.get_slice(n) for n in sorted(file.keys())}
        return {n: {"dtype": s.get_dtype(), "shape": s.get_shape()} for n, s in slices.items()}


def facts(folder: pathlib.Path) -> dict[str, Any]:
    """config.json without what no rule asks for."""
    config = json.loads((folder / "config.json").read_text())
    noise = NOISE | {k for k in config if k.endswith("_token_id") or config[k] is None}
    return {k: v for k, v in sorted(config.items()) if k not in noise}


def save(path: pathlib.Path, layouts: list[Layout]) -> None:
    file = LayoutFile()
    for rank, layout in enumerate(layouts):
        file.add(rank, layout)
    file.save(path)


def whole(tensors: dict[str, dict[str, Any]]) -> Layout:
    """The layout of a rank that holds the checkpoint as it is."""
    layout = Layout()
    for name, tensor in tensors.items():
        number = layout.add_tensor(name, tensor["dtype"], tensor["shape"])
        layout.add_piece(number, name, tensor["shape"])
    return layout


def wrong_layout(
    case: Case, held: list[dict[str, Parameter]], shapes: Shapes, out: pathlib.Path
) -> list[str]:
    """How Banyan's layout differs from what was learned."""
    banyan("layout", "save", "--model", case.folder, "--spec", case.spec, "-o", out)
    ours = ranks_of(json.loads(out.read_text()), shapes)
    return [
        f"rank {r}: {text}"
        for r, (theirs, own) in enumerate(zip(held, ours, strict=True))
        for text in differences(theirs, own, shapes)
    ]


def is_same(a: torch.Tensor, b: torch.Tensor, computed: bool) -> bool:
    """Bit for bit; computed values may be neighbours, for torch's exp is not rounded correctly."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if computed:
        steps = a.view(torch.int32).long() - b.view(torch.int32).long()
        return bool((steps.abs() <= 1).all())
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def wrong_bytes(case: Case, held: list[Held], route: list[str]) -> list[str]:
    """Which parameters do not arrive as vLLM's loader has them, bit for bit."""
    out = case.folder / "arrived"
    shutil.rmtree(out, ignore_errors=True)
    banyan("reshard", "--in", case.folder, "--out", out, *route)
    wrong = []
    for r, rank in enumerate(held):
        arrived = load_file(out / f"rank-{r:05}/model.safetensors")
        for name, value in rank.values.items():
            got = arrived.pop(name, torch.empty(0))
            if not is_same(got, value, name in rank.computed):
                wrong.append(f"rank {r}: the bytes of {name}")
        wrong += [f"rank {r}: {name} arrived too" for name in arrived]
    return wrong


def unfilled(shapes: Shapes, ranks: list[dict[str, Parameter]]) -> list[str]:
    """Checkpoint tensors of which nothing is used."""
    first = first_numbers(shapes)
    used = set().union(*(set(p.places) for rank in ranks for p in rank.values()))
    return [n for n in shapes if used.isdisjoint(range(first[n], first[n] + math.prod(shapes[n])))]


class Report:
    """Print the result, a line for each case."""

    def __init__(self) -> None:
        self.right = self.wrong = 0

    def add(self, what: str, problems: list[str]) -> None:
        self.right += not problems
        self.wrong += bool(problems)
        print(f"{what}: {'right' if not problems else f'{len(problems)} differences'}", flush=True)
        for problem in problems[:6]:
            print(f"    {problem}")


def attempt(what: Any, *arguments: Any) -> list[str]:
    try:
        found: list[str] = what(*arguments)
        return found
    except RuntimeError as error:
        return [str(error)]


def hold_family(name: str, family: Family, folder: pathlib.Path, report: Report) -> dict[str, Any]:
    """Hold every packing and size of a family; return what the ordinary tests keep."""
    shutil.rmtree(folder, ignore_errors=True)
    write_model(family, folder)
    tensors = tensor_list(folder)
    shapes = {n: t["shape"] for n, t in tensors.items()}
    kept: dict[str, Any] = {"release": RELEASE, "config": facts(folder), "tensors": tensors}
    kept["parameters"] = {}
    source = folder / "whole.json"
    save(source, [whole(tensors)])
    for packing in family.packings:
        sizes = [(tp, False) for tp in SIZES]
        if family.expert_parallel and packing == "vllm":
            sizes += [(tp, True) for tp in SIZES if tp > 1]
        kept["parameters"][packing] = {}
        for case in [Case(family, folder, packing, *size) for size in sizes]:
            held = [oracle.learn(case, rank) for rank in range(case.tp)]
            learned = folder / f"learned-{packing}-{case.size}.json"
            save(learned, [h.layout for h in held])
            parameters = ranks_of(json.loads(learned.read_text()), shapes)
            kept["parameters"][packing][case.size] = digests(parameters)
            what = f"{name} {packing} {case.size}"
            ours = folder / f"banyan-{packing}-{case.size}.json"
            report.add(f"{what}, layout", attempt(wrong_layout, case, parameters, shapes, ours))
            by_rules = ["--from", "tp=1", "--to", case.spec]
            report.add(f"{what}, bytes", attempt(wrong_bytes, case, held, by_rules))
            partial = ["--partial-source"] if unfilled(shapes, parameters) else []
            by_files = ["--from", str(source), "--to", str(learned), *partial]
            report.add(f"{what}, files", attempt(wrong_bytes, case, held, by_files))
    return kept


def check_kept(name: str, kept: dict[str, Any], update: bool) -> list[str]:
    path = data.DATA / f"{name}.json"
    if update:
        data.write(path, kept)
    known = json.loads(path.read_text()) if path.exists() else {}
    return [] if known == kept else [f"{path} is not what was learned: run with --update"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", default=list(FAMILIES), metavar="FAMILY")
    parser.add_argument("--update", action="store_true", help="write the digests of tests/data")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("build/models"))
    options = parser.parse_args()
    oracle.loader.start()
    report = Report()
    for name in options.families:
        began = time.monotonic()
        kept = hold_family(name, FAMILIES[name], options.folder / name, report)
        report.add(f"{name}, kept digests", check_kept(name, kept, options.update))
        print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
    print(f"{report.right} right, {report.wrong} wrong")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
