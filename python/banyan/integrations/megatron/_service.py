"""Megatron-Core's CopyService on Banyan's."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.resharding.copy_services.base import CopyService as MegatronCopyService
from torch import Tensor

from ... import CopyService, Schedule, World
from ...torch import world as world_of

#: Schedules that a service keeps; the oldest makes room.
MAX_KEPT = 8


class BanyanCopyService(MegatronCopyService):  # type: ignore[misc]
    """Moves the tensors that Megatron-Core's executor submits, on the host or on GPUs.

    Ranks are those of ``group``, by default those of the default group. Tensors that are on one
    device are matched by their task ids, or in the order of submission if they have none. On the
    host, a batch that was submitted before, with tensors at the same addresses, is not planned
    again.
    """

    #: When run() returns, this rank has received everything, and its sends may be overwritten.
    requires_process_group_barrier = False

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        world: World | None = None,
        backend: str | None = None,
    ) -> None:
        """Open the world of the group, or use ``world``. Collective.

        ``backend``: of ``banyan.CopyService``.
        """
        self.group = group
        self.world = world_of(group) if world is None else world
        self.rank, self.world_size = self.world.rank, self.world.size
        self.backend = backend
        #: Batches that were planned, and batches that were run.
        self.planned = self.runs = 0
        self._services: dict[torch.device, CopyService] = {}
        self._kept: dict[Any, Schedule] = {}
        self._clear()

    def _clear(self) -> None:
        self._ops: list[tuple[bool, Tensor, int, int | None, int]] = []
        self._parts: Counter[tuple[bool, int, int | None]] = Counter()

    def _submit(self, is_send: bool, tensor: Tensor, rank: int, task_id: int | None) -> None:
        part = 0
        if task_id is not None:  # a transform sends several tensors under one id
            part = self._parts[is_send, rank, task_id]
            self._parts[is_send, rank, task_id] += 1
        self._ops.append((is_send, tensor.detach(), rank, task_id, part))

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
        devices = {op[1].device for op in self._ops}
        mine = ",".join(sorted(str(device) for device in devices))
        texts = [text.decode() for text in self.world.gather(mine.encode())]
        kinds = {one.split(":")[0] for text in texts for one in text.split(",") if one}
        if len(kinds) > 1 or len(devices) > 1:
            named = [f"rank {rank}: {text or 'none'}" for rank, text in enumerate(texts)]
            raise ValueError(f"the tensors of a batch are on several devices ({'; '.join(named)})")
        if devices:
            return devices.pop()
        if kinds == {"cuda"}:
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")

    def _schedule(self, service: CopyService, device: torch.device) -> Schedule | None:
        """Return the kept schedule of an equal batch, if all ranks have one."""
        if device.type != "cpu":
            return None  # peers map the tensors of a schedule, which Megatron-Core frees
        key = tuple(
            (is_send, peer, task_id, part, t.data_ptr(), t.shape, t.stride(), t.dtype)
            for is_send, t, peer, task_id, part in self._ops
        )
        found = self._kept.pop(key, None)
        if b"\0" in self.world.gather(b"\0" if found is None else b"\1"):
            self._submit_all(service)
            found = service.prepare(keep=False)
            self.planned += 1
            if len(self._kept) == MAX_KEPT:
                self._kept.pop(next(iter(self._kept))).close()
        self._kept[key] = found  # type: ignore[assignment]
        return found

    def _submit_all(self, service: CopyService) -> None:
        for is_send, tensor, peer, task_id, part in self._ops:
            submit = service.submit_send if is_send else service.submit_recv
            submit(tensor, peer, task_id, part=part)

    def run(self) -> None:
        """Move everything that was submitted, and wait for it. Collective over the group."""
        try:
            device = self._device()
            service = self._services.get(device)
            if service is None:
                service = CopyService(self.world, self.backend, device=device)
                self._services[device] = service
            schedule = self._schedule(service, device)
            if schedule is not None:
                schedule.run()
            else:
                self._submit_all(service)
                service.run()
                self.planned += 1
            self.runs += 1
        finally:
            self._clear()

    def close(self) -> None:
        """Free the schedules and the services."""
        for schedule in self._kept.values():
            schedule.close()
        self._kept.clear()
        for service in self._services.values():
            service.close()
        self._services.clear()
