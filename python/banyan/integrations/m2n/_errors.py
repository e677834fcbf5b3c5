"""Errors of NCCL M2N's calls. Those of Banyan's engine are both: Banyan's class, and NCCL M2N's."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, cast

from ... import (
    Aborted,
    Error,
    Invalid,
    Mismatch,
    OutOfMemory,
    PeerLost,
    SystemFailure,
    Timeout,
    Unsupported,
)

_INTERNAL = 3
#: NCCL's result for each of Banyan's errors; the first class that fits is taken.
_STATUS: tuple[tuple[type[Error], int], ...] = (
    (Unsupported, 5),
    (Invalid, 4),
    (Mismatch, 4),
    (PeerLost, 6),
    (Timeout, 6),
    (Aborted, 6),
    (OutOfMemory, 2),
    (SystemFailure, 2),
)


class NcclReshardError(Exception):
    """A call of the engine failed: ``status`` is a result of NCCL, ``detail`` the message."""

    def __init__(self, status: int, detail: str | None = None) -> None:
        """Make an error with the message of nccl.m2n."""
        self.status, self.detail = status, detail
        text = f"NCCL Reshard error code {status}"
        super().__init__(text if detail is None else f"{text}: {detail}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments."""
        return NcclReshardError, (self.status, self.detail)


class FunctionNotFoundError(RuntimeError):
    """A function of libnccl_m2n.so is needed, which Banyan does not have."""


def no_binding(name: str) -> FunctionNotFoundError:
    """Return the error of a method that returns a struct of libnccl_m2n.so."""
    return FunctionNotFoundError(f"{name}: Banyan runs without libnccl_m2n.so and its structs")


@functools.lru_cache
def _both(kind: type[Error], status: int) -> type[Error]:
    """Return a class of errors that is Banyan's and NCCL M2N's."""

    def init(self: Any, message: str) -> None:
        Exception.__init__(self, message)
        self.status, self.detail = status, message

    members = {
        "__init__": init,
        "__reduce__": lambda self: (kind, (self.detail,)),
        "__module__": kind.__module__,
        "__doc__": kind.__doc__,
    }
    return cast(type[Error], type(kind.__name__, (kind, NcclReshardError), members))


def reshard_error(error: Error) -> Error:
    """Return an error that ``except NcclReshardError`` catches, too."""
    if isinstance(error, NcclReshardError):
        return error
    status = next((one for kind, one in _STATUS if isinstance(error, kind)), _INTERNAL)
    return _both(type(error), status)(str(error))  # type: ignore[arg-type]


@contextlib.contextmanager
def reshard_errors() -> Iterator[None]:
    """Raise the errors of Banyan as those of NCCL M2N."""
    try:
        yield
    except Error as error:
        raise reshard_error(error).with_traceback(error.__traceback__) from error.__cause__
