"""Calls of vLLM beside calls of a world."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


def background(call: Callable[..., Any], *args: Any, **options: Any) -> Future[Any]:
    """Start a call on a thread that does not keep the process from exiting."""
    result: Future[Any] = Future()

    def run() -> None:
        try:
            value = call(*args, **options)
        except BaseException as error:
            result.set_exception(error)
        else:
            result.set_result(value)

    threading.Thread(target=run, daemon=True).start()
    return result
