"""Objects in processes of their own, which are forked from this one, and calls of them."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("fork")
#: Seconds that an answer may take.
ANSWER = 300


class Died(Exception):
    """The process ended without an answer."""


def _serve(make: Callable[[], Any], path: str) -> None:
    """Make the object, and answer calls of its methods, one at a time."""
    os.setsid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    faulthandler.register(signal.SIGUSR1)  # its workers have it, too
    lock = threading.Lock()
    held: list[Any] = []

    def answer(connection: Connection) -> None:
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                name, args, options = connection.recv()
                try:
                    with lock:
                        reply = True, getattr(held[0], name)(*args, **options)
                except BaseException as error:
                    reply = False, f"{type(error).__name__}: {error}"
                connection.send(reply)

    with lock, Listener(path) as listener:

        def accept() -> None:
            while True:
                threading.Thread(target=answer, args=(listener.accept(),), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        held.append(make())
        lock.release()
        threading.Event().wait()


class Remote:
    """Calls of an object in another process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: Any = None

    def start(self, name: str, *args: Any, **options: Any) -> None:
        """Start a call."""
        deadline = time.monotonic() + ANSWER
        while self._connection is None:
            try:
                self._connection = Client(str(self.path))
            except (FileNotFoundError, ConnectionRefusedError):
                assert time.monotonic() < deadline, f"nobody listens at {self.path}"
                time.sleep(0.05)
        self._connection.send((name, args, options))

    def result(self) -> Any:
        """Return what the call returns. Raises Died, or RuntimeError with the error's text."""
        if not self._connection.poll(ANSWER):
            self.show()
            raise TimeoutError(f"no answer from {self.path}")
        try:
            good, value = self._connection.recv()
        except (EOFError, ConnectionError):
            raise Died(str(self.path)) from None
        if not good:
            raise RuntimeError(value)
        return value

    def show(self) -> None:
        """Let the process print where it is, if it is a child."""

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        self.start(name, *args, **options)
        return self.result()


class Process(Remote):
    """A process with an object, killed at the end of the ``with`` block."""

    def __init__(self, path: Path, make: Callable[..., Any], *args: Any, **options: Any) -> None:
        super().__init__(path)
        self._process = CONTEXT.Process(
            target=_serve, args=(lambda: make(*args, **options), str(path))
        )
        self._process.start()

    def show(self) -> None:
        assert self._process.pid is not None
        os.killpg(self._process.pid, signal.SIGUSR1)
        time.sleep(1)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.pid is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # with the processes that it started
        self._process.kill()
        self._process.join()
