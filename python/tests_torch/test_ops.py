"""Collectives as operators: results, gradients, torch.compile, captured graphs of operators."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from typing import Any

from groups import DEVICE, DEVICES_DIFFER, banyan, dist, run, seed, torch

bt = banyan.torch
NAMES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")


def expected(name: str, parts: list[torch.Tensor], rank: int) -> torch.Tensor:
    """Compute the result at a rank from the tensors of all ranks."""
    count, rows = len(parts), parts[0].shape[0] // len(parts)
    total = torch.stack(parts).sum(0)
    own = slice(rank * rows, (rank + 1) * rows)
    return {
        "all_reduce": lambda: total,
        "all_gather": lambda: torch.cat(parts),
        "reduce_scatter": lambda: total[own],
        "all_to_all": lambda: torch.cat([part[own] for part in parts]),
        "broadcast": lambda: parts[0],
        "send_recv": lambda: parts[(rank - 1) % count],
    }[name]()


def inputs(number: int, count: int) -> list[torch.Tensor]:
    generator = torch.Generator("cpu").manual_seed(number)
    return [
        torch.randint(-9, 10, (2 * count, 3), generator=generator, device="cpu").double().to(DEVICE)
        for _ in range(count)
    ]


def check(rank: int, count: int, number: int, call: Callable[[str], Callable[..., Any]]) -> None:
    """Compare results and gradients with those of a single process that has all tensors."""
    for name in NAMES:
        for dtype in (torch.float32, torch.float64):
            parts = [part.to(dtype).requires_grad_() for part in inputs(number, count)]
            mine = parts[rank].detach().clone().requires_grad_()
            out = call(name)(mine)
            assert torch.equal(out, expected(name, parts, rank)), name
            weights = [
                (torch.arange(out.numel()).view(out.shape) * (number % 7 + r + 1) % 5).to(dtype)
                for r in range(count)
            ]
            (out * weights[rank]).sum().backward()
            loss = sum((expected(name, parts, r) * weights[r]).sum() for r in range(count))
            assert isinstance(loss, torch.Tensor)
            loss.backward()
            wanted = parts[rank].grad
            if wanted is None:  # another rank than the root of a broadcast
                wanted = torch.zeros_like(mine)
            assert mine.grad is not None
            assert torch.equal(mine.grad, wanted), f"gradient of {name}"


def eager(rank: int, number: int) -> None:
    count = dist.get_world_size()
    check(rank, count, number, lambda name: getattr(bt, name))
    for op, reference in (("max", torch.amax), ("min", torch.amin), ("product", torch.prod)):
        parts = inputs(number, count)
        result = reference(torch.stack(parts), 0)
        assert torch.equal(bt.all_reduce(parts[rank], op), result)
        assert bt.all_reduce_(parts[rank], op) is parts[rank]
        assert torch.equal(parts[rank], result)
    parts = inputs(number, count)
    assert torch.equal(bt.all_reduce(parts[rank], "avg"), sum(parts) / count)  # type: ignore
    transposed = parts[rank].t()
    assert torch.equal(bt.all_reduce(transposed), torch.stack(parts).sum(0).t())
    scalar = bt.all_gather(torch.tensor(float(rank)))
    assert torch.equal(scalar, torch.arange(float(count)))
    half = dist.new_group([0, 2])
    if rank in (0, 2):
        assert bt.all_reduce(torch.tensor(rank + 1.0), group=half).item() == 4
    world = bt.world()
    assert bt.all_reduce(torch.tensor(rank + 1.0), group=world).item() == 10


def compiled(rank: int, number: int, backend: str) -> None:
    count = dist.get_world_size()

    def call(name: str) -> Callable[..., Any]:
        torch.compiler.reset()
        function = getattr(bt, name)
        return torch.compile(lambda x: function(x * 1), backend=backend, fullgraph=True)

    check(rank, count, number, call)
    group = dist.group.WORLD
    # Before PyTorch 2.14, compiled code does not take objects of other classes.
    world = bt.world() if DEVICES_DIFFER else group

    def several(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        bt.all_reduce_(y, group=group)  # in place, of a tensor of the graph
        return bt.all_reduce(y + 1, "max", group=world) + x

    x = torch.full((5,), rank + 1.0)
    result = torch.compile(several, backend=backend, fullgraph=True)(x)
    assert torch.equal(result, several(x)), (result, several(x))
    assert torch.equal(result, torch.full((5,), 21 + rank + 1.0))


def exported(rank: int) -> None:
    for name, arguments in {
        "all_reduce": ("sum",),
        "all_gather": (),
        "reduce_scatter": ("sum",),
        "all_to_all": (),
        "broadcast": (0,),
        "send_recv": (1,),
    }.items():
        torch.library.opcheck(
            getattr(torch.ops.banyan, name).default,
            (torch.rand(8, 3, requires_grad=True), *arguments, ""),
        )
    torch.library.opcheck(torch.ops.banyan.all_reduce_.default, (torch.rand(8, 3), "sum", ""))


def errors(rank: int) -> list[str]:
    texts = []
    wrongs: list[Callable[[], object]] = [
        lambda: bt.all_reduce(torch.ones(2), "median"),
        lambda: bt.reduce_scatter(torch.ones(7, 2)),
        lambda: bt.all_to_all(torch.ones(7, 2)),
        lambda: bt.all_reduce(torch.ones(2, requires_grad=True), "max"),
    ]
    for wrong in wrongs:
        try:
            wrong()
            texts.append("no error")
        except Exception as error:
            texts.append(f"{type(error).__name__}: {error}")
    dist.barrier()
    return texts


class Ops(unittest.TestCase):
    def test_results_and_gradients(self) -> None:
        run(4, eager, seed())

    def test_with_another_backend(self) -> None:
        run(4, eager, seed(), backend="gloo")

    def test_compiled(self) -> None:
        number = seed()
        run(4, compiled, number, "aot_eager")
        run(2, exported)

    def test_errors(self) -> None:
        for texts in run(4, errors):
            for text, part in zip(
                texts,
                (
                    "reduction 'median': it is one of sum, avg, product, min, max",
                    "reduce_scatter: 7 rows do not divide by 4 ranks",
                    "all_to_all: the 7 rows of the input do not divide by 4 ranks",
                    "all_reduce of 'max' has no gradient; detach the tensor",
                ),
                strict=True,
            ):
                self.assertIn(part, text)


if __name__ == "__main__":
    unittest.main()
