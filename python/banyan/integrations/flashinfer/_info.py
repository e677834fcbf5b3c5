"""Operations, modes and the grid of ranks, by FlashInfer's names."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import cast

import torch.distributed as dist


class MixedCommOp(enum.IntEnum):
    """Operations: over the tensor-parallel ranks, the data-parallel ranks, or both."""

    ALLREDUCE = 0
    ALLGATHER = 1
    REDUCESCATTER = 2
    ALLREDUCE_ALLGATHER = 3
    REDUCESCATTER_ALLREDUCE = 4


class MixedCommMode(enum.IntEnum):
    """Ways to run an operation, with Banyan's names for them beside.

    The modes whose names end with MC use multicast. They are valid only where Banyan may use it.
    """

    FUSED_OPT_WAITS_MC = 0  # one_shot_multicast
    FUSED_OPT_WAITS_UC = 1  # one_shot
    FUSED_OPT_BYTES1_MC = 2  # two_shot_multicast
    FUSED_OPT_BYTES1_UC = 3  # two_shot
    FUSED_OPT_BYTES2_MC = 4  # two_shot_nodes_multicast
    FUSED_OPT_BYTES2_UC = 5  # two_shot_nodes
    NCCL_ONE = 6  # single_nccl; without NCCL single
    NCCL_TP_DP = 7  # separate_nccl; without NCCL separate
    AUTOTUNE = 8  # the fastest of them that was measured


#: Banyan's modes for each of FlashInfer's; the first one that is valid is taken.
BANYAN_MODES = {
    MixedCommMode.FUSED_OPT_WAITS_MC: ("one_shot_multicast",),
    MixedCommMode.FUSED_OPT_WAITS_UC: ("one_shot",),
    MixedCommMode.FUSED_OPT_BYTES1_MC: ("two_shot_multicast",),
    MixedCommMode.FUSED_OPT_BYTES1_UC: ("two_shot",),
    MixedCommMode.FUSED_OPT_BYTES2_MC: ("two_shot_nodes_multicast",),
    MixedCommMode.FUSED_OPT_BYTES2_UC: ("two_shot_nodes",),
    MixedCommMode.NCCL_ONE: ("single_nccl", "single"),
    MixedCommMode.NCCL_TP_DP: ("separate_nccl", "separate"),
}


def _divide(what: str, size: int, tp: int | None, dp: int | None) -> tuple[int, int]:
    """Return both sizes of a part of the grid; a missing one takes the remaining ranks."""
    tp = (size if dp is None else size // dp) if tp is None else tp
    dp = size // tp if dp is None else dp
    assert tp * dp == size, f"{what}: tp {tp} x dp {dp} is not the size {size}"
    return tp, dp


@dataclass
class ParallelInfo:
    """The grid: tensor-parallel by data-parallel ranks in a node, and nodes likewise.

    local_rank = local_tp_rank + local_dp_rank * local_tp_size, and nodes are numbered in the same
    way. world_rank = inter_rank * local_size + local_rank. A size of tp or dp that is None takes
    what remains.
    """

    world_rank: int
    world_size: int
    local_rank: int
    local_size: int
    inter_rank: int
    inter_size: int
    local_tp_size: int
    local_dp_size: int
    inter_tp_size: int
    inter_dp_size: int
    local_tp_rank: int = field(init=False)
    local_dp_rank: int = field(init=False)
    inter_tp_rank: int = field(init=False)
    inter_dp_rank: int = field(init=False)

    def __post_init__(self) -> None:
        """Resolve the grid. Raises AssertionError if the numbers contradict each other."""
        assert self.world_rank == self.inter_rank * self.local_size + self.local_rank, (
            f"world_rank {self.world_rank} is not inter_rank {self.inter_rank} * local_size "
            f"{self.local_size} + local_rank {self.local_rank}"
        )
        assert self.world_size == self.inter_size * self.local_size, (
            f"world_size {self.world_size} is not inter_size {self.inter_size} * local_size "
            f"{self.local_size}"
        )
        self.local_tp_size, self.local_dp_size = _divide(
            "a node", self.local_size, self.local_tp_size, self.local_dp_size
        )
        self.inter_tp_size, self.inter_dp_size = _divide(
            "the nodes", self.inter_size, self.inter_tp_size, self.inter_dp_size
        )
        self.local_dp_rank, self.local_tp_rank = divmod(self.local_rank, self.local_tp_size)
        self.inter_dp_rank, self.inter_tp_rank = divmod(self.inter_rank, self.inter_tp_size)

    @property
    def tp_rank(self) -> int:
        """Index of this rank in its tensor-parallel group."""
        return self.local_tp_rank + self.inter_tp_rank * self.local_tp_size

    @property
    def tp_size(self) -> int:
        """Size of a tensor-parallel group."""
        return self.local_tp_size * self.inter_tp_size

    @property
    def dp_rank(self) -> int:
        """Index of this rank in its data-parallel group."""
        return self.local_dp_rank + self.inter_dp_rank * self.local_dp_size

    @property
    def dp_size(self) -> int:
        """Size of a data-parallel group."""
        return self.local_dp_size * self.inter_dp_size

    @property
    def use_local_tp(self) -> bool:
        """True with several tensor-parallel ranks in a node."""
        return self.local_tp_size > 1

    @property
    def use_inter_tp(self) -> bool:
        """True with several tensor-parallel nodes."""
        return self.inter_tp_size > 1

    @property
    def use_tp(self) -> bool:
        """True with several tensor-parallel ranks."""
        return self.tp_size > 1

    @property
    def use_dp(self) -> bool:
        """True with several data-parallel ranks."""
        return self.dp_size > 1

    @property
    def use_inter(self) -> bool:
        """True with several nodes."""
        return self.inter_size > 1

    @property
    def use_mixed(self) -> bool:
        """True with several ranks on both sides."""
        return self.use_tp and self.use_dp

    def get_local_full_group_local_ranks(self) -> list[int]:
        """Return the local ranks of a node."""
        return list(range(self.local_size))

    def get_local_tp_group_local_ranks(self, local_dp_rank: int | None = None) -> list[int]:
        """Return the local ranks of a tensor-parallel group in a node; None: of this rank's."""
        dp = self.local_dp_rank if local_dp_rank is None else local_dp_rank
        return list(range(dp * self.local_tp_size, (dp + 1) * self.local_tp_size))

    def get_local_dp_group_local_ranks(self, local_tp_rank: int | None = None) -> list[int]:
        """Return the local ranks of a data-parallel group in a node; None: of this rank's."""
        tp = self.local_tp_rank if local_tp_rank is None else local_tp_rank
        return list(range(tp, self.local_size, self.local_tp_size))

    def _rank_at(self, tp: int, dp: int) -> int:
        inter_tp, local_tp = divmod(tp, self.local_tp_size)
        inter_dp, local_dp = divmod(dp, self.local_dp_size)
        node = inter_tp + inter_dp * self.inter_tp_size
        return node * self.local_size + local_tp + local_dp * self.local_tp_size

    def _new_groups(self, lists: list[list[int]]) -> list[dist.ProcessGroup]:
        """Make process groups. One without this rank is not usable."""
        return [cast(dist.ProcessGroup, dist.new_group(ranks)) for ranks in lists]

    def get_local_comm_group(self) -> dist.ProcessGroup:
        """Make a process group of each node, and return this rank's. Collective."""
        size, nodes = self.local_size, range(self.inter_size)
        lists = [list(range(node * size, (node + 1) * size)) for node in nodes]
        return self._new_groups(lists)[self.inter_rank]

    def get_tp_comm_group(self) -> dist.ProcessGroup:
        """Make all tensor-parallel process groups, and return this rank's. Collective."""
        tp, dp = range(self.tp_size), range(self.dp_size)
        return self._new_groups([[self._rank_at(t, d) for t in tp] for d in dp])[self.dp_rank]

    def get_dp_comm_group(self) -> dist.ProcessGroup:
        """Make all data-parallel process groups, and return this rank's. Collective."""
        tp, dp = range(self.tp_size), range(self.dp_size)
        return self._new_groups([[self._rank_at(t, d) for d in dp] for t in tp])[self.tp_rank]
