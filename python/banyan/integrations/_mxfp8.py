"""Tensors that trainers quantize themselves, since an engine would make the same bytes of them.

A worker offers its parameters in MXFP8. All ranks choose the same tensors among those that are
offered: every worker that takes a tensor offers it, and no piece cuts a block.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from .. import Layout, Mxfp8, World, reshard

#: Elements of a block, along the last dimension.
BLOCK = 32
#: Type of the elements.
ELEMENTS = "float8_e4m3fn"


class Quantizer(Protocol):
    """A worker's parameters that arrive in MXFP8."""

    @property
    def quantizable(self) -> Collection[str]:
        """Local tensors of the worker's layout that may arrive in MXFP8."""

    def quantize(self, names: Collection[str]) -> Mapping[str, Any]:
        """Let these arrive in MXFP8, and return the memory of their scales."""


def _is_whole(start: int, extent: int) -> bool:
    return start % BLOCK == 0 and extent % BLOCK == 0


def cut(source: Layout | None) -> list[str]:
    """Return the global tensors of which a trainer has pieces that cut blocks."""
    names = {
        piece.name
        for piece in (() if source is None else source.pieces)
        if not piece.shape or not _is_whole(piece.box.start[-1], piece.box.extent[-1])
    }
    return sorted(names)


def offers(
    layout: Layout | None, quantizable: Collection[str], dtypes: Mapping[str, str]
) -> list[list[str]]:
    """Return groups of global tensors that a worker can take in MXFP8, each group in whole.

    ``dtypes``: of the trainers' tensors. They are what the engine would quantize.
    """
    if layout is None or not quantizable:
        return []
    tensors = layout.tensors
    groups: dict[int, set[str]] = {
        number: set() for number, one in enumerate(tensors) if one.name in quantizable
    }
    for piece in layout.pieces:
        if piece.tensor not in groups:
            continue
        is_whole = (
            list(piece.dim_map) == [0, 1]
            and dtypes.get(piece.name) == tensors[piece.tensor].dtype
            and not piece.negative_exp
            and _is_whole(piece.box.start[1], piece.box.extent[1])
            and piece.local_start[1] % BLOCK == 0
        )
        if is_whole:
            groups[piece.tensor].add(piece.name)
        else:
            del groups[piece.tensor]
    filled = {number for number, _, _ in layout.padding} | {n for n, _ in layout.left_alone}
    return [sorted(names) for number, names in groups.items() if number not in filled]


def chosen(texts: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the global tensors that all ranks move in MXFP8, from what each rank described."""
    groups: list[set[str]] = []
    others: set[str] = set()
    for text in texts:
        offered = [set(names) for names in text["mxfp8"]]
        groups += offered
        others.update(text["cut"])
        others.update({one[0] for one in text["destination"]}.difference(*offered))
    size = -1
    while size != len(others):  # a tensor that is not chosen excludes those beside it
        size = len(others)
        for names in groups:
            if names & others:
                others |= names
    return set().union(*groups) - others


def quantized(values: Any) -> tuple[Any, Any]:
    """Return elements and scales of a matrix on the host, as bytes."""
    import torch

    shape: Sequence[int] = tuple(values.shape)
    sides = Layout(), Layout()
    for layout, dtype in zip(sides, (values.dtype, ELEMENTS), strict=True):
        layout.add_piece(layout.add_tensor("w", dtype, shape), "w", shape)
    elements = torch.empty(shape, dtype=torch.float8_e4m3fn)
    scales = torch.empty(Mxfp8.scales_shape(shape), dtype=torch.uint8)
    transform = Mxfp8()
    transform.bind_scales("w", scales)
    with World(0, 1) as world:
        reshard(
            {"w": values},
            {"w": elements},
            world,
            source_layout=sides[0],
            destination_layout=sides[1],
            transform=transform,
            progress=False,
        )
    return elements.view(torch.uint8), scales


def probe(shape: Sequence[int], dtype: Any) -> Any:
    """Return a matrix with random values of all sizes, and those at the edges of the format."""
    import torch

    generator = torch.Generator().manual_seed(1)
    count = shape[0] * shape[1]
    values = torch.randn((count // BLOCK, BLOCK), generator=generator)
    exponents = torch.randint(-24, 16, (count // BLOCK, 1), generator=generator)
    values = (values * torch.exp2(exponents.float())).to(dtype)
    kind = torch.finfo(dtype)
    top = torch.tensor(448.0, dtype=dtype)
    rows = [
        torch.zeros(BLOCK, dtype=dtype),
        torch.full((BLOCK,), -0.0, dtype=dtype),
        torch.full((BLOCK,), kind.smallest_normal, dtype=dtype),
        torch.arange(BLOCK).to(dtype) * kind.smallest_normal * kind.eps,  # subnormals
        torch.full((BLOCK,), kind.max, dtype=dtype),
        torch.linspace(-448, 448, BLOCK).to(dtype),
        torch.arange(BLOCK).to(dtype) / 16 + 1 / 32,  # between two elements
        *(torch.full((BLOCK,), float(top) * 2.0**power).to(dtype) for power in (-12, -1, 0, 3)),
        *(
            (torch.nextafter(top, torch.tensor(end, dtype=dtype)) * 2.0**power).expand(BLOCK)
            for power in (-12, 0, 3)
            for end in (0.0, kind.max)
        ),
    ]
    for number, row in enumerate(rows[: len(values)]):
        values[number] = row
    return values.view(tuple(shape))
