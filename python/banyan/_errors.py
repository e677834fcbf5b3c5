"""Exceptions: one for each status of the C library."""

from __future__ import annotations


class Error(Exception):
    """Base of all errors of Banyan. The message has the names and numbers involved."""


class Invalid(Error, ValueError):
    """An argument is out of range or contradicts another one."""


class ProgramError(Invalid, RuntimeError):
    """A call of a program is wrong, or the program does not compile (``banyan.language``)."""


class OutOfMemory(Error, MemoryError):
    """Out of memory or address space."""


class SystemFailure(Error, OSError):
    """A call of the operating system failed."""


class Timeout(Error, TimeoutError):
    """A wait passed its deadline. The message names the late rank."""


class PeerLost(Error, ConnectionError):
    """A process of the world died or left."""


class Aborted(Error):
    """A process of the world called abort."""


class Unsupported(Error, NotImplementedError):
    """This machine or build lacks something that the call needs."""


class FormatError(Error, ValueError):
    """A file or message is malformed."""


class Mismatch(Error, ValueError):
    """Two ranks, or the two sides of a transfer, disagree."""


class NotFound(Error, LookupError):
    """No object has this name or index."""


class Corrupt(Error):
    """Received data differs from the data sent."""


class Refused(Error, PermissionError):
    """A peer did not prove that it belongs to the job."""


class NvshmemFailure(Error):
    """NVSHMEM is missing or failed to start."""
