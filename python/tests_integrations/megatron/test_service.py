"""BanyanCopyService: schedules that it keeps, stages, and errors."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from typing import Any

import models  # noqa: F401  (skips without Megatron-Core)
from groups import DEVICE, dist, run, torch


def full(value: int, count: int = 300, dtype: Any = None) -> torch.Tensor:
    return torch.full((count,), value, dtype=dtype or torch.int32, device=DEVICE)


#: Tensors that nobody uses.
PADS: list[Any] = []


def exchanged() -> Any:
    return full(0), full(0), full(0, 5, torch.uint8), full(0, 5, torch.uint8)


def exchange(service: Any, rank: int, step: int, stay: dict[int, Any], moving: list[int]) -> None:
    """Send a tensor to each rank, under its task id, and one more tensor of the same task.

    Tensors of the peers in ``moving`` are freed and allocated elsewhere; the others are those of
    the last call.
    """
    count = dist.get_world_size()
    for peer in range(count):
        if peer in moving or peer not in stay:
            stay.pop(peer, None)
            PADS.append(exchanged())  # where the old ones were
            stay[peer] = exchanged()
        send, recv, small, small_recv = stay[peer]
        send.fill_(1000 * step + 10 * rank + peer)
        small.fill_(step * 16 + rank * 4 + peer)
        recv.fill_(-1)
        small_recv.fill_(255)
        service.submit_send_with_id(rank * count + peer, send, peer)
        service.submit_send(small, peer, rank * count + peer)
        service.submit_recv(recv, peer, task_id=peer * count + rank)
        service.submit_recv_with_id(peer * count + rank, small_recv, peer)
    service.run()
    for peer in range(count):
        _send, recv, _small, small_recv = stay[peer]
        assert (recv == 1000 * step + 10 * peer + rank).all(), (step, peer, recv)
        assert (small_recv == step * 16 + peer * 4 + rank).all(), (step, peer, small_recv)


#: A GPU's first batch is moved without a kept schedule, since its tensors may be freed.
FIRST = 2 if DEVICE == "cuda" else 1


def kept(rank: int) -> None:
    """Batches of tensors that stay are planned once, or twice on GPUs."""
    from banyan.integrations.megatron import BanyanCopyService

    service = BanyanCopyService(dist.group.WORLD)
    stay: dict[int, Any] = {}
    for step in range(5):
        exchange(service, rank, step, stay, [])
    assert (service.planned, service.runs) == (FIRST, 5), (service.planned, service.runs)
    # One rank's tensors are elsewhere once: all ranks plan once more, and then no more.
    exchange(service, rank, 6, stay, [1] if rank == 2 else [])
    exchange(service, rank, 7, stay, [])
    # On GPUs the kept schedule holds the old tensor, so that the batch is a new one.
    assert service.planned == (4 if DEVICE == "cuda" else 2), service.planned
    service.close()


def alternating(rank: int) -> None:
    """Two models of equal shapes take turns: two schedules, and no stages."""
    from banyan.integrations.megatron import BanyanCopyService

    service = BanyanCopyService()
    both: list[dict[int, Any]] = [{}, {}]
    for step in range(8):
        exchange(service, rank, step, both[step % 2], [])
    assert service.planned == 2 * FIRST, service.planned
    assert not any(kept.staged for kept in service._kept.values())
    service.close()


def moving(rank: int) -> None:
    """Tensors that are elsewhere in each batch get stages, after which nothing is planned."""
    from banyan.integrations.megatron import BanyanCopyService

    service = BanyanCopyService()
    stay: dict[int, Any] = {}
    for step in range(6):
        exchange(service, rank, step, stay, [0, 2])
    assert (service.planned, service.runs) == (2, 6), (service.planned, service.runs)
    # With others as well: planned once more.
    if DEVICE == "cpu":
        exchange(service, rank, 7, stay, [1])
        exchange(service, rank, 8, stay, [0, 1])
        assert service.planned == 3, service.planned
    service.close()


def freed(rank: int) -> None:
    """All buffers that were freed get stages at once, also those that are where others were."""
    from banyan.integrations.megatron import BanyanCopyService

    service = BanyanCopyService()
    held, places = [], [0] * 8
    for step in range(5):
        memory = [full(step, 4096) for _ in range(8)]  # freed below, and allocated anew
        while step in (1, 3) and memory[step].data_ptr() == places[step]:  # one is elsewhere
            held.append(memory[step])
            memory[step] = full(step, 4096)
        places = [one.data_ptr() for one in memory]
        for i, one in enumerate(memory):
            if rank == 0:
                service.submit_send(one, 1, i)
            else:
                one.fill_(-1)
                service.submit_recv(one, 0, i)
        service.run()
        assert all((one == step).all() for one in memory)
        del memory, one
    assert (service.planned, service.runs) == (2, 5), (service.planned, service.runs)
    service.close()


def kinds(rank: int) -> None:
    """Stages of tensors of other types, of no dimension, without elements and with gaps."""
    from banyan.integrations.megatron import BanyanCopyService

    service = BanyanCopyService()
    last = 0
    for step in range(4):
        source = full(7 * step + 3, 64, torch.uint8)
        while source.data_ptr() == last:
            PADS.append(source)
            source = full(7 * step + 3, 64, torch.uint8)
        last = source.data_ptr()
        made = [
            source[:8].view(torch.float8_e4m3fn),
            source[8:16].view(torch.bfloat16),
            source[16:20].view(torch.float32)[0],
            source[:0],
            source[20:60].view(8, 5).t()[1:3],
        ]
        got = [torch.zeros_like(one) for one in made]
        for i, one in enumerate(made):
            if rank == 0:
                service.submit_send(one, 1, i)
            else:
                service.submit_recv(got[i], 0, i)
        service.run()
        for one, other in zip(made, got, strict=True):
            left, right = one.contiguous(), other.contiguous()
            assert rank == 0 or bytes(left.view(-1).view(torch.uint8).tolist()) == bytes(
                right.view(-1).view(torch.uint8).tolist()
            ), (step, one, other)
        del source, made, got, one, other, left, right
    assert service.planned == 2, service.planned
    service.close()


def limited(rank: int) -> None:
    """Without memory for stages, each batch is planned, and none is wrong."""
    from banyan.integrations.megatron import BanyanCopyService

    for limit in (0, 1000):
        service = BanyanCopyService(stage_bytes=limit)
        stay: dict[int, Any] = {}
        for step in range(4):
            exchange(service, rank, step, stay, [0, 1, 2])
        assert (service.planned, service.runs) == (4, 4), (service.planned, service.runs)
        stay.clear()
        for step in range(4):  # tensors that stay need no stages
            exchange(service, rank, step, stay, [])
        assert service.planned <= 4 + 2, service.planned
        service.close()


def alike_here(rank: int) -> None:
    """Two batches that are alike on rank 0 and differ on others are not confused."""
    from banyan.integrations.megatron import BanyanCopyService

    service = BanyanCopyService()
    send, recv = full(0), full(0)
    others = [full(0, 100 * (1 + kind)) for kind in range(2)]
    for step in range(8):
        kind = step // 2 % 2
        send.fill_(step)
        others[kind].fill_(step if rank == 1 else -1)
        if rank == 0:
            service.submit_send(send, 1, 1)
        if rank == 1:
            service.submit_recv(recv, 0, 1)
            service.submit_send(others[kind], 2, 2 + kind)
        if rank == 2:
            service.submit_recv(others[kind], 1, 2 + kind)
        service.run()
        if rank == 1:
            assert (recv == step).all()
        if rank == 2:
            assert (others[kind] == step).all()
    assert service.planned == 2 * FIRST, service.planned
    service.close()


def many(rank: int) -> None:
    """More kinds of batches than are kept."""
    from banyan.integrations.megatron import BanyanCopyService, _service

    service = BanyanCopyService()
    tensors = [full(0, 8 + i) for i in range(2 * _service.MAX_KEPT)]
    for _turn in range(2):
        for i, one in enumerate(tensors):
            one.fill_(i if rank == 0 else -1)
            if rank == 0:
                service.submit_send(one, 1, i)
            if rank == 1:
                service.submit_recv(one, 0, i)
            service.run()
            assert rank != 1 or (one == i).all()
    assert len(service._kept) <= _service.MAX_KEPT
    service.close()


def unnamed(rank: int) -> None:
    """Without ids, in the order of submission. Empty batches, too."""
    from banyan.integrations.megatron import BanyanCopyService

    count = dist.get_world_size()
    service = BanyanCopyService()
    for peer in range(count):
        if peer != rank:
            service.submit_send(full(rank), peer)
    recvs = {peer: full(-1) for peer in range(count) if peer != rank}
    for peer, recv in recvs.items():
        service.submit_recv(recv, peer)
    service.run()
    for peer, recv in recvs.items():
        assert (recv == peer).all()
    service.run()
    service.close()


def errors(rank: int) -> list[str]:
    from banyan.integrations.megatron import BanyanCopyService

    service = BanyanCopyService()

    def mismatch() -> None:
        if rank == 0:
            service.submit_send(full(1), 1, 7)
        if rank == 1:
            service.submit_recv(full(1), 0, 8)
        service.run()

    def devices() -> None:
        if rank == 0:
            service.submit_send(torch.zeros(4, device="meta"), 1, 7)
        if rank == 1:
            service.submit_recv(full(0), 0, 7)
        service.run()

    def two_devices() -> None:
        if rank == 0:
            service.submit_send(full(0), 1, 7)
            service.submit_send(torch.zeros(4, device="meta"), 1, 8)
        service.run()

    texts = []
    wrongs: list[Callable[[], object]] = [mismatch, devices, two_devices]
    for wrong in wrongs:
        try:
            wrong()
            texts.append("no error")
        except Exception as error:
            texts.append(f"{type(error).__name__}: {error}")
    exchange(service, rank, 1, {}, [])  # the service is still usable
    service.close()
    return texts


class Service(unittest.TestCase):
    def test_batches_that_stay_are_planned_once(self) -> None:
        run(3, kept, backend="gloo")

    def test_models_of_equal_shapes(self) -> None:
        run(3, alternating, backend="gloo")

    def test_batches_that_move_are_staged(self) -> None:
        run(3, moving, backend="gloo")

    def test_freed_buffers_are_staged(self) -> None:
        run(2, freed, backend="gloo")

    def test_stages_of_many_types(self) -> None:
        run(2, kinds, backend="gloo")

    def test_stages_have_a_limit(self) -> None:
        run(3, limited, backend="gloo")

    def test_batches_that_are_alike_on_one_rank(self) -> None:
        run(3, alike_here, backend="gloo")

    def test_more_batches_than_are_kept(self) -> None:
        run(2, many, backend="gloo")

    def test_batches_without_ids(self) -> None:
        run(3, unnamed, backend="gloo")

    def test_errors(self) -> None:
        for texts in run(3, errors, backend="gloo"):
            self.assertIn("Mismatch: ", texts[0])
            self.assertIn("tensors of a batch are on several devices (rank 0: meta; ", texts[1])
            self.assertIn("tensors of a batch are on several devices (rank 0: ", texts[2])


if __name__ == "__main__":
    unittest.main()
