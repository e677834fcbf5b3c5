"""execute_reshard_plan: real plans over three services, and each way to write a tensor back."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

from groups import DEVICE, dist, run, seed, torch
from models import IS_NEWER, build, compare, fill, gloo_service, poison, values

Slices = tuple[slice, ...]
ALL = slice(None)


def plan_of(source: Any, destination: Any) -> Any:
    """Return the plan of Megatron-Core's own planner."""
    from megatron.core.resharding import planner

    name = "build_local_reshard_plan" if IS_NEWER else "build_centralized_reshard_plan"
    return getattr(planner, name)(source, destination)


def real_plans(rank: int, number: int, source: Any, destination: Any) -> None:
    from megatron.core.resharding import execution as theirs

    from banyan.integrations.megatron import BanyanCopyService
    from banyan.integrations.megatron.resharding import execute_reshard_plan

    src, dst = build(**source), build(**destination)
    fill(src, number)
    gloo, ours = gloo_service(), BanyanCopyService()
    plan = plan_of(src, dst)
    poison(dst)
    theirs.execute_reshard_plan(plan, src, dst, gloo)
    wanted = values(dst)
    for step in range(3):
        for service in (gloo, ours):
            poison(dst)
            execute_reshard_plan(plan, src, dst, service)
            compare(f"step {step}, {type(service).__name__}", dst, wanted)
    # No buffers: the service got the parameters themselves.
    assert ours.planned == (2 if DEVICE == "cuda" else 1), ours.planned
    assert not any(kept.staged for kept in ours._kept.values())
    ours.close()


def module_of(**tensors: Any) -> Any:
    module = torch.nn.Module()
    for name, tensor in tensors.items():
        parameter = tensor
        if not isinstance(tensor, torch.nn.Parameter):
            parameter = torch.nn.Parameter(tensor.to(DEVICE), requires_grad=False)
        module.register_parameter(name, parameter)
    return module


def counted(rows: int, columns: int, first: int = 0) -> torch.Tensor:
    return torch.arange(first, first + rows * columns, dtype=torch.float32).view(rows, columns)


def send(name: str, peer: int, part: Slices, task_id: int) -> Any:
    from banyan.integrations.megatron.resharding import TransferOp

    return TransferOp(name, peer, True, part, part, task_id)


def recv(name: str, peer: int, part: Slices, task_id: int) -> Any:
    from banyan.integrations.megatron.resharding import TransferOp

    return TransferOp(name, peer, False, part, part, task_id)


class Older:
    """A service with the calls of 0.16.1."""

    def __init__(self, service: Any) -> None:
        self.service, self.run = service, service.run

    def submit_send(self, src_tensor: Any, dest_rank: int) -> None:
        raise AssertionError("the plan has ids")

    submit_recv = submit_send

    def submit_send_with_id(self, task_id: int, src_tensor: Any, dest_rank: int) -> None:
        assert src_tensor.is_contiguous()
        self.service.submit_send(src_tensor, dest_rank, task_id)

    def submit_recv_with_id(self, task_id: int, dest_tensor: Any, src_rank: int) -> None:
        assert dest_tensor.is_contiguous()
        self.service.submit_recv(dest_tensor, src_rank, task_id)


def one_sided(rank: int) -> None:
    """A source, a destination and an idle rank; slices of rows and of columns."""
    from banyan.integrations.megatron import BanyanCopyService
    from banyan.integrations.megatron.resharding import ReshardPlan, execute_reshard_plan

    service = BanyanCopyService()
    rows, columns = (slice(0, 2), ALL), (slice(2, 4), slice(1, 3))
    sends = [send("a", 1, rows, 0), send("a", 1, columns, 1), send("gone", 1, rows, 2)]
    recvs = [recv("a", 0, rows, 0), recv("a", 0, columns, 1), recv("gone", 0, rows, 2)]
    for kind in (service, Older(service)):
        source = module_of(a=counted(4, 5)) if rank == 0 else None
        destination = module_of(a=torch.full((4, 5), -1.0)) if rank == 1 else None
        plan = ReshardPlan(sends if rank == 0 else [], recvs if rank == 1 else [])
        execute_reshard_plan(plan, source, destination, kind)
        if destination:
            wanted = torch.full((4, 5), -1.0)
            wanted[rows], wanted[columns] = counted(4, 5)[rows], counted(4, 5)[columns]
            assert torch.equal(destination.a, wanted), destination.a
    assert str(ReshardPlan(sends, recvs[:1])) == "ReshardPlan(sends=3, recvs=1)"


class Quantized(torch.nn.Parameter):
    """A stand-in for Transformer Engine's MXFP8 parameter, which needs a GPU."""

    def __new__(cls, data: torch.Tensor) -> Any:
        made = super().__new__(cls, data.to(DEVICE), requires_grad=False)
        made.quantized, made.dequantized = [], 0
        return made

    def quantize_(self, whole: torch.Tensor) -> None:
        self.quantized.append(whole.clone())

    def dequantize(self) -> torch.Tensor:
        self.dequantized += 1
        return self.data.bfloat16()


def quantized(rank: int) -> list[str]:
    """Slices of a quantized parameter are gathered in BF16, and quantized once."""
    from banyan.integrations.megatron import BanyanCopyService
    from banyan.integrations.megatron.resharding import ReshardPlan, execute_reshard_plan, execution

    service = BanyanCopyService()
    whole = counted(4, 6).bfloat16()
    texts = []
    # Columns of rank 0 and rank 1, in two parts each: slices that are not contiguous.
    ends = [(0, 2), (2, 3), (3, 5), (5, 6)]
    parts = [(ALL, slice(*one)) for one in ends]
    with (
        mock.patch.object(execution, "is_mxfp8tensor", lambda one: isinstance(one, Quantized)),
        mock.patch.object(execution, "dequantize_fp8_tensor", lambda one: one.dequantize()),
    ):
        for kind in (service, Older(service)):
            source = module_of(w=Quantized(counted(4, 6))) if rank < 2 else None
            destination = module_of(w=Quantized(torch.zeros(4, 6))) if rank == 2 else None
            mine = [send("w", 2, part, i) for i, part in enumerate(parts) if i // 2 == rank]
            got = [recv("w", i // 2, part, i) for i, part in enumerate(parts)]
            execute_reshard_plan(
                ReshardPlan(mine, got if rank == 2 else []), source, destination, kind
            )
            if source:
                assert source.w.dequantized == 1, source.w.dequantized
            if destination:
                assert len(destination.w.quantized) == 1
                assert torch.equal(destination.w.quantized[0], whole)
        try:
            execute_reshard_plan(
                ReshardPlan(mine[:1], got[::2] if rank == 2 else []), source, destination, service
            )
            texts.append("no error")
        except ValueError as error:
            texts.append(str(error))
        if destination:
            assert len(destination.w.quantized) == 1
    service.close()
    return texts


def transformed(rank: int) -> None:
    """The transform takes the parameters that it selects, and no others."""
    from banyan.integrations.megatron import BanyanCopyService
    from banyan.integrations.megatron.resharding import (
        ReshardPlan,
        ReshardTransform,
        execute_reshard_plan,
    )

    class Signs(ReshardTransform):
        calls: tuple[str, ...] = ()

        def should_transform(self, param_name: str) -> bool:
            return param_name == "b"

        def prepare_send(self, param_name: str, src_slice: Any, src_param: Any) -> Any:
            self.calls += ("send",)
            part = src_param[src_slice]
            return [part.abs().t(), part.sign()]  # the first is not contiguous

        def prepare_recv(self, param_name: str, dst_slice: Any) -> Any:
            self.calls += ("recv",)
            return [torch.empty(3, 2, device=DEVICE), torch.empty(2, 3, device=DEVICE)]

        def finalize_recv(self, param_name: str, dst_slice: Any, recv_buffers: Any) -> None:
            self.calls += ("finalize",)
            destination.b.data[dst_slice] = recv_buffers[0].t() * recv_buffers[1]

    service, transform = BanyanCopyService(), Signs()
    values_of_b = counted(4, 3, -6)
    source = module_of(a=counted(2, 2), b=values_of_b) if rank == 0 else None
    destination = module_of(a=torch.zeros(2, 2), b=torch.zeros(4, 3)) if rank == 1 else None
    whole, lower = (ALL, ALL), (slice(2, 4), ALL)
    sends = [send("a", 1, whole, 0), send("b", 1, lower, 1)]
    recvs = [recv("a", 0, whole, 0), recv("b", 0, lower, 1)]
    plan = ReshardPlan(sends if rank == 0 else [], recvs if rank == 1 else [])
    for _ in range(3):
        execute_reshard_plan(plan, source, destination, service, dist.group.WORLD, transform)
    assert transform.calls == (("send",) * 3 if rank == 0 else ("recv", "finalize") * 3)
    if destination:
        assert torch.equal(destination.a, counted(2, 2))
        assert torch.equal(destination.b[2:], values_of_b[2:])
        assert (destination.b[:2] == 0).all()
    service.close()


def refreshed(rank: int) -> None:
    """Modules refresh their caches after the parameters, and ranks meet if the service asks."""
    from banyan.integrations.megatron.resharding import ReshardPlan, execute_reshard_plan, execution

    events: list[str] = []

    class Cached(torch.nn.Linear):
        def refresh_cache(self) -> None:
            events.append("refresh")

    def meet(group: Any = None) -> None:
        events.append(f"barrier of {group}")

    for requires in (True, False):
        service = SimpleNamespace(
            submit_send=None, submit_recv=None, run=lambda: events.append("run")
        )
        service.submit_send = service.submit_recv = lambda tensor, rank, task_id=None: None
        service.requires_process_group_barrier = requires
        with mock.patch.object(execution.dist, "barrier", meet):
            module = torch.nn.Sequential(Cached(2, 2))
            execute_reshard_plan(ReshardPlan([], []), None, module, service, group="them")
    assert events == ["run", "barrier of them", "refresh", "run", "refresh"], events


def pairs() -> list[str]:
    """Return the errors of match_local_ops_by_task_id."""
    from banyan.integrations.megatron.resharding.copy_services.base import (
        RecvOp,
        SendOp,
        match_local_ops_by_task_id,
    )

    def match(sent: list[int | None], got: list[int | None]) -> Any:
        tensor = torch.zeros(1)
        return match_local_ops_by_task_id(
            [SendOp(one, tensor, 3) for one in sent],
            [SendOp(one, tensor, 3) if one == 9 else RecvOp(one, tensor, 3) for one in got],
            "Some",
            3,
        )

    found = match([4, 5, 9], [9, 4, 5])
    assert [(a.task_id, b.task_id) for a, b in found] == [(9, 9), (4, 4), (5, 5)]
    texts = []
    calls: list[Callable[[], object]] = [
        lambda: match([1, None], [1, 2]),
        lambda: match([1, 2], [1]),
        lambda: match([1, 1], [1, 2]),
        lambda: match(list(range(12)), list(range(20, 32))),
    ]
    for call in calls:
        try:
            call()
            texts.append("no error")
        except RuntimeError as error:
            texts.append(str(error))
    return texts


class Execution(unittest.TestCase):
    def test_real_plans(self) -> None:
        for source, destination in (
            ({"tp": 2}, {"tp": 4}),
            ({"tp": 4}, {"tp": 2, "pp": 2}),
        ):
            with self.subTest(source=source, destination=destination):
                run(4, real_plans, seed(), source, destination, backend="gloo")

    def test_modules_may_be_none(self) -> None:
        run(3, one_sided, backend="gloo")

    def test_quantized_parameters_are_gathered(self) -> None:
        texts = run(3, quantized, backend="gloo")
        wanted = "parameter w: the plan receives 16 of its 24 elements"
        self.assertEqual([texts[0], texts[1]], [["no error"]] * 2)
        self.assertIn(wanted, texts[2][0])

    def test_transforms(self) -> None:
        run(2, transformed, backend="gloo")

    def test_caches_are_refreshed(self) -> None:
        run(1, refreshed, backend="gloo")

    def test_pairs(self) -> None:
        texts = pairs()
        self.assertEqual(texts[0], "Some: a transfer of rank 3 to itself requires a task_id")
        self.assertIn("unmatched local ops of rank 3: 2 sends with 2 task ids and 1 rec", texts[1])
        self.assertIn("on one side only: 2", texts[1])
        self.assertIn("unmatched local ops of rank 3: 2 sends with 1 task ids", texts[2])
        self.assertIn("missing local send of rank 3 for task ids 20, 21, ", texts[3])
        self.assertIn(", 29, ...", texts[3])


if __name__ == "__main__":
    unittest.main()
