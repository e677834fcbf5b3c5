"""Megatron-Core's NVSHMEM copy service on ours, with one import changed; and its parts."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar
from unittest import mock

from groups import DEVICE, banyan, dist, run, seed, torch
from models import build, compare, fill, gloo_service, poison, values

#: Bytes of a slot here; the default is 256 MiB.
SLOT = 12000


def small_segments(stack: ExitStack) -> None:
    """Let Megatron-Core cut tasks into segments of SLOT bytes, and use such slots."""
    from megatron.core.resharding.nvshmem_copy_service.planning import (
        task_segmenter,
        workload_packer,
    )

    from banyan.integrations.megatron.resharding.nvshmem_copy_service import service

    for module in (task_segmenter, workload_packer):
        stack.enter_context(mock.patch.object(module, "MAX_SEGMENT_SIZE", SLOT))
    manager = service.DoubleBufferManager
    stack.enter_context(mock.patch.object(service, "DoubleBufferManager", lambda: manager(SLOT)))


def one_import(rank: int, number: int, source: Any, destination: Any) -> None:
    from megatron.core.resharding.copy_services import nvshmem_copy_service
    from megatron.core.resharding.refit import swap_model_weights

    from banyan.integrations.megatron.resharding.nvshmem_copy_service import RemoteCopyService

    gloo = gloo_service()
    with ExitStack() as stack:
        small_segments(stack)
        stack.enter_context(
            mock.patch.object(nvshmem_copy_service, "RemoteCopyService", RemoteCopyService)
        )
        service = nvshmem_copy_service.NVSHMEMCopyService()
        src, dst = build(**source), build(**destination)
        iterations = []
        pipeline = RemoteCopyService.run

        def counted(self: Any) -> None:
            iterations.append(self.num_iterations)
            pipeline(self)

        stack.enter_context(mock.patch.object(RemoteCopyService, "run", counted))
        for step in range(3):
            fill(src, number + step)
            poison(dst)
            swap_model_weights(src, dst, refit_method=gloo)
            wanted = values(dst)
            poison(dst)
            swap_model_weights(src, dst, refit_method=service)
            compare("NVSHMEMCopyService", dst, wanted)
        # Many iterations, whose peers and sizes are planned once.
        assert len(set(iterations)) == 1 and iterations[0] > 10, iterations
        executor = service._remote.pipeline_executor
        assert executor.planned == 1, executor.planned
        service._remote.finalize()
        assert service._remote.buffer_manager.send_slots == [None, None]


def numbered(size: int, first: int) -> torch.Tensor:
    return (torch.arange(size, device=DEVICE) + first).to(torch.uint8)


def direct(rank: int) -> list[str]:
    """Requests of our own, also to the rank itself, over several runs of one schedule."""
    from banyan.integrations.megatron.resharding.nvshmem_copy_service import RemoteCopyService

    count = dist.get_world_size()
    texts = []
    with ExitStack() as stack:
        small_segments(stack)
        service = RemoteCopyService()
        try:
            service.schedule()
        except RuntimeError as error:
            texts.append(str(error))
        service.init()
        assert (service.my_pe, service.n_pes, service.initialized) == (rank, count, True)
        try:
            service.run()
        except RuntimeError as error:
            texts.append(str(error))
        size = 3 * SLOT + 77
        sends = [numbered(size + 9, 0) for _ in range(count)]
        recvs = [numbered(size + 5, 0) for _ in range(count)]
        for peer in range(count):
            service.register_send(rank * count + peer, sends[peer], 9, size, peer)
            service.register_receive(peer * count + rank, recvs[peer], 3, size, peer)
        service.schedule()
        for step in range(3):
            for peer in range(count):
                sends[peer].copy_(numbered(size + 9, 50 * step + 7 * rank + peer))
                recvs[peer].fill_(255)
            service.run()
            for peer in range(count):
                wanted = numbered(size + 9, 50 * step + 7 * peer + rank)[9:]
                assert torch.equal(recvs[peer][3:-2], wanted), (step, peer)
                assert (recvs[peer][:3] == 255).all() and (recvs[peer][-2:] == 255).all()
        # A send without its receive: all ranks say so.
        service.clear_requests()
        if rank == 0:
            service.register_send(5, sends[0], 0, 16, 1)
        try:
            service.schedule()
            texts.append("no error")
        except ValueError as error:
            texts.append(str(error))
        service.clear_requests()
        if rank == 0:
            service.register_send(5, sends[0], 0, 16, 1)
        if rank == 1:
            service.register_receive(5, recvs[0], 0, 17, 0)
        try:
            service.schedule()
            texts.append("no error")
        except ValueError as error:
            texts.append(str(error))
        service.finalize()
    return texts


class Batch:
    """A ScheduledBatch, as far as the executor uses it."""

    def __init__(self, source: int, destination: int, size: int, plan: Any = None) -> None:
        self.src_pe, self.dest_pe, self.total_size, self.gpu_plan = source, destination, size, plan


def executor_alone(rank: int) -> list[str]:
    """The executor with its launcher and buffer manager, and its errors."""
    from banyan.integrations.megatron.resharding.nvshmem_copy_service import (
        DoubleBufferManager,
        GPUResourceManager,
        KernelLauncher,
        PipelineExecutor,
    )

    resources, buffers = GPUResourceManager(), DoubleBufferManager(1024)
    resources.init()
    launcher = KernelLauncher()
    executor = PipelineExecutor(launcher, buffers, rank)
    assert executor.my_pe == rank and executor.buffer_manager is buffers
    streams = [resources.get_stream(name) for name in ("pack", "unpack", "send", "copy")]
    torch_streams = [resources.get_torch_stream(name) for name in ("pack", "unpack", "copy")]
    executor.set_streams(*streams, *torch_streams)  # as 0.16.1
    assert executor.torch_copy_stream_wrapper is streams[3]
    events = resources.create_events()
    executor.set_events(*events[:2])
    texts = []

    def wrong(call: Callable[[], object]) -> None:
        try:
            call()
            texts.append("no error")
        except (ValueError, RuntimeError, banyan.Mismatch) as error:
            texts.append(f"{type(error).__name__}: {error}")

    wrong(lambda: executor.execute_pipeline([], 0))
    buffers.allocate()
    assert buffers.get_send_slot(3) is buffers.send_slots[1]
    assert buffers.get_recv_slot(2) is buffers.recv_slots[0]
    executor.execute_pipeline([], 0)

    # In iteration i, rank 0 sends to rank 1 + i % 2, whose tensor is one byte longer each time.
    sizes = [100 + i for i in range(9)]
    tensors = [numbered(size, 3 * i) for i, size in enumerate(sizes)]
    got = [numbered(size, 0) for size in sizes]
    iterations: list[dict[str, Any]] = []
    for i, size in enumerate(sizes):
        to, slot = 1 + i % 2, slice(0, size)
        pack = ([tensors[i]], [buffers.send_slots[i % 2][slot]], [size], 1)
        unpack = ([buffers.recv_slots[i % 2][slot]], [got[i]], [size], 1)
        iterations.append(
            {
                "send": Batch(0, to, size, pack) if rank == 0 else None,
                "recv": Batch(0, to, size, unpack) if rank == to else None,
            }
        )
    for first in (10, 20):
        for i, one in enumerate(tensors):
            one.copy_(numbered(sizes[i], 3 * i + first))
        executor.execute_pipeline(iterations, 9)
        for i, one in enumerate(got):
            if rank == 1 + i % 2:
                assert torch.equal(one, tensors[i]), (first, i)
    assert executor.planned == 2  # one of them without iterations

    def broken(way: str, change: Callable[[Any], None]) -> None:
        batches = [dict(one) for one in iterations[:3]]
        made = batches[1][way]
        if made is not None:
            batches[1][way] = Batch(made.src_pe, made.dest_pe, made.total_size, made.gpu_plan)
            change(batches[1][way])
        executor.execute_pipeline(batches, 3)

    wrong(lambda: broken("recv", lambda one: setattr(one, "gpu_plan", None)))
    wrong(lambda: broken("send", lambda one: setattr(one, "total_size", 1025)))
    wrong(lambda: broken("send", lambda one: setattr(one, "total_size", 90)))
    executor.execute_pipeline(iterations, 3)  # it is still usable

    # Moves of a rank to itself.
    class Request:
        def __init__(self, task_id: int, tensor: Any, position: int, size: int, pe: int) -> None:
            self.task_id, self.size = task_id, size
            self.src_tensor = self.dest_tensor = tensor
            self.src_pos = self.dest_pos = position
            self.dest_pe = self.src_pe = pe

    source, target = numbered(50, rank), numbered(50, 0)
    target.fill_(255)
    other = Request(8, source, 0, 5, (rank + 1) % 3)
    executor.process_self_moves(
        [Request(1, source, 10, 20, rank), other], [other, Request(1, target, 5, 20, rank)]
    )
    assert torch.equal(target[5:25], source[10:30]) and (target[25:] == 255).all()
    wrong(lambda: executor.process_self_moves([Request(1, source, 0, 5, rank)], []))
    wrong(
        lambda: executor.process_self_moves(
            [Request(1, source, 0, 5, rank)], [Request(1, target, 0, 6, rank)]
        )
    )
    executor.close()
    dist.barrier()
    iterations.clear()
    buffers.free()
    return texts


class Stream:
    """A stand-in for a CUDA stream: knows which work comes before the next work in it."""

    host: ClassVar[set[Any]] = set()

    def __init__(self) -> None:
        self.before: set[Any] = set()

    def do(self, work: Any, *required: Any) -> None:
        self.before |= Stream.host
        missing = [one for one in required if one in DONE and one not in self.before]
        assert not missing, f"{work} does not wait for {missing}"
        self.before.add(work)
        DONE.add(work)

    def wait_event(self, event: Event) -> None:
        self.before |= event.before

    def synchronize(self) -> None:
        Stream.host |= self.before


class Event:
    """A stand-in for a CUDA event."""

    def __init__(self) -> None:
        self.before: set[Any] = set()

    def record(self, stream: Stream) -> None:
        self.before = set(stream.before)


#: Work that was queued so far: (what, run, iteration).
DONE: set[Any] = set()


def ordered(rank: int) -> None:
    """Events order the work of the streams as the two slots require."""
    from banyan.integrations.megatron.resharding.nvshmem_copy_service import (
        DoubleBufferManager,
        PipelineExecutor,
    )

    streams, turn = [Stream() for _ in range(4)], 0

    class Launcher:
        def launch_pack(self, plan: Any, stream: Any, torch_stream: Any, event: Any) -> None:
            # The send before last was from this slot.
            i = plan[3]
            torch_stream.do(("pack", turn, i), ("send", turn, i - 2), ("send", turn - 1, 8 - i % 2))
            event.record(torch_stream)

        def launch_unpack(self, plan: Any, stream: Any, torch_stream: Any, event: Any) -> None:
            torch_stream.do(("unpack", turn, plan[3]), ("send", turn, plan[3]))
            event.record(torch_stream)

    class Move:
        def __init__(self, schedule: Any, i: int) -> None:
            self.schedule, self.i = schedule, i

        def run(self, *, stream: Stream) -> None:
            # The slot of the peer is unpacked, and this rank's slot is packed.
            i = self.i
            last = ("unpack", turn - 1, 8 - i % 2)
            stream.do(("send", turn, i), ("pack", turn, i), ("unpack", turn, i - 2), last)
            self.schedule.run()

    class Executor(PipelineExecutor):
        def _schedules(self, iterations: Any) -> Any:
            return [Move(one, i) for i, one in enumerate(super()._schedules(iterations))]

    buffers = DoubleBufferManager(64, device=torch.device("cpu"))
    buffers.allocate()
    executor = Executor(Launcher(), buffers, rank)
    executor.set_streams(*streams, *streams)
    executor.set_events(*([Event(), Event()] for _ in range(3)))
    iterations = []
    for i in range(9):  # pairs of ranks take turns
        source, target = i % 3, (i + 1 + i // 3) % 3
        batch = Batch(source, target, 10 + i, ((), (), (), i)) if source != target else None
        iterations.append(
            {
                "send": batch if source == rank else None,
                "recv": batch if target == rank else None,
            }
        )
    for number in range(3):
        turn = number
        executor.execute_pipeline(iterations, 9)
    mine = [one for one in iterations if one["send"] or one["recv"]]
    assert len([one for one in DONE if one[0] != "send"]) == 3 * len(mine) > 9
    executor.close()


class Pipeline(unittest.TestCase):
    def test_megatrons_service_with_one_import_changed(self) -> None:
        run(4, one_import, seed(), {"tp": 2}, {"tp": 4}, backend="gloo")
        run(4, one_import, seed(), {"tp": 2, "pp": 2}, {"tp": 1}, backend="gloo")

    def test_requests(self) -> None:
        for texts in run(3, direct, backend="gloo"):
            self.assertIn("schedule() before init()", texts[0])
            self.assertIn("run() before schedule()", texts[1])
            self.assertIn("receive from rank 0: no receive request for task 5", texts[2])
            self.assertIn("task 5 sends 16 bytes, but receives 17", texts[3])

    def test_events_order_the_streams(self) -> None:
        run(3, ordered, backend="gloo")

    def test_executor(self) -> None:
        for rank, texts in enumerate(run(3, executor_alone, backend="gloo")):
            self.assertIn("the slots are not allocated", texts[0])
            self.assertIn("iteration 1: the recv batch has no gpu_plan", texts[1])
            self.assertIn("iteration 1: a send batch of 1025 bytes in slots of 1024", texts[2])
            self.assertIn("Mismatch: ", texts[3])
            self.assertIn(f"unmatched local ops of rank {rank}: 1 sends", texts[4])
            self.assertIn(f"of rank {rank} with itself sends 5 bytes, but receives 6", texts[5])


if __name__ == "__main__":
    unittest.main()
