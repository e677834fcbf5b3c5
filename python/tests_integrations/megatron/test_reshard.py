"""Real models of Megatron-Core: with its own Gloo service, with ours, and without its executor."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from typing import Any

from groups import banyan, dist, run, seed, torch
from models import GroupedExperts, build, fill, poison

Layout = dict[str, int]


def swap(source: Any, destination: Any, service: Any) -> None:
    from megatron.core.resharding.refit import swap_model_weights

    swap_model_weights(source, destination, refit_method=service)


def gloo_service() -> Any:
    """Return Megatron-Core's own service. It makes a CUDA stream, which the host lacks."""
    from megatron.core.resharding.copy_services.gloo_copy_service import GlooCopyService

    stream = torch.cuda.Stream
    torch.cuda.Stream = lambda: None  # type: ignore
    try:
        return GlooCopyService()
    finally:
        torch.cuda.Stream = stream  # type: ignore


def values(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def compare(name: str, model: Any, wanted: dict[str, torch.Tensor]) -> None:
    made = values(model)
    assert made.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert not tensor.isnan().any(), f"Megatron-Core did not fill {key}"
        assert torch.equal(made[key], tensor), f"{name}: {key}"


def case(rank: int, number: int, source: Layout, destination: Layout, experts: int) -> None:
    from banyan.integrations.megatron import BanyanCopyService, banyan_reshard

    if experts:
        src, dst = (
            GroupedExperts(one.get("tp", 1), one.get("ep", 1), experts)
            for one in (source, destination)
        )
    else:
        src, dst = build(**source), build(**destination)
    gloo, ours = gloo_service(), BanyanCopyService()
    versions = []
    for step in range(3):
        fill(src, number + step)
        poison(dst)
        swap(src, dst, gloo)
        wanted = values(dst)
        poison(dst)
        swap(src, dst, ours)
        compare("BanyanCopyService", dst, wanted)
        poison(dst)
        before = [p._version for p in dst.parameters()]
        filled = banyan_reshard(src, dst)
        compare("banyan_reshard", dst, wanted)
        assert filled is not None and filled.state == "whole"
        versions.append(filled.version)
        assert all(p._version > v for p, v in zip(dst.parameters(), before, strict=True))
    assert versions == [1, 2, 3], versions
    assert ours.runs == 3
    ours.close()


def sequential_experts(rank: int, number: int) -> None:
    """Megatron-Core's own plan does not number these experts; ours does."""
    from banyan.integrations.megatron import banyan_reshard

    src, dst = build(ep=4, experts=8), build(ep=2, experts=8)
    fill(src, number)
    fill(dst, number)
    wanted = values(dst)
    poison(dst)
    banyan_reshard(src, dst, require_whole_source=True)
    compare("banyan_reshard", dst, wanted)


def kept(rank: int) -> None:
    """Equal batches at equal addresses are planned once; parts of one task are kept apart."""
    from banyan.integrations.megatron import BanyanCopyService

    count = dist.get_world_size()
    service = BanyanCopyService(dist.group.WORLD)
    sends = [torch.zeros(3 + r) for r in range(count)]
    recvs = [torch.zeros(3 + rank) for _ in range(count)]
    scales = [torch.zeros(2, dtype=torch.uint8) for _ in range(count)]
    for step in range(4):
        for peer in range(count):
            sends[peer].fill_(100 * step + 10 * rank + peer)
            recvs[peer].fill_(-1)
            service.submit_send_with_id(rank * count + peer, sends[peer], peer)
            scale = torch.full((2,), step * 16 + rank * 4 + peer, dtype=torch.uint8)
            if step < 2:  # a new tensor each time
                service.submit_send(scale, peer, rank * count + peer)
            service.submit_recv(recvs[peer], peer, task_id=peer * count + rank)
            if step < 2:
                service.submit_recv_with_id(peer * count + rank, scales[peer], peer)
        service.run()
        for peer in range(count):
            assert (recvs[peer] == 100 * step + 10 * peer + rank).all()
            if step < 2:
                assert (scales[peer] == step * 16 + peer * 4 + rank).all()
        if step == 2:
            planned = service.planned
    assert service.runs == 4 and service.planned == planned, (service.runs, service.planned)
    # Without ids, in the order of submission. This rank has nothing to receive from itself.
    for peer in range(count):
        if peer != rank:
            service.submit_send(sends[peer], peer)
            service.submit_recv(recvs[peer], peer)
    service.run()
    service.run()  # an empty batch
    service.close()


def errors(rank: int) -> list[str]:
    from banyan.integrations.megatron import BanyanCopyService, banyan_reshard

    texts = []
    service = BanyanCopyService()
    src, dst, lacking = build(tp=2), build(tp=1), build(tp=1)
    del lacking.decoder.layers[2].mlp

    def mismatch() -> None:
        if rank == 0:
            service.submit_send(torch.zeros(4), 1, 7)
        if rank == 1:
            service.submit_recv(torch.zeros(4), 0, 8)
        service.run()

    wrongs: list[Callable[[], object]] = [
        mismatch,
        lambda: banyan_reshard(torch.nn.Linear(2, 2), dst),
        lambda: banyan_reshard([src, src], dst),
        lambda: banyan_reshard(lacking, dst),
    ]
    for wrong in wrongs:
        try:
            wrong()
            texts.append("no error")
        except Exception as error:
            texts.append(f"{type(error).__name__}: {error}")
    # The world lives, and a right call works.
    assert banyan_reshard(src, dst) is not None
    return texts


class Megatron(unittest.TestCase):
    def check(self, source: Layout, destination: Layout, experts: int = 0) -> None:
        with self.subTest(source=source, destination=destination, experts=experts):
            run(4, case, seed(), source, destination, experts, backend="gloo")

    def test_dense_models(self) -> None:
        self.check({"tp": 2}, {"tp": 4})
        self.check({"tp": 4}, {"tp": 1})
        self.check({"tp": 2, "pp": 2}, {"tp": 4})

    def test_experts(self) -> None:
        self.check({"ep": 4}, {"ep": 2}, experts=8)
        self.check({"tp": 2, "ep": 2}, {"ep": 4}, experts=8)
        self.check({"ep": 1}, {"tp": 4}, experts=3)
        run(4, sequential_experts, seed(), backend="gloo")

    def test_batches_are_planned_once(self) -> None:
        run(3, kept, backend="gloo")

    def test_errors(self) -> None:
        for texts in run(4, errors, backend="gloo"):
            for text, part in zip(
                texts,
                (
                    "Mismatch: ",
                    "ValueError: Linear has no pg_collection, which tells its layout",
                    "ValueError: 2 model chunks: virtual pipeline stages are not supported",
                    "decoder.layers.2.mlp.linear_fc1.weight",
                ),
                strict=True,
            ):
                self.assertIn(part, text)


if __name__ == "__main__":
    assert banyan
    unittest.main()
