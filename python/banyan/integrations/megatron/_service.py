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

    #: Number of its plan, equal on all ranks.
    number: int
    #: Addresses of the tensors; None: the tensor moves from batch to batch, and has a stage.
    places: list[int | None]
    #: None: the batch is not kept yet.
    schedule: Schedule | None = None
    #: Memory of the tensors, as long as there is no schedule that holds them.
    storages: list[Any] = field(default_factory=list)
    #: Operations with a stage, and their stages.
    staged: list[tuple[int, Tensor]] = field(default_factory=list)

    def stays(self, index: int, tensor: Tensor) -> bool:
        """True if the tensor is where it was, in memory that was not freed since."""
        if self.places[index] != tensor.data_ptr():
            return False
        if not self.storages:
            return True
        storage = self.storages[index]
        return bool(not storage.expired() and storage.cdata == tensor.untyped_storage()._cdata)

    def fits(self, ops: list[_Op]) -> bool:
        """True if the schedule moves these operations."""
        return self.schedule is not None and all(
            place is None or place == op.tensor.data_ptr()
            for place, op in zip(self.places, ops, strict=True)
        )

    def close(self) -> None:
        """Free the schedule, and with it what it holds."""
        if self.schedule is not None:
            self.schedule.close()


def _copy_all(destinations: list[Tensor], sources: list[Tensor]) -> None:
    if destinations:
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
        of a kept schedule may take; a batch that needs more on any rank is planned each time, as
        are all with 0. None: no limit. Equal on all ranks.
        """
        self.group = group
        self.world = world_of(group) if world is None else world
        self.rank, self.world_size = self.world.rank, self.world.size
        self.backend = backend
        self.stage_bytes = stage_bytes
        #: Batches that were planned, and batches that were run.
        self.planned = self.runs = 0
        self._services: dict[torch.device, CopyService] = {}
        self._kept: dict[Any, _Kept] = {}
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

    def _plan(self, service: CopyService, device: torch.device, last: _Kept | None) -> _Kept:
        """Plan the batch, and return how the next one like it is recognized.

        ``last``: the equal batch before it; tensors that are elsewhere now get stages. On GPUs a
        first batch is moved without a kept schedule, which would hold the memory of buffers.
        """
        self.planned += 1
        places: list[int | None] = [op.tensor.data_ptr() for op in self._ops]
        if last is not None:
            places = [
                place if last.stays(i, op.tensor) else None
                for i, (place, op) in enumerate(zip(places, self._ops, strict=True))
            ]
            last.close()
        kept = _Kept(self.planned, places)
        on_host = device.type == "cpu"
        is_known = b"\0" not in self.world.gather(b"\0" if last is None else b"\1")
        keeps = self.stage_bytes != 0 and (on_host or is_known) and self._stage(kept, device)
        if keeps:
            self._submit_all(service, dict(kept.staged))
            kept.schedule = service.prepare(keep=not on_host)
        else:
            kept.places = [op.tensor.data_ptr() for op in self._ops]
            weak: Any = reductions.StorageWeakRef
            kept.storages = [weak(op.tensor.untyped_storage()) for op in self._ops]
        return kept

    def _move(self, service: CopyService, kept: _Kept, device: torch.device) -> None:
        if kept.schedule is None:
            self._submit_all(service, {})
            service.run()
            return
        stages = {True: ([], []), False: ([], [])}  # type: dict[bool, tuple[list[Tensor], list[Tensor]]]
        for i, stage in kept.staged:
            op = self._ops[i]
            pair = (stage, op.tensor) if op.is_send else (op.tensor, stage)
            for found, one in zip(stages[op.is_send], pair, strict=True):
                found.append(one)
        with torch.no_grad():
            _copy_all(*stages[True])
            kept.schedule.run()
            _copy_all(*stages[False])
        if device.type != "cpu":
            torch.cuda.current_stream(device).synchronize()
            service.check()

    def run(self) -> None:
        """Move everything that was submitted, and wait for it. Collective over the group."""
        try:
            device = self._device()
            service = self._services.get(device)
            if service is None:
                service = CopyService(self.world, self.backend, device=device)
                self._services[device] = service
            key = (device, *(op.signature() for op in self._ops))
            kept = self._kept.pop(key, None)
            number = kept.number if kept is not None and kept.fits(self._ops) else 0
            numbers = set(self.world.gather(number.to_bytes(8, "little")))
            if len(numbers) > 1 or number == 0:
                kept = self._plan(service, device, kept)
                while len(self._kept) >= MAX_KEPT:
                    self._kept.pop(next(iter(self._kept))).close()
            assert kept is not None
            self._move(service, kept, device)
            self._kept[key] = kept
            self.runs += 1
        finally:
            self._clear()

    def close(self) -> None:
        """Free the schedules, their stages and the services."""
        for kept in self._kept.values():
            kept.close()
        self._kept.clear()
        for service in self._services.values():
            service.close()
        self._services.clear()
