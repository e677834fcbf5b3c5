"""Compares a learned layout with what the loader does to random values."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from .. import Box, Corrupt, Invalid
from ._loader import Checkpoint, Learned, Load, tensors_of

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
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(tensor: Tensor) -> Tensor:
    """Return the elements as integers of their size."""
    return tensor.view(_INTEGERS[tensor.element_size()])


def random_tensor(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor of random bits that follow from its name, without infinity and NaN."""
    tensor = torch.empty(shape, dtype=dtype, device="cpu")
    words = torch.empty(-(-tensor.nbytes // 8), dtype=torch.int64, device="cpu")
    words.random_(generator=torch.Generator("cpu").manual_seed(zlib.crc32(name.encode())))
    bits = words.view(_INTEGERS[tensor.element_size()])[: tensor.numel()]
    if dtype == torch.bool:
        bits &= 1
    elif dtype in _CLEARED:
        bits &= ~_CLEARED[dtype]
    return bits.view(dtype).view(shape)


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


def verify(model: nn.Module, load: Load, checkpoint: Checkpoint, learned: Learned) -> None:
    """Load random values with the model's own loader, and compare every byte with the layout.

    ``model``: initialized anew, with memory; it has random values afterwards. One tensor of the
    checkpoint exists at a time. Raise Corrupt, with the names of parameter and tensor, if a byte
    differs. Local.
    """
    layout = learned.layout
    names = [local.name for local in layout.tensors]
    before = tensors_of(model)
    if any(tensor.is_meta for tensor in before.values()):
        raise Invalid("verify: the model has no memory (device meta)")
    others = {name: t.clone() for name, t in before.items() if name not in names}
    for name in names:
        if name in before:  # a loader may make parameters
            _dense(before[name]).fill_(_UNTOUCHED)

    def pairs() -> Iterator[tuple[str, Tensor]]:
        for name, (dtype, shape) in checkpoint.items():
            yield name, random_tensor(name, dtype, tuple(shape))

    with torch.no_grad():
        load(pairs())
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
        dtype, shape = checkpoint[name]
        values = random_tensor(name, dtype, tuple(shape))
        for piece in (pieces[i] for i in numbers):
            source = _slice(values, piece.box)
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
