"""Megatron-Core's CopyService on Banyan's."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from megatron.core.resharding.copy_services.base import CopyService as MegatronCopyService
from torch import Tensor
from torch.multiprocessing import reductions

from ... import CopyService, Schedule, World
from ...torch import world as world_of

#: Schedules that a service keeps; the oldest makes room.
MAX_KEPT = 8
#: Staged tensors begin at multiples of this.
STAGE_ALIGNMENT = 256


class _Op(NamedTuple):
    """A queued send or receive."""

    is_send: bool
    tensor: Tensor
    peer: int
    task_id: int | None
    part: int

    def signature(self) -> tuple[object, ...]:
        """Return what must be equal for a kept schedule to move this operation."""
        t = self.tensor
        return self.is_send, self.peer, self.task_id, self.part, t.shape, t.stride(), t.dtype


@dataclass
class _Kept:
    """A batch that was planned, and what the next equal batch needs."""

    #: Of its plan, equal on all ranks.
    number: int
    signature: object
    #: Addresses of the tensors; None: the tensor moves from batch to batch, and has a stage.
    places: list[int | None]
    #: Memory of the tensors, as weak references.
    storages: list[Any]
    #: None: the batch is not kept yet.
    schedule: Schedule | None = None
    #: Operations with a stage, and their stages.
    staged: list[tuple[int, Tensor]] = field(default_factory=list)

    def stays(self, index: int, tensor: Tensor) -> bool:
        """True if the tensor is where it was, in memory that was not freed since."""
        storage = self.storages[index]
        return bool(
            self.places[index] == tensor.data_ptr()
            and not storage.expired()
            and storage.cdata == tensor.untyped_storage()._cdata
        )

    def fits(self, ops: list[_Op]) -> bool:
        """True if the schedule moves these operations of the same signature."""
        return self.schedule is not None and all(
            place is None or place == op.tensor.data_ptr()
            for place, op in zip(self.places, ops, strict=True)
        )

    def resembles(self, ops: list[_Op]) -> bool:
        """True if each tensor of this batch that is not in ``ops`` was freed since, or staged."""
        return all(
            self.places[i] is None or self.stays(i, op.tensor) or self.storages[i].expired()
            for i, op in enumerate(ops)
        )

    def close(self) -> None:
        """Free the schedule, and with it what it holds."""
        if self.schedule is not None:
            self.schedule.close()


def _numbers(numbers: list[int]) -> bytes:
    return b"".join(one.to_bytes(8, "little") for one in numbers)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)


def _copy_all(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Copy the second tensor of each pair to the first.

    Dense ones are copied as bytes: PyTorch cannot copy all types of elements on all devices.
    """
    if pairs:
        are_dense = [a.is_contiguous() and b.is_contiguous() for a, b in pairs]
        views = [
            (_bytes(a), _bytes(b)) if dense else (a, b)
            for dense, (a, b) in zip(are_dense, pairs, strict=True)
        ]
        destinations, sources = zip(*views, strict=True)
        torch._foreach_copy_(destinations, sources)


class BanyanCopyService(MegatronCopyService):  # type: ignore[misc]
    """Moves the tensors that Megatron-Core's executor submits, on the host or on GPUs.

    Ranks are those of ``group``, by default those of the default group. Tensors that are on one
    device are matched by their task ids, or in the order of submission if they have none.

    Equal batches are planned once or twice, and then moved by a kept schedule. Parameters move
    straight from and to their memory. A tensor that is elsewhere in each batch, as the buffers of
    an executor are, is copied through a stage that belongs to the schedule. On GPUs, a kept
    schedule holds the memory of all other tensors of its batch until ``close``.
    """

    #: When run() returns, this rank has received everything, and its sends may be overwritten.
    requires_process_group_barrier = False
    #: Tensors may have any strides, so an executor needs no buffers.
    takes_strides = True

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        world: World | None = None,
        backend: str | None = None,
        stage_bytes: int | None = None,
    ) -> None:
        """Open the world of the group, or use ``world``. Collective.

        ``backend``: of ``banyan.CopyService``. ``stage_bytes``: memory of this rank that the stages
        of a kept schedule may take; a batch that needs more on any rank is planned each time. None:
        no limit. 0: no stages. Equal on all ranks.
        """
        self.group = group
        self.world = world_of(group) if world is None else world
        self.rank, self.world_size = self.world.rank, self.world.size
        self.backend = backend
        self.stage_bytes = stage_bytes
        #: Batches that were planned, and batches that were run.
        self.planned = self.runs = 0
        self._services: dict[torch.device, CopyService] = {}
        #: By number, the one that was used last at the end; the numbers are equal on all ranks.
        self._kept: dict[int, _Kept] = {}
        self._clear()

    def _clear(self) -> None:
        self._ops: list[_Op] = []
        self._parts: Counter[tuple[bool, int, int | None]] = Counter()

    def _submit(self, is_send: bool, tensor: Tensor, rank: int, task_id: int | None) -> None:
        part = 0
        if task_id is not None:  # a transform sends several tensors under one id
            part = self._parts[is_send, rank, task_id]
            self._parts[is_send, rank, task_id] += 1
        self._ops.append(_Op(is_send, tensor.detach(), rank, task_id, part))

    def submit_send(self, src_tensor: Tensor, dest_rank: int, task_id: int | None = None) -> None:
        """Queue the send of a tensor to a rank."""
        self._submit(True, src_tensor, dest_rank, task_id)

    def submit_recv(self, dest_tensor: Tensor, src_rank: int, task_id: int | None = None) -> None:
        """Queue the receive of a tensor from a rank."""
        self._submit(False, dest_tensor, src_rank, task_id)

    def submit_send_with_id(self, task_id: int, src_tensor: Tensor, dest_rank: int) -> None:
        """Queue the send of a tensor to a rank."""
        self._submit(True, src_tensor, dest_rank, task_id)

    def submit_recv_with_id(self, task_id: int, dest_tensor: Tensor, src_rank: int) -> None:
        """Queue the receive of a tensor from a rank."""
        self._submit(False, dest_tensor, src_rank, task_id)

    def _device(self) -> torch.device:
        """Return the device of the batch. Ranks without tensors learn it from the others."""
        devices = {op.tensor.device for op in self._ops}
        mine = ",".join(sorted(str(device) for device in devices))
        texts = [text.decode() for text in self.world.gather(mine.encode())]
        kinds = {one.split(":")[0] for text in texts for one in text.split(",") if one}
        if len(kinds) > 1 or any("," in text for text in texts):
            named = [f"rank {rank}: {text or 'none'}" for rank, text in enumerate(texts)]
            raise ValueError(f"the tensors of a batch are on several devices ({'; '.join(named)})")
        if devices:
            return devices.pop()
        if kinds == {"cuda"}:
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")

    def _stage(self, kept: _Kept, device: torch.device) -> bool:
        """Give a stage to each tensor that moves. Return False if one rank lacks the memory."""
        moving = [i for i, place in enumerate(kept.places) if place is None]
        offsets, end = [], 0
        for i in moving:
            offsets.append(end)
            nbytes = self._ops[i].tensor.nbytes
            end += (nbytes + STAGE_ALIGNMENT - 1) // STAGE_ALIGNMENT * STAGE_ALIGNMENT
        is_too_much = self.stage_bytes is not None and end > self.stage_bytes
        if b"\1" in self.world.gather(b"\1" if is_too_much else b"\0"):
            return False
        memory = torch.empty(end, dtype=torch.uint8, device=device)
        for i, offset in zip(moving, offsets, strict=True):
            t = self._ops[i].tensor
            stage = memory[offset : offset + t.nbytes].view(t.dtype).view(t.shape)
            kept.staged.append((i, stage))
        return True

    def _submit_all(self, service: CopyService, stages: dict[int, Tensor]) -> None:
        for i, op in enumerate(self._ops):
            submit = service.submit_send if op.is_send else service.submit_recv
            submit(stages.get(i, op.tensor), op.peer, op.task_id, part=op.part)

    def _common(self, numbers: list[int]) -> int:
        """Return the last number that all ranks have in their lists, or 0. Collective."""
        width = range(0, 8 * MAX_KEPT, 8)
        lists = [
            {int.from_bytes(text[i : i + 8], "little") for i in width if i < len(text)}
            for text in self.world.gather(_numbers(numbers))
        ]
        return max(set.intersection(*lists), default=0)

    def _find(self, service: CopyService, device: torch.device) -> _Kept:
        """Return how to move the batch: as an equal one before it, or by a new plan. Collective."""
        signature = (device, *(op.signature() for op in self._ops))
        alike = [one for one in self._kept.values() if one.signature == signature]
        number = self._common([one.number for one in alike if one.fits(self._ops)])
        if number:
            return self._kept.pop(number)
        number = self._common([one.number for one in alike if one.resembles(self._ops)])
        return self._plan(service, device, signature, self._kept.pop(number, None))

    def _plan(
        self, service: CopyService, device: torch.device, signature: object, last: _Kept | None
    ) -> _Kept:
        """Plan the batch. Collective.

        ``last``: the batch that it resembles; tensors that are elsewhere now get stages. On GPUs a
        first batch is moved without a kept schedule, which would hold the memory of buffers.
        """
        self.planned += 1
        places = [op.tensor.data_ptr() for op in self._ops]
        weak: Any = reductions.StorageWeakRef
        storages = [weak(op.tensor.untyped_storage()) for op in self._ops]
        kept = _Kept(self.planned, signature, list(places), storages)
        if last is not None:
            kept.places = [
                place if last.stays(i, self._ops[i].tensor) else None
                for i, place in enumerate(places)
            ]
            last.close()
        on_host = device.type == "cpu"
        if (on_host or last is not None) and self._stage(kept, device):
            self._submit_all(service, dict(kept.staged))
            kept.schedule = service.prepare(keep=not on_host)
        else:
            kept.places = list(places)
        return kept

    def _move(self, service: CopyService, kept: _Kept, device: torch.device) -> None:
        stream = None if device.type == "cpu" else torch.cuda.current_stream(device)
        if kept.schedule is None:
            self._submit_all(service, {})
            service.run(stream=stream)
            return
        staged = [(self._ops[i], stage) for i, stage in kept.staged]
        with torch.no_grad():
            _copy_all([(stage, op.tensor) for op, stage in staged if op.is_send])
            kept.schedule.run(stream=stream)
            _copy_all([(op.tensor, stage) for op, stage in staged if not op.is_send])
        if stream is not None:
            stream.synchronize()
            service.check()

    def run(self) -> None:
        """Move everything that was submitted, and wait for it. Collective over the group."""
        try:
            device = self._device()
            service = self._services.get(device)
            if service is None:
                service = CopyService(self.world, self.backend, device=device)
                self._services[device] = service
            kept = self._find(service, device)
            while len(self._kept) >= MAX_KEPT:
                self._kept.pop(next(iter(self._kept))).close()
            self._move(service, kept, device)
            self._kept[kept.number] = kept
            self.runs += 1
        finally:
            self._clear()

    def close(self) -> None:
        """Free the schedules, their stages and the services.

        On GPUs call it on all ranks before a model's memory is freed.
        """
        for kept in self._kept.values():
            kept.close()
        self._kept.clear()
        for service in self._services.values():
            service.close()
        self._services.clear()
