"""Execution plans, and the executor that runs them."""

from __future__ import annotations

import os
from typing import Any

import banyan
from banyan import _core

from ._comm import Communicator
from ._errors import Error, ErrorCode, error_of, translated
from ._types import DLPACK, DataType, PacketType

#: A plan is loaded for messages of at least this many bytes, and then for twice as many each time.
_LEAST_BYTES = 1 << 20


class ExecutionPlan:
    """A plan file in MSCCL++'s format, read by one rank.

    Raises ``Error`` with ``ErrorCode.ExecutorError`` if the file is missing or malformed, or if the
    plan has no such rank.
    """

    def __init__(self, planPath: str | os.PathLike[str], rank: int) -> None:
        """Read the file."""
        with translated(ErrorCode.ExecutorError):
            self._take(banyan.Plan.read(planPath), rank)

    @classmethod
    def _of(cls, plan: banyan.Plan, rank: int) -> ExecutionPlan:
        """Return a plan that is not in a file."""
        made = cls.__new__(cls)
        made._take(plan, rank)
        return made

    def _take(self, plan: banyan.Plan, rank: int) -> None:
        self._plan = plan
        if not 0 <= rank < self._plan.ranks:
            raise Error(
                ErrorCode.ExecutorError,
                f"GPU rank does not match: plan {self._plan.name} has {self._plan.ranks} ranks, "
                f"and none with the number {rank}",
            )
        self._rank = rank
        self._input_parts, self._output_parts = _parts(self._plan, rank)

    @property
    def name(self) -> str:
        """Name of the plan."""
        return self._plan.name

    @property
    def collective(self) -> str:
        """Collective that the plan implements, such as "allreduce"."""
        return self._plan.collective

    @property
    def min_message_size(self) -> int:
        """Smallest message in bytes: of a rank's input, but of the output for all-gather."""
        return self._plan.min_message_bytes

    @property
    def max_message_size(self) -> int:
        """Largest message in bytes."""
        return self._plan.max_message_bytes

    def _message(self, send_size: int, recv_size: int) -> int:
        """Return the size of the message of which a rank has so much input and output."""
        plan, parts = self._plan, self._plan.message_parts
        if self._input_parts > 0:
            nbytes, rest = divmod(send_size * parts, self._input_parts)
        elif self._output_parts > 0:
            nbytes, rest = divmod(recv_size * parts, self._output_parts)
        else:
            nbytes, rest = 0, 0
        with translated(ErrorCode.ExecutorError):
            sizes = plan.sizes(self._rank, nbytes) if rest == 0 else None
        if sizes != (send_size, recv_size):
            raise Error(
                ErrorCode.ExecutorError,
                f"plan {plan.name} ({plan.collective}, {plan.ranks} ranks) has no message with "
                f"{send_size} bytes of input and {recv_size} of output on rank {self._rank}",
            )
        size = recv_size if plan.collective == "allgather" else send_size
        if not plan.min_message_bytes <= size <= plan.max_message_bytes:
            raise Error(
                ErrorCode.ExecutorError,
                "Input or output size is not within the valid range: plan "
                f"{plan.name} is for messages of {plan.min_message_bytes} to "
                f"{plan.max_message_bytes} bytes, and not of {size}",
            )
        return nbytes


def _parts(plan: banyan.Plan, rank: int) -> tuple[int, int]:
    """Return how much of a message that has one byte for each of its parts a rank has."""
    return plan.sizes(rank, plan.message_parts) if plan.message_parts > 0 else (0, 0)


class _Load:
    """A plan as it is loaded on one device."""

    def __init__(self, loaded: banyan.LoadedPlan, most: int) -> None:
        self.loaded, self.most = loaded, most


class Executor:
    """Runs plans between the ranks of a communicator, on the host or on GPUs.

    Runs of equal plans, sizes and types cost little after the first one, which loads the plan.
    """

    def __init__(self, comm: Communicator) -> None:
        """Take the ranks. Nothing is opened before the first run."""
        self._world = comm.bootstrap().world
        self._executors: dict[tuple[int, int], banyan.Executor] = {}
        self._loads: dict[tuple[ExecutionPlan, tuple[int, int]], list[_Load]] = {}
        self._calls: dict[tuple[Any, ...], tuple[Any, int, int, int, bool]] = {}

    def execute(
        self,
        rank: int,
        send_buff: int,
        recv_buff: int,
        send_buff_size: int,
        recv_buff_size: int,
        data_type: DataType,
        plan: ExecutionPlan,
        stream: int,
        packet_type: PacketType = PacketType.LL16,
    ) -> None:
        """Run a plan on a message of this rank's input and output. Collective.

        ``send_buff`` and ``recv_buff`` are addresses of memory of one device, with
        ``send_buff_size`` and ``recv_buff_size`` bytes. All ranks run the same plans, in the same
        order, with the same sizes and types. On a GPU the run is queued in ``stream``, the address
        of a CUDA stream, which may be captured after the first run of a size and type. On the host
        the call returns when this rank's part is done, and ``stream`` is ignored.

        Raises ``Error``: ``ErrorCode.ExecutorError`` if the sizes do not fit the plan, otherwise
        the code of the failure, with Banyan's error as the cause.
        """
        key = (plan, send_buff_size, recv_buff_size, data_type, _core._locate(send_buff))
        call = self._calls.get(key)
        if call is None:
            call = self._prepare(key, rank)
        run, nbytes, code, bits, on_host = call
        try:
            run(send_buff, recv_buff, nbytes, code, bits, 0 if on_host else stream)
        except banyan.Error as cause:
            raise error_of(cause) from cause

    def _prepare(self, key: tuple[Any, ...], rank: int) -> tuple[Any, int, int, int, bool]:
        plan, send_size, recv_size, data_type, device = key
        if rank != self._world.rank or rank != plan._rank:
            raise Error(
                ErrorCode.InvalidUsage,
                f"rank {rank} was passed on rank {self._world.rank}, with the plan of rank "
                f"{plan._rank}",
            )
        nbytes = plan._message(send_size, recv_size)
        with translated():
            loaded = self._loaded(plan, device, nbytes)
        call = (loaded._run_at, nbytes, *DLPACK[data_type], device[0] == 1)
        self._calls[key] = call
        return call

    def _loaded(
        self, plan: ExecutionPlan, device: tuple[int, int], nbytes: int
    ) -> banyan.LoadedPlan:
        """Return the plan, loaded for a message of this size. All ranks see the same sizes."""
        executor = self._executors.get(device)
        if executor is None:
            executor = banyan.Executor(self._world, device=None if device[0] == 1 else device[1])
            self._executors[device] = executor
        loads = self._loads.setdefault((plan, device), [])
        if not loads or loads[-1].most < nbytes:
            # The old one stays: graphs may contain its runs.
            most = max(_LEAST_BYTES, 1 << (nbytes - 1).bit_length() if nbytes > 0 else 0)
            parts = max(plan._plan.message_parts, 1)
            most = -(-most // parts) * parts
            loads.append(_Load(executor.load(plan._plan, most), most))
        return loads[-1].loaded

    def reset(self) -> None:
        """Unload all plans. Collective; no run may be under way, and graphs must have finished."""
        self._calls.clear()
        self._loads.clear()
        executors, self._executors = self._executors, {}
        with translated():
            for executor in executors.values():
                executor.close()
