"""The pipeline: pack, send and unpack batches over two slots in each direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from banyan import CopyService, Schedule, World
from banyan.integrations.megatron._agree import on_all
from banyan.integrations.megatron.resharding.copy_services.base import match_local_ops_by_task_id
from banyan.torch import world as world_of

from .kernel_launcher import on_stream

#: Lists of iterations whose schedules an executor keeps; the oldest makes room.
MAX_KEPT = 4


def _wait(stream: Any, event: Any) -> None:
    if stream is not None and event is not None:
        stream.wait_event(event)


def _record(event: Any, stream: Any) -> None:
    if event is not None:
        event.record(stream)


class PipelineExecutor:
    """Runs iterations in which a rank sends at most one batch and receives at most one.

    Slots move by Banyan's copy service, from rank to rank: an iteration waits for its own peers,
    and there is no barrier. On GPUs all work of an execution is queued in the streams at once, so
    that packing, sending and unpacking overlap. Without streams it runs on the host.
    """

    def __init__(self, kernel_launcher: Any, buffer_manager: Any, my_pe: int) -> None:
        """Keep the parts. ``my_pe``: this rank.

        ``kernel_launcher``: has ``launch_pack`` and ``launch_unpack``. ``buffer_manager``: has the
        two ``send_slots`` and ``recv_slots``, and may have the ``world`` of the ranks, by default
        that of the default group.
        """
        self.kernel_launcher, self.buffer_manager, self.my_pe = (
            kernel_launcher,
            buffer_manager,
            my_pe,
        )
        self.set_streams(None, None, None, None, None, None, None, None)
        self.set_events([None, None], [None, None], [None, None])
        self._service: CopyService | None = None
        self._kept: dict[Any, tuple[int, list[Schedule]]] = {}
        #: Lists of iterations that were planned.
        self.planned = 0

    def set_streams(
        self,
        pack_stream: Any,
        unpack_stream: Any,
        send_stream: Any,
        copy_stream: Any,
        torch_pack_stream_wrapper: Any,
        torch_unpack_stream_wrapper: Any,
        torch_send_stream_wrapper: Any,
        *last: Any,
        torch_copy_stream_wrapper: Any = None,
    ) -> None:
        """Set the streams: four of the launcher's library, then the same as PyTorch's.

        Megatron-Core 0.16.1 has no ``torch_send_stream_wrapper`` and passes seven streams; then
        ``send_stream`` is wrapped. None for all: the host.
        """
        if last:
            (torch_copy_stream_wrapper,) = last
        elif torch_copy_stream_wrapper is None and torch_send_stream_wrapper is not None:
            torch_copy_stream_wrapper = torch_send_stream_wrapper
            torch_send_stream_wrapper = send_stream
            if not isinstance(send_stream, torch.cuda.Stream):
                cuda: Any = torch.cuda
                torch_send_stream_wrapper = cuda.ExternalStream(send_stream.__cuda_stream__()[1])
        self.pack_stream, self.unpack_stream = pack_stream, unpack_stream
        self.send_stream, self.copy_stream = send_stream, copy_stream
        self.torch_pack_stream_wrapper = torch_pack_stream_wrapper
        self.torch_unpack_stream_wrapper = torch_unpack_stream_wrapper
        self.torch_send_stream_wrapper = torch_send_stream_wrapper
        self.torch_copy_stream_wrapper = torch_copy_stream_wrapper
        # The names of 0.16.1.
        self.torch_pack_stream = torch_pack_stream_wrapper
        self.torch_unpack_stream = torch_unpack_stream_wrapper
        self.torch_copy_stream = torch_copy_stream_wrapper

    def set_events(
        self,
        pack_events: Sequence[Any],
        unpack_events: Sequence[Any],
        barrier_events: Sequence[Any] | None = None,
    ) -> None:
        """Set two events for each kind of work.

        Megatron-Core 0.16.1 has no ``barrier_events``, which follow the sends; then they are made.
        """
        self.pack_events, self.unpack_events = list(pack_events), list(unpack_events)
        if barrier_events is None:
            cuda: Any = torch.cuda
            barrier_events = [None if event is None else cuda.Event() for event in self.pack_events]
        self.barrier_events = list(barrier_events)

    def _world(self) -> World:
        found = getattr(self.buffer_manager, "world", None)
        return world_of(None) if found is None else found

    def _check(self, iterations: Sequence[dict[str, Any]]) -> None:
        """Raise ValueError if a batch of this rank is wrong."""
        buffers = self.buffer_manager
        if any(slot is None for slot in (*buffers.send_slots, *buffers.recv_slots)):
            raise ValueError("the slots are not allocated")
        for i, iteration in enumerate(iterations):
            for way, slots in (("send", buffers.send_slots), ("recv", buffers.recv_slots)):
                batch = iteration[way]
                if batch is None or batch.total_size == 0:
                    continue
                if batch.gpu_plan is None:
                    raise ValueError(f"iteration {i}: the {way} batch has no gpu_plan")
                if batch.total_size > slots[i % 2].numel():
                    raise ValueError(
                        f"iteration {i}: a {way} batch of {batch.total_size} bytes in slots of "
                        f"{slots[i % 2].numel()}"
                    )

    def _schedules(self, iterations: Sequence[dict[str, Any]]) -> list[Schedule]:
        """Return the moves of the slots, one schedule for each iteration. Collective."""
        world = self._world()
        on_all(world, lambda: self._check(iterations))
        buffers = self.buffer_manager
        slots = [slot.data_ptr() for slot in (*buffers.send_slots, *buffers.recv_slots)]
        ends = [
            batch and (batch.src_pe, batch.dest_pe, batch.total_size)
            for iteration in iterations
            for batch in (iteration["send"], iteration["recv"])
        ]
        key = (*slots, *ends)
        number, schedules = self._kept.pop(key, (0, []))
        numbers = set(world.gather(number.to_bytes(8, "little")))
        if len(numbers) > 1 or number == 0:
            for one in schedules:
                one.close()
            schedules = self._prepare(world, iterations)
            number = self.planned
            while len(self._kept) >= MAX_KEPT:
                for one in self._kept.pop(next(iter(self._kept)))[1]:
                    one.close()
        self._kept[key] = number, schedules
        return schedules

    def _prepare(self, world: World, iterations: Sequence[dict[str, Any]]) -> list[Schedule]:
        buffers = self.buffer_manager
        if self._service is None:
            self._service = CopyService(world, device=buffers.send_slots[0].device, progress=None)
        self.planned += 1
        schedules = []
        for i, iteration in enumerate(iterations):
            send, recv = iteration["send"], iteration["recv"]
            if send is not None:
                part = buffers.send_slots[i % 2][: send.total_size]
                self._service.submit_send(part, send.dest_pe, i)
            if recv is not None:
                part = buffers.recv_slots[i % 2][: recv.total_size]
                self._service.submit_recv(part, recv.src_pe, i)
            schedules.append(self._service.prepare())
        return schedules

    def _pack(self, i: int, batch: Any) -> None:
        if i >= 2:  # the slot was sent in iteration i - 2
            _wait(self.torch_pack_stream_wrapper, self.barrier_events[i % 2])
        self.kernel_launcher.launch_pack(
            batch.gpu_plan,
            self.pack_stream,
            self.torch_pack_stream_wrapper,
            self.pack_events[i % 2],
        )

    def _unpack(self, i: int, batch: Any) -> None:
        _wait(self.torch_unpack_stream_wrapper, self.barrier_events[i % 2])
        self.kernel_launcher.launch_unpack(
            batch.gpu_plan,
            self.unpack_stream,
            self.torch_unpack_stream_wrapper,
            self.unpack_events[i % 2],
        )

    def execute_pipeline(
        self, iter_schedules: Sequence[dict[str, Any]], num_iterations: int
    ) -> None:
        """Run the first ``num_iterations`` iterations, and wait for them. Collective.

        An iteration has a ScheduledBatch or None for "send" and for "recv". The two ends of a batch
        have it in the same iteration. Iterations of equal peers and sizes are planned once.
        Errors: ValueError, on all ranks, for a batch that has no ``gpu_plan`` or does not fit its
        slot; ``banyan.Mismatch`` if the two ends of a batch differ. Nothing has moved then.
        """
        iterations = iter_schedules[:num_iterations]
        schedules = self._schedules(iterations)
        send = self.torch_send_stream_wrapper
        packed: set[int] = set()
        for i, iteration in enumerate(iterations):
            # The next batch is packed beside the send of this one.
            for ahead in (i, i + 1):
                batch = iterations[ahead]["send"] if ahead < len(iterations) else None
                if batch is not None and ahead not in packed:
                    self._pack(ahead, batch)
                    packed.add(ahead)
            if iteration["send"] is not None:
                _wait(send, self.pack_events[i % 2])
            if i >= 2 and iterations[i - 2]["recv"] is not None:
                _wait(send, self.unpack_events[i % 2])
            schedules[i].run(stream=send)
            _record(self.barrier_events[i % 2], send)
            if iteration["recv"] is not None:
                self._unpack(i, iteration["recv"])
        for stream in (self.torch_pack_stream_wrapper, send, self.torch_unpack_stream_wrapper):
            if stream is not None:
                stream.synchronize()
        if self._service is not None:
            self._service.check()

    def process_self_moves(
        self, send_requests: Sequence[Any], receive_requests: Sequence[Any]
    ) -> None:
        """Copy what this rank sends to itself, on the copy stream, and wait for it. Local.

        Requests with other ranks are ignored. Raises RuntimeError if a send and a receive of this
        rank do not match by task id or size.
        """
        pairs = match_local_ops_by_task_id(
            [one for one in send_requests if one.dest_pe == self.my_pe],
            [one for one in receive_requests if one.src_pe == self.my_pe],
            type(self).__name__,
            self.my_pe,
        )
        for sent, got in pairs:
            if sent.size != got.size:
                raise RuntimeError(
                    f"task {sent.task_id} of rank {self.my_pe} with itself sends {sent.size} "
                    f"bytes, but receives {got.size}"
                )
        stream = self.torch_copy_stream_wrapper
        with torch.no_grad(), on_stream(stream):
            for sent, got in pairs:
                source = sent.src_tensor.view(-1).view(torch.uint8)
                destination = got.dest_tensor.view(-1).view(torch.uint8)
                destination[got.dest_pos : got.dest_pos + got.size].copy_(
                    source[sent.src_pos : sent.src_pos + sent.size], non_blocking=True
                )
        if stream is not None:
            stream.synchronize()

    def close(self) -> None:
        """Free the schedules and the service."""
        for _number, schedules in self._kept.values():
            for one in schedules:
                one.close()
        self._kept.clear()
        if self._service is not None:
            self._service.close()
        self._service = None
