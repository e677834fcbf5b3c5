"""Compares a learned layout with what the loader does to random values."""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from .. import Box, Corrupt, Invalid, Layout
from ._loader import Checkpoint, Load, tensors_of

#: Byte of elements that the loader must leave alone.
_UNTOUCHED = 0xA5
#: Bits that are cleared so that a random element is neither infinite nor NaN, nor large.
_CLEARED = {
    torch.bfloat16: 0x4000,
    torch.float16: 0x4000,
    torch.float32: 0x40000000,
    torch.float64: 0x4000000000000000,
    torch.float8_e4m3fn: 0x40,
    torch.float8_e5m2: 0x40,
    torch.float8_e8m0fnu: 0x80,
}
#: Tensors begin at multiples of ``_ALIGNMENT`` elements, each ``_STEP`` multiples after the one
#: before, modulo ``_STARTS``. The step is odd, so 262,144 tensors begin at different places.
_ALIGNMENT, _STARTS, _STEP = 16, 1 << 22, 0x9E3779B1
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(tensor: Tensor) -> Tensor:
    """Return the elements as integers of their size."""
    return tensor.view(_INTEGERS[tensor.element_size()])


def _memory_elems(shape: Sequence[int]) -> int:
    return -(-math.prod(shape) // _ALIGNMENT) * _ALIGNMENT + _STARTS


class Values:
    """Random values for a checkpoint's tensors, without infinity and NaN.

    All tensors of a type are views of one memory, which begins elsewhere for each of them. So a
    value costs no time until it is read.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Fill the memory. Local."""
        self._specs = {name: (dtype, tuple(shape)) for name, (dtype, shape) in checkpoint.items()}
        self._starts: dict[str, int] = {}
        self._memory: dict[torch.dtype, Tensor] = {}
        largest: dict[torch.dtype, int] = {}
        for number, (name, (dtype, shape)) in enumerate(self._specs.items()):
            self._starts[name] = number * _ALIGNMENT * _STEP % _STARTS
            largest[dtype] = max(largest.get(dtype, 0), _memory_elems(shape))
        for dtype, elems in largest.items():
            self._memory[dtype] = torch.empty(elems, dtype=dtype, device="cpu")
            self._fill(dtype)

    def _fill(self, dtype: torch.dtype) -> None:
        generator = torch.Generator("cpu").manual_seed(zlib.crc32(str(dtype).encode()))
        bits = _bits(self._memory[dtype])
        bits.view(torch.uint8).view(torch.int64).random_(generator=generator)
        if dtype == torch.bool:
            bits &= 1
        elif dtype in _CLEARED:
            bits &= ~_CLEARED[dtype]

    def __getitem__(self, name: str) -> Tensor:
        """Return the values of a tensor. Do not write to them."""
        dtype, shape = self._specs[name]
        start = self._starts[name]
        return self._memory[dtype][start : start + math.prod(shape)].view(shape)

    def pairs(self) -> Iterator[tuple[str, Tensor]]:
        """Yield all tensors by name. They have their values again if the reader has written."""
        for name, (dtype, _) in self._specs.items():
            memory = self._memory[dtype]
            version = memory._version
            yield name, self[name]
            if memory._version != version:
                self._fill(dtype)


def needed_bytes(layout: Layout, checkpoint: Checkpoint) -> int:
    """Return the host memory that ``verify`` takes: the parameters, and the random values."""
    nbytes: int = layout.nbytes
    largest: dict[torch.dtype, int] = {}
    for dtype, shape in checkpoint.values():
        largest[dtype] = max(largest.get(dtype, 0), _memory_elems(shape) * dtype.itemsize)
    return nbytes + sum(largest.values())


def available_bytes() -> int:
    """Return the host memory that this process can still have: of the machine, and its cgroup."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    (available,) = (int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):  # version 2, with a limit
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        used = int((group / "memory.current").read_text()) - int(stat["inactive_file"])
        available = min(available, int((group / "memory.max").read_text()) - used)
    return max(available, 0)


def _slice(tensor: Tensor, box: Box) -> Tensor:
    """Return a box of a tensor, as a view."""
    return tensor[tuple(slice(s, s + e) for s, e in zip(box.start, box.extent, strict=True))]


def _dense(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor, as a view."""
    flat = tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
    return flat.view(torch.uint8)


def _is_equal(held: Tensor, expected: Tensor, is_computed: bool) -> bool:
    """Compare bit for bit. Computed values may be neighbours: torch rounds exp either way."""
    expected = expected.to(held.device)
    if is_computed:
        return bool(((_bits(held).long() - _bits(expected).long()).abs() <= 1).all())
    return torch.equal(_bits(held), _bits(expected))


def verify(model: nn.Module, load: Load, checkpoint: Checkpoint, layout: Layout) -> None:
    """Load random values with the model's own loader, and compare every byte with the layout.

    ``model``: initialized anew, with memory; it has random values afterwards. Besides it takes
    memory for the largest tensor of each type (``needed_bytes``). Raise Corrupt, with the names of
    parameter and tensor, if a byte differs. Local.
    """
    names = [local.name for local in layout.tensors]
    before = tensors_of(model)
    if any(tensor.is_meta for tensor in before.values()):
        raise Invalid("verify: the model has no memory (device meta)")
    others = {name: t.clone() for name, t in before.items() if name not in names}
    for name in names:
        if name in before:  # a loader may make parameters
            _dense(before[name]).fill_(_UNTOUCHED)

    values = Values(checkpoint)
    with torch.no_grad():
        load(values.pairs())
    held = tensors_of(model)
    for name, tensor in others.items():
        if name not in held or not _is_equal(held[name], tensor, False):
            raise Corrupt(f'"{name}" changed, and the layout lacks it')
    missing = [name for name in names if name not in held]
    if missing:
        raise Corrupt(f'"{missing[0]}" is in the layout, and not in the model')
    tensors = [held[name] for name in names]

    def compare(number: int, box: Box, expected: Tensor, what: str, computed: bool = False) -> None:
        if not _is_equal(_slice(tensors[number], box), expected, computed):
            raise Corrupt(f'"{names[number]}" {box} does not hold {what}, as the layout predicts')

    for number, box, fill in layout.padding:
        tensor = tensors[number]
        bits = torch.tensor(list(fill or bytes(tensor.element_size())), dtype=torch.uint8)
        value = bits.view(tensor.dtype)[0]
        compare(number, box, value.expand(box.extent), f"a constant ({value.item()})")
    for number, box in layout.left_alone:
        if names[number] not in before:
            continue
        size = tensors[number].element_size()
        bits = torch.full((size,), _UNTOUCHED, dtype=torch.uint8)
        value = bits.view(tensors[number].dtype)[0]
        compare(number, box, value.expand(box.extent), "what it held")
    by_name: dict[str, list[int]] = {}
    pieces = layout.pieces
    for i, piece in enumerate(pieces):
        by_name.setdefault(piece.name, []).append(i)
    for name, numbers in by_name.items():
        for piece in (pieces[i] for i in numbers):
            source = _slice(values[name], piece.box)
            kept = [d for d, k in enumerate(piece.dim_map) if k is not None]
            ndim = tensors[piece.tensor].ndim
            source = source.reshape([piece.box.extent[d] for d in kept])
            places = [piece.dim_map[d] for d in kept]
            for k in range(ndim):
                if k not in places:
                    source = source.unsqueeze(-1)
                    places.append(k)
            source = source.permute([places.index(k) for k in range(ndim)])
            if piece.negative_exp:
                source = -source.float().exp()
            box = Box(piece.local_start, source.shape)
            expected = source.to(tensors[piece.tensor].dtype)
            compare(piece.tensor, box, expected, f'"{name}" {piece.box}', piece.negative_exp)
