"""MSCCL++'s errors: a code, and a message."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager

import banyan


class ErrorCode(enum.IntEnum):
    """Kinds of errors, with MSCCL++'s names and numbers."""

    SystemError = 0
    InternalError = 1
    RemoteError = 2
    InvalidUsage = 3
    Timeout = 4
    Aborted = 5
    ExecutorError = 6


class BaseError(Exception):
    """Base of all errors. Its arguments are a code and a message, as in MSCCL++."""

    def __str__(self) -> str:
        return str(self.args[1]) if len(self.args) == 2 else super().__str__()


class Error(BaseError):
    """Any error but those of the system."""


class SysError(BaseError):
    """A call of the operating system failed, or memory ran out."""


#: The first class that fits gives the code.
_CODES: tuple[tuple[type[Exception], ErrorCode], ...] = (
    (banyan.Timeout, ErrorCode.Timeout),
    (banyan.Aborted, ErrorCode.Aborted),
    (banyan.PeerLost, ErrorCode.RemoteError),
    (banyan.Refused, ErrorCode.RemoteError),
    (banyan.SystemFailure, ErrorCode.SystemError),
    (banyan.OutOfMemory, ErrorCode.SystemError),
    (banyan.Invalid, ErrorCode.InvalidUsage),
    (banyan.Mismatch, ErrorCode.InvalidUsage),
    (banyan.Unsupported, ErrorCode.InvalidUsage),
)


def error_of(cause: banyan.Error, code: ErrorCode | None = None) -> BaseError:
    """Return the error of MSCCL++ that stands for Banyan's. ``code`` None: by its class."""
    if code is None:
        code = next((c for kind, c in _CODES if isinstance(cause, kind)), ErrorCode.InternalError)
    made = SysError if code is ErrorCode.SystemError else Error
    return made(code, str(cause))


@contextmanager
def translated(code: ErrorCode | None = None) -> Iterator[None]:
    """Raise Banyan's errors as MSCCL++'s, with Banyan's error as the cause."""
    try:
        yield
    except banyan.Error as cause:
        raise error_of(cause, code) from cause
