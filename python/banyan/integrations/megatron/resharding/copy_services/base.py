"""Operations of a copy service, and the pairs that a rank has with itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.resharding.copy_services.base import CopyService

__all__ = ["CopyService", "RecvOp", "SendOp", "match_local_ops_by_task_id"]


@dataclass
class SendOp:
    """A queued send."""

    #: Equal at both ends of the transfer; None: the order of submission pairs them.
    task_id: int | None
    tensor: torch.Tensor
    dest_rank: int


@dataclass
class RecvOp:
    """A queued receive."""

    #: As of SendOp.
    task_id: int | None
    tensor: torch.Tensor
    src_rank: int


def _some(ids: Iterable[Any]) -> str:
    listed = sorted(ids, key=str)
    return ", ".join(map(str, listed[:10])) + (", ..." if len(listed) > 10 else "")


def match_local_ops_by_task_id(
    local_sends: Sequence[Any], local_recvs: Sequence[Any], backend_name: str, rank: int
) -> list[tuple[Any, Any]]:
    """Return the pairs (send, receive) of equal ``task_id``, in the order of the receives.

    Raise RuntimeError, with the name of the backend, the rank and the ids, if an operation has no
    id, an id occurs twice in one list, or an operation has no partner.
    """
    sends = {op.task_id: op for op in local_sends}
    recvs = {op.task_id: op for op in local_recvs}
    if None in sends or None in recvs:
        raise RuntimeError(
            f"{backend_name}: a transfer of rank {rank} to itself requires a task_id"
        )
    if not len(sends) == len(local_sends) == len(recvs) == len(local_recvs):
        raise RuntimeError(
            f"{backend_name}: unmatched local ops of rank {rank}: {len(local_sends)} sends with "
            f"{len(sends)} task ids and {len(local_recvs)} receives with {len(recvs)}; on one side "
            f"only: {_some(sends.keys() ^ recvs.keys()) or 'none'}"
        )
    lonely = recvs.keys() - sends.keys()
    if lonely:
        raise RuntimeError(
            f"{backend_name}: missing local send of rank {rank} for task ids {_some(lonely)}"
        )
    return [(sends[task_id], recv) for task_id, recv in recvs.items()]
