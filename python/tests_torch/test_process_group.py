"""The backend "banyan" of torch.distributed, compared with Gloo and with results made locally."""

from __future__ import annotations

import os
import random
import signal
import unittest
import zlib
from collections.abc import Callable
from typing import Any

from groups import DEVICE, DEVICES_DIFFER, Failed, banyan, dist, run, seed, torch

Op = dist.ReduceOp
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
WHOLE = (torch.int32, torch.int64, torch.uint8, torch.int8, torch.int16)


def values(rank: int, shape: tuple[int, ...], dtype: torch.dtype, name: str) -> torch.Tensor:
    """Return the tensor of a rank that has this name: small whole numbers, exact in every type."""
    generator = torch.Generator("cpu").manual_seed(zlib.crc32(f"{name} {rank}".encode()))

    def random(low: int, high: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator, device="cpu").to(DEVICE)

    if dtype == torch.bool:
        return random(0, 2).bool()
    low = 0 if not dtype.is_signed else -5
    numbers = random(low, 6)
    if dtype.is_complex:
        return torch.complex(numbers.double(), random(low, 6).double()).to(dtype)
    return numbers.to(dtype)


def reduced(parts: list[torch.Tensor], op: Any) -> torch.Tensor:
    """Reduce in float64 or with whole numbers, as the definition says."""
    dtype = parts[0].dtype
    if dtype == torch.bool:
        stack = torch.stack(parts)
        if op in (Op.SUM, Op.MAX, Op.BOR):
            return stack.any(0)
        if op == Op.BXOR:
            return stack.sum(0) % 2 == 1
        return stack.all(0)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    stack = torch.stack(parts)
    if op in (Op.BAND, Op.BOR, Op.BXOR):
        bits = {Op.BAND: torch.bitwise_and, Op.BOR: torch.bitwise_or, Op.BXOR: torch.bitwise_xor}
        result = parts[0]
        for part in parts[1:]:
            result = bits[op](result, part)
        return result
    stack = stack.to(wide)
    if op == Op.SUM:
        return stack.sum(0).to(dtype)
    if op == Op.PRODUCT:
        return stack.prod(0).to(dtype)
    if op == Op.AVG:
        mean = stack.sum(0) / len(parts)
        return (mean if dtype.is_floating_point or dtype.is_complex else mean.trunc()).to(dtype)
    return (stack.amin(0) if op == Op.MIN else stack.amax(0)).to(dtype)


def equal(a: torch.Tensor, b: torch.Tensor, op: Any) -> bool:
    """Compare exactly, except averages: each input is rounded when it is divided."""
    if op != Op.AVG or not (a.dtype.is_floating_point or a.dtype.is_complex):
        return torch.equal(a, b)
    eps = torch.finfo(a.dtype).eps
    return torch.allclose(a, b, rtol=2 * eps, atol=8 * eps)  # values are at most 5


def ops_of(dtype: torch.dtype) -> list[Any]:
    if dtype == torch.bool:
        return [Op.SUM, Op.MIN, Op.MAX, Op.BAND, Op.BOR, Op.BXOR, Op.PRODUCT]
    if dtype.is_complex:
        return [Op.SUM, Op.AVG]  # PyTorch refuses products
    if dtype.is_floating_point:
        return [Op.SUM, Op.MIN, Op.MAX, Op.PRODUCT, Op.AVG]
    return [Op.SUM, Op.MIN, Op.MAX, Op.PRODUCT, Op.AVG, Op.BAND, Op.BOR, Op.BXOR]


def laid_out(tensor: torch.Tensor, how: str) -> torch.Tensor:
    """Return an equal tensor with another layout in memory."""
    if how == "strided" and tensor.dim() > 0:
        big = torch.full((*tensor.shape[:-1], 2 * tensor.shape[-1] + 1), 3, dtype=tensor.dtype)
        view = big[..., 1::2]
        view.copy_(tensor)
        return view
    if how == "transposed" and tensor.dim() > 1:
        return tensor.transpose(0, 1).clone(memory_format=torch.contiguous_format).transpose(0, 1)
    return tensor.clone()


def reductions(rank: int, number: int) -> None:
    count = dist.get_world_size()
    rng = random.Random(number)
    for turn, dtype in enumerate((*FLOATS, *WHOLE, torch.bool, torch.complex64, torch.complex128)):
        for op in ops_of(dtype):
            shape = tuple(rng.choice((1, 2, 3, 7)) for _ in range(rng.randrange(0, 4)))
            how = rng.choice(("dense", "strided", "transposed"))
            name = f"{number} {turn} {op}"
            parts = [values(r, shape, dtype, name) for r in range(count)]
            expected = reduced(parts, op)
            where = f"rank {rank}, {dtype}, {op}, {shape}, {how}"

            mine = laid_out(parts[rank], how)
            dist.all_reduce(mine, op)
            assert equal(mine, expected, op), f"all_reduce: {where}"

            root = rng.randrange(count)
            mine = laid_out(parts[rank], how)
            dist.reduce(mine, root, op)
            result = expected if rank == root else parts[rank]
            assert equal(mine, result, op), f"reduce: {where}"

            blocks = [values(r, (count * 3, *shape), dtype, name) for r in range(count)]
            expected = reduced(blocks, op)[rank * 3 : rank * 3 + 3]
            mine = laid_out(torch.full((3, *shape), 1).to(dtype), how)
            dist.reduce_scatter_tensor(mine, laid_out(blocks[rank], how), op)
            assert equal(mine, expected, op), f"reduce_scatter: {where}"


def premultiplied(rank: int) -> None:
    tensor = torch.full((5,), rank + 1.0)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
    assert torch.equal(tensor, torch.full((5,), 5.0))
    output = torch.zeros(2)
    source = torch.full((8,), rank + 1.0)
    dist.reduce_scatter_tensor(output, source, dist._make_nccl_premul_sum(2.0))
    assert torch.equal(output, torch.full((2,), 20.0)) and (source == rank + 1).all()


def moves(rank: int, gloo: Any, rng: random.Random, name: str) -> None:
    """Call what moves data with both backends, and compare every byte."""
    count = dist.get_world_size()
    dtype = rng.choice((*FLOATS, torch.int32, torch.int64, torch.uint8, torch.int8))
    shape = tuple(rng.choice((1, 2, 5, 33)) for _ in range(rng.randrange(1, 4)))
    how = rng.choice(("dense", "strided", "transposed"))
    root = rng.randrange(count)
    dense = values(rank, shape, dtype, name)
    mine = laid_out(dense, how)
    empty = torch.full(shape, 1).to(dtype)

    def both(
        call: Callable[[Any, list[torch.Tensor]], object], outputs: list[torch.Tensor]
    ) -> None:
        ours = [laid_out(t, how) for t in outputs]
        theirs = [t.cpu().clone() for t in outputs]
        call(None, ours)
        call(gloo, theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a.cpu(), b), (
                f"{name}: rank {rank}, {dtype}, {shape}, {how}, root {root}"
            )

    def source(group: Any) -> torch.Tensor:
        return mine if group is None else dense.cpu()

    def gather(group: Any, out: list[torch.Tensor]) -> None:
        dist.gather(source(group), out if rank == root else None, dst=root, group=group)

    def scatter(group: Any, out: list[torch.Tensor]) -> None:
        parts = [values(r, shape, dtype, name).to(out[0].device) for r in range(count)]
        dist.scatter(out[0], parts if rank == root else None, src=root, group=group)

    both(lambda g, out: dist.broadcast(out[0], root, group=g), [dense])
    both(lambda g, out: dist.all_gather(out, source(g), group=g), [empty] * count)
    both(gather, [empty] * count)
    both(scatter, [empty])
    both(
        lambda g, out: dist.all_gather_into_tensor(out[0], source(g), group=g),
        [torch.cat([empty] * count)],
    )
    whole = values(rank, (count * shape[0], *shape[1:]), dtype, name)
    both(
        lambda g, out: dist.all_to_all_single(out[0], whole.to(out[0].device), group=g),
        [torch.zeros_like(whole)],
    )
    rows = [[rng.randrange(0, 4) for _ in range(count)] for _ in range(count)]
    uneven = values(rank, (sum(rows[rank]), *shape[1:]), dtype, name)
    taken = [rows[r][rank] for r in range(count)]
    both(
        lambda g, out: dist.all_to_all_single(
            out[0], uneven.to(out[0].device), taken, rows[rank], group=g
        ),
        [torch.full((sum(taken), *shape[1:]), 1).to(dtype)],
    )


def like_gloo(rank: int, number: int) -> None:
    gloo = dist.new_group(backend="gloo")
    rng = random.Random(number)
    for turn in range(12):
        moves(rank, gloo, rng, f"{number} {turn}")


def other_types(rank: int) -> None:
    """Move elements of types that Gloo or Banyan lacks."""
    count = dist.get_world_size()
    for dtype in (torch.bool, torch.int16, torch.uint16, torch.complex128, torch.float8_e4m3fnuz):
        numbers = [torch.arange(r * 50, r * 50 + 48, dtype=torch.uint8) for r in range(count)]
        if dtype == torch.bool:
            numbers = [n % 3 // 2 for n in numbers]
        parts = [n.view(dtype).view(3, -1) for n in numbers]
        raw = [part.view(torch.uint8) for part in parts]
        mine = parts[rank].clone()
        dist.broadcast(mine, 1)
        assert torch.equal(mine.view(torch.uint8), raw[1]), dtype
        gathered = torch.empty_like(torch.cat(parts))
        dist.all_gather_into_tensor(gathered, parts[rank])
        assert torch.equal(gathered.view(torch.uint8), torch.cat(raw)), dtype
        into = [torch.empty_like(part).t() for part in parts]  # not contiguous
        dist.all_to_all(into, [parts[rank].t()] * count)
        for r in range(count):
            assert torch.equal(into[r].t().contiguous().view(torch.uint8), raw[r]), dtype


def lists(rank: int) -> None:
    count = dist.get_world_size()
    sent = [torch.full((to + 1, 2), 10.0 * rank + to) for to in range(count)]
    received = [torch.zeros(rank + 1, 2) for _ in range(count)]
    dist.all_to_all(received, sent)
    for source, tensor in enumerate(received):
        assert (tensor == 10 * source + rank).all()
    parts = [torch.zeros(r) for r in range(count)]  # as many elements as the rank's number
    dist.all_gather(parts, torch.full((rank,), float(rank)))
    for r, part in enumerate(parts):
        assert torch.equal(part, torch.full((r,), float(r)))
    sums = torch.zeros(rank + 1)
    dist.reduce_scatter(sums, [torch.full((r + 1,), float(rank)) for r in range(count)])
    assert torch.equal(sums, torch.full((rank + 1,), float(sum(range(count)))))


def objects_and_groups(rank: int) -> None:
    count = dist.get_world_size()
    gathered: list[Any] = [None] * count
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank})
    assert gathered == [{"rank": r, "text": "x" * r} for r in range(count)]
    things = ["of 2", 5] if rank == 2 else [None, None]
    dist.broadcast_object_list(things, src=2)
    assert things == ["of 2", 5]
    collected: list[Any] = [None] * count
    dist.gather_object(rank * rank, collected if rank == 1 else None, dst=1)
    assert rank != 1 or collected == [r * r for r in range(count)]

    odd = dist.new_group([3, 1])
    if rank in (1, 3):
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor, group=odd)
        assert tensor.item() == 4
        dist.destroy_process_group(odd)
    subgroup, _ = dist.new_subgroups(2)
    tensor = torch.tensor([1.0])
    work = dist.all_reduce(tensor, group=subgroup, async_op=True)
    work.wait()
    assert tensor.item() == 2
    dist.barrier()

    first = banyan.torch.world()
    assert first is banyan.torch.world() and (first.rank, first.size) == (rank, count)
    assert banyan.torch.world(subgroup).size == 2
    assert banyan.torch.world(subgroup).gather(bytes([rank])) == [
        bytes([rank // 2 * 2]),
        bytes([rank // 2 * 2 + 1]),
    ]


def functional(rank: int) -> None:
    import torch.distributed._functional_collectives as funcol

    count = dist.get_world_size()
    mesh = dist.init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("dp", "tp"))

    def step(x: torch.Tensor) -> torch.Tensor:
        total = funcol.all_reduce(x, "sum", mesh["tp"])
        rows = funcol.all_gather_tensor(total, 0, mesh["dp"])
        part = funcol.reduce_scatter_tensor(rows, "avg", 0, mesh["dp"])
        blocks = funcol.all_to_all_single(part, None, None, mesh["tp"])
        first, second = funcol.all_gather_into_tensor_coalesced([blocks, part], mesh["dp"])
        return funcol.wait_tensor(first) + 2 * funcol.wait_tensor(second)

    torch.manual_seed(rank)
    x = torch.randn(4, 6)
    eager = step(x)
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)(x)
    assert torch.equal(eager, compiled)
    whole = [torch.empty(0)] * count
    dist.all_gather_object(whole, x)
    tp = [whole[rank // 2 * 2] + whole[rank // 2 * 2 + 1] for rank in range(4)]
    # Each rank gets half of the rows of the mean of "all reduced" over dp, from both ranks of tp.
    mean = [torch.cat([tp[r % 2], tp[r % 2 + 2]]) for r in range(4)]
    mine = mean[rank][rank // 2 * 4 : rank // 2 * 4 + 4]
    blocks = torch.cat([mine[rank % 2 * 2 : rank % 2 * 2 + 2]] * 2)
    other = mean[rank][(1 - rank // 2) * 4 : (1 - rank // 2) * 4 + 4]
    other_blocks = torch.cat([other[rank % 2 * 2 : rank % 2 * 2 + 2]] * 2)
    pairs = [(blocks, mine), (other_blocks, other)]
    if rank // 2 == 1:
        pairs.reverse()
    expected = torch.cat([a for a, _ in pairs]) + 2 * torch.cat([b for _, b in pairs])
    assert torch.allclose(eager, expected, rtol=1e-6), (eager, expected)


def distributed_tensors(rank: int) -> None:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh = dist.init_device_mesh(DEVICE, (2, 2))
    torch.manual_seed(7)
    whole = torch.randn(9, 10)
    kinds = [Shard(0), Shard(1), Replicate()]
    for a in kinds:
        for b in kinds:
            tensor = distribute_tensor(whole, mesh, [a, b])
            for c in kinds:
                moved = tensor.redistribute(mesh, [b, c])
                assert torch.equal(moved.full_tensor(), whole), (a, b, c)
    partial = DTensor.from_local(torch.full((4, 4), rank + 1.0), mesh, [Partial(), Shard(0)])
    assert torch.equal(
        partial.full_tensor(), torch.cat([torch.full((4, 4), 4.0), torch.full((4, 4), 6.0)])
    )


def errors(rank: int) -> list[str]:
    texts = []
    wrongs: list[Callable[[], object]] = [
        lambda: dist.all_gather_into_tensor(torch.empty(7), torch.empty(2)),
        lambda: dist.all_to_all_single(torch.empty(7), torch.empty(7)),
        lambda: dist.all_to_all_single(torch.empty(4), torch.empty(4), [1, 1, 1, 1], [1, 1, 1, 2]),
        lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool), Op.AVG),
        lambda: dist.send(torch.empty(2), (rank + 1) % 4),
        lambda: dist.recv(torch.empty(2), (rank + 1) % 4),
    ]
    for wrong in wrongs:
        try:
            wrong()
            texts.append("no error")
        except Exception as error:
            texts.append(f"{type(error).__name__}: {error}")
    dist.barrier()
    return texts


def death(rank: int) -> str:
    dist.all_reduce(torch.ones(1))
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        for _ in range(100):
            dist.all_reduce(torch.ones(100000))
    except banyan.PeerLost as error:
        return str(error)
    return "no error"


class ProcessGroup(unittest.TestCase):
    def test_reductions_of_all_types(self) -> None:
        number = seed()
        for count in (2, 3, 4):
            run(count, reductions, number)

    @unittest.skipUnless(DEVICES_DIFFER, "needs PyTorch 2.14")
    def test_sums_of_scaled_tensors(self) -> None:
        run(4, premultiplied)

    def test_moves_equal_those_of_gloo(self) -> None:
        number = seed()
        for count in (2, 3):
            run(count, like_gloo, number)

    def test_types_that_others_lack(self) -> None:
        run(3, other_types)

    def test_lists_of_different_sizes(self) -> None:
        run(4, lists)

    def test_objects_and_subgroups(self) -> None:
        run(4, objects_and_groups)

    def test_functional_collectives(self) -> None:
        run(4, functional)

    def test_distributed_tensors(self) -> None:
        run(4, distributed_tensors)

    @unittest.skipUnless(DEVICES_DIFFER, "needs PyTorch 2.14")
    def test_a_device_can_have_another_backend(self) -> None:
        other = {"cpu": "cuda", "cuda": "cpu"}[DEVICE]
        run(2, lists, backend=f"{other}:gloo,{DEVICE}:banyan")

    def test_errors(self) -> None:
        for texts in run(4, errors):
            for text, part in zip(
                texts,
                (
                    "ValueError: all_gather: the input has 2 elements, and the output 7",
                    "ValueError: all_to_all: the 7 rows of the input do not divide by 4 ranks",
                    "ValueError: all_to_all: the input has 4 rows, and its splits are [1, 1, 1, 2]",
                    "ValueError: AVG of booleans",
                    "Unsupported: the backend banyan has no point-to-point sends",
                    "Unsupported: the backend banyan has no point-to-point receives",
                ),
                strict=True,
            ):
                self.assertIn(part, text)

    def test_a_death_is_reported(self) -> None:
        with self.assertRaises(Failed) as caught:
            run(4, death)
        self.assertIn("rank 2: the process ended", str(caught.exception))
        self.assertIn("PeerLost", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
