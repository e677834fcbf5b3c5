"""Weights for tests of streams: their bytes follow from name, global index and version."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from groups import DEVICE, dist, torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

DTYPES = [torch.bfloat16, torch.float32, torch.float16, torch.int64, torch.uint8]
#: Name, type, shape, and placements on a mesh of the trainers (None: a whole tensor at each).
Weight = tuple[str, torch.dtype, tuple[int, ...], Sequence[Any] | None]


def value(name: str, dtype: torch.dtype, shape: Sequence[int], version: int) -> torch.Tensor:
    """Return the whole tensor of a version."""
    count = torch.Size(shape).numel() * dtype.itemsize
    start = zlib.crc32(f"{name} {version}".encode())
    numbers = torch.arange(count, dtype=torch.int64, device="cpu")
    mixed = ((numbers + start) * 2654435761 >> 11) & 255
    return mixed.to(torch.uint8).view(dtype).view(tuple(shape)).to(DEVICE)


def is_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Compare bit for bit."""
    as_bytes = [x.contiguous().flatten().view(torch.uint8) for x in (a, b)]
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(*as_bytes)


def random_weights(number: int, count: int, senders: int, sharded: bool) -> list[Weight]:
    """Return weights of random names, types and shapes: of no, few and many elements."""
    rng = random.Random(number)
    found: list[Weight] = []
    for i in range(count):
        dims = rng.randrange(0, 4)
        shape = tuple(rng.choice([0, 1, 2, 3, 5, 8, 17, 33]) for _ in range(dims))
        placements = None
        if sharded and dims and rng.random() < 0.8:
            placements = [rng.choice([Replicate(), Shard(rng.randrange(dims))])]
        found.append((f"layers.{i}.{rng.randrange(99)}", rng.choice(DTYPES), shape, placements))
    found.append(("large", torch.float32, (257, 129), [Shard(0)] if sharded else None))
    rng.shuffle(found)
    return found


def meshes(senders: int) -> Any:
    """Return the mesh of the trainers. Collective over all ranks of the default group."""
    return init_device_mesh(DEVICE, (senders,)) if senders > 1 else None


def generate(weights: Iterable[Weight], version: int, mesh: Any) -> Iterator[tuple[str, Any]]:
    """Yield this trainer's weights."""
    for name, dtype, shape, placements in weights:
        whole = value(name, dtype, shape, version)
        if placements is None or mesh is None:
            yield name, whole
            continue
        rank, size = mesh.get_local_rank(), mesh.size()
        local = whole
        if isinstance(placements[0], Shard):
            dim = placements[0].dim
            parts = list(torch.chunk(whole, size, dim)) if whole.shape[dim] else []
            empty = whole.narrow(dim, 0, 0)
            local = (parts[rank] if rank < len(parts) else empty).contiguous()
        yield (
            name,
            DTensor.from_local(
                local,
                mesh,
                placements,
                run_check=False,
                shape=whole.shape,
                stride=whole.stride(),
            ),
        )


def require_equal(got: Iterable[tuple[str, Any]], weights: list[Weight], version: int) -> None:
    """Raise unless these are the copies of a version's weights, in their order."""
    found = list(got)
    assert [name for name, _ in found] == [one[0] for one in weights], [n for n, _ in found]
    for (name, tensor), (_, dtype, shape, _) in zip(found, weights, strict=True):
        assert is_equal(tensor, value(name, dtype, shape, version)), f"{name} of version {version}"


def gathered(mine: Any) -> list[Any]:
    """Return the objects of all ranks, as the framework's driver collects them."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


def message_of(call: Callable[[], Any], kind: type[BaseException]) -> str:
    """Return the message of the exception that a call raises."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} was raised")
