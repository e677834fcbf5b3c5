"""Algorithms that are compiled from programs of MSCCL++'s language."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from banyan.language.program import CollectiveProgram
from banyan.language.utils import AlgoSpec

from ._comm import Communicator
from ._errors import Error, ErrorCode
from ._executor import ExecutionPlan, Executor
from ._types import DataType


class Algorithm:
    """A program that was compiled to a plan, and runs on an executor."""

    def __init__(self, execution_plan: ExecutionPlan, tags: dict[str, int] | None = None) -> None:
        """Take a plan, and tags by which a program selects among algorithms."""
        self._plan, self._tags = execution_plan, dict(tags or {})

    @property
    def name(self) -> str:
        """Name of the plan."""
        return self._plan.name

    @property
    def collective(self) -> str:
        """Collective that the algorithm implements, such as "allreduce"."""
        return self._plan.collective

    @property
    def message_size_range(self) -> tuple[int, int]:
        """Smallest and largest message in bytes."""
        return self._plan.min_message_size, self._plan.max_message_size

    @property
    def tags(self) -> dict[str, int]:
        """Numbers by name."""
        return self._tags

    def is_dsl_algorithm(self) -> bool:
        """Return True: algorithms in CUDA are MSCCL++'s alone."""
        return True

    def is_native_algorithm(self) -> bool:
        """Return False."""
        return False

    def execute(
        self,
        comm: Communicator,
        input_buffer: int,
        output_buffer: int,
        input_size: int,
        output_size: int,
        dtype: DataType,
        op: Any = None,
        stream: int = 0,
        executor: Executor | None = None,
        nblocks: int = 0,
        nthreads_per_block: int = 0,
        symmetric_memory: bool = False,
        extras: dict[str, int] | None = None,
        accum_dtype: DataType | None = None,
    ) -> int:
        """Run the plan as ``Executor.execute`` does, and return 0. Collective.

        Raises ``Error`` if no executor is given. ``op`` and the arguments after ``executor`` are
        for MSCCL++'s algorithms in CUDA; the plan has its own.
        """
        if executor is None:
            raise Error(ErrorCode.InvalidUsage, "an algorithm of the language needs an executor")
        executor.execute(
            comm.bootstrap().get_rank(),
            int(input_buffer),
            int(output_buffer),
            input_size,
            output_size,
            dtype,
            self._plan,
            int(stream),
        )
        return 0

    def reset(self) -> None:
        """Do nothing: the algorithm keeps no state."""


def compile(
    algo: Callable[..., CollectiveProgram], algo_spec: AlgoSpec, rank: int, **kwargs: Any
) -> Algorithm:
    """Compile a program of MSCCL++'s language: ``algo(algo_spec, **kwargs)`` returns it. Local.

    Raises ValueError if ``algo`` cannot be called, and the errors of the language.
    """
    if not callable(algo):
        raise ValueError("The 'algo' argument must be a callable (e.g., a function or class).")
    plan = algo(algo_spec, **kwargs).compile()
    return Algorithm(ExecutionPlan._of(plan, rank), algo_spec.tags)
