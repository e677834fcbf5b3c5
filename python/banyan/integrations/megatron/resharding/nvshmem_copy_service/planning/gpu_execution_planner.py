"""Plans of the copies between tensors and slots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ..core.kernel_launcher import CopyPlan


def _part(what: str, tensor: Any, position: int, size: int) -> torch.Tensor:
    """Return ``size`` bytes of a dense tensor, from byte ``position`` on."""
    if not isinstance(tensor, torch.Tensor) or not tensor.is_contiguous():
        raise TypeError(f"{what}: not a contiguous tensor of PyTorch, but {type(tensor).__name__}")
    bytes_of = tensor.detach().view(-1).view(torch.uint8)
    if position < 0 or size < 0 or position + size > bytes_of.numel():
        raise ValueError(
            f"{what}: bytes {position} to {position + size} of a tensor of {bytes_of.numel()} bytes"
        )
    return bytes_of[position : position + size]


def _plan(slot: torch.Tensor, parts: list[torch.Tensor], packs: bool, what: str) -> CopyPlan | None:
    sizes = [part.numel() for part in parts]
    if sum(sizes) > slot.numel():
        raise ValueError(f"{what}: {sum(sizes)} bytes in a slot of {slot.numel()}")
    if not parts:
        return None
    places = list(torch.split(slot[: sum(sizes)], sizes))
    return (parts, places, sizes, len(sizes)) if packs else (places, parts, sizes, len(sizes))


class GPUExecutionPlanner:
    """Lays the tasks of each batch out in a slot, one behind the other."""

    def create_gpu_plans(
        self,
        iter_schedules: Sequence[dict[str, Any]],
        send_slots: Sequence[Any],
        recv_slots: Sequence[Any],
        receive_requests: Iterable[Any],
    ) -> None:
        """Set ``gpu_plan`` of the batches of each iteration.

        Raise ValueError for a task that has no receive request, or another size there, and for one
        that exceeds its tensor or its slot. The messages name iteration, rank and task.
        """
        requests = {(one.src_pe, one.task_id): one for one in receive_requests}
        for i, schedule in enumerate(iter_schedules):
            batch = schedule["send"]
            if batch is not None:
                where = f"iteration {i}, send to rank {batch.dest_pe}"
                parts = [
                    _part(f"{where}, task {t.task_id}", t.src_tensor, t.src_pos, t.size)
                    for t in batch.tasks
                ]
                batch.gpu_plan = _plan(send_slots[i % 2], parts, True, where)
            batch = schedule["recv"]
            if batch is not None:
                where = f"iteration {i}, receive from rank {batch.src_pe}"
                parts = self._received(where, batch, requests)
                batch.gpu_plan = _plan(recv_slots[i % 2], parts, False, where)

    @staticmethod
    def _received(where: str, batch: Any, requests: dict[Any, Any]) -> list[torch.Tensor]:
        summary = batch.tasks_summary
        if summary is None:
            raise ValueError(f"{where}: the sender's list of tasks is missing")
        parts = []
        for task_id, size in zip(summary.task_ids, summary.task_sizes, strict=True):
            request = requests.get((batch.src_pe, task_id))
            if request is None:
                raise ValueError(f"{where}: no receive request for task {task_id}")
            if request.size != size:
                raise ValueError(
                    f"{where}: task {task_id} sends {size} bytes, but receives {request.size}"
                )
            what = f"{where}, task {task_id}"
            parts.append(_part(what, request.dest_tensor, request.dest_pos, size))
        return parts
