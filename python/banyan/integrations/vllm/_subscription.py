"""The engine's side of publications: workers that fetch in the background, and commit together.

The workers of an engine and the process that drives it form one world. That process is rank 0 and
holds no weights. So it learns by itself which versions are staged, and which one is committed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from vllm.config import set_current_vllm_config
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo

from ... import Error, Model, Subscription, UniqueId, Unsupported, World
from ..._reshard import agree
from .. import _updates as updates
from .._following import Before, follow, settle
from ._threads import background
from ._worker import BanyanWorkerEngine

#: Seconds by which a wait for another rank is longer than the one for the first version.
_MARGIN = 30.0
#: Seconds between two looks at what other ranks have staged.
_POLL = 0.01
#: Seconds that a failed call of vLLM waits for the world's error, and a rank for others that leave.
_GRACE = 5.0


def _commit(world: World, subscription: Subscription, process: Callable[[int], bytes]) -> int:
    """Commit the newest version that all ranks have staged, and process it. Collective."""
    before = subscription.version
    version = subscription.commit()
    if version != before:
        agree(world, lambda: process(version))
    return version


def _commit_first(world: World, subscription: Subscription, process: Callable[[int], bytes]) -> int:
    """Commit the first version, which the engine's process has seen. Collective."""
    while not (version := _commit(world, subscription, process)):
        time.sleep(_POLL)  # another rank is a moment behind
    return version


def _nothing(_: int) -> bytes:
    return b""


# ---- the process that drives the engine ----


class WeightSubscription:
    """Lets an engine of vLLM follow a publication of trainers, in the background.

    Make it in the process that drives the engine, whose configuration is
    ``weight_transfer_config={"backend": "banyan_subscription"}``. One thread at a time uses it.
    """

    subscription: Subscription
    """The ``banyan.Subscription`` of this process, which holds no weights."""

    def __init__(
        self,
        engine: Any,
        address: str,
        secret: str,
        *,
        workers: int = 1,
        name: str = "",
        tensors: Iterable[Sequence[Any]] | None = None,
        timeout: float = 300.0,
        join_timeout: float = 120.0,
        bytes_per_s: int = 0,
        max_staging_bytes: int = 0,
        verify: bool = False,
        verify_layout: bool | None = None,
    ) -> None:
        """Subscribe, and wait until the workers have the current version, whole.

        vLLM must run no requests meanwhile. ``engine``: an ``LLM`` of this process, or a client of
        another engine, such as ``HTTPVLLMWeightSyncClient``. ``address``, ``secret``, ``name``: of
        the publication. ``workers``: of all data-parallel replicas. ``tensors``: name, type and
        shape of each tensor of the trainers, as ``WeightPublication.tensors`` has them; None: those
        of the engine's folder. ``timeout``: seconds for the first version, and for each wait for
        another rank. ``join_timeout``: seconds until all workers have joined. ``bytes_per_s``:
        limit for each trainer rank; 0: none. ``max_staging_bytes``: limit for each worker; 0: none.
        ``verify``: a checksum of every box that changes. ``verify_layout``: as ``verify`` of
        BanyanTrainerInitInfo.

        Raises if the workers cannot follow: with the names of their parameters, or Timeout with the
        subscription's error if no version arrives. vLLM then keeps its weights.
        """
        from vllm import LLM  # which workers do not need

        self._client = _Offline(engine) if isinstance(engine, LLM) else engine
        self._timeout = timeout
        self._world: World | None = None
        unique_id = UniqueId()
        payload = {
            "unique_id": updates.id_text(unique_id),
            "world_size": 1 + workers,
            "timeout": timeout,
            "join_timeout": join_timeout,
            "tensors": None if tensors is None else [list(one) for one in tensors],
            "max_staging_bytes": max_staging_bytes,
            "verify_layout": verify_layout,
        }

        def subscribe() -> bool:
            """Return whether vLLM is in an update that another process has begun."""
            world = updates.join(unique_id, 0, 1 + workers, timeout=join_timeout)
            self._world, world.timeout = world, timeout + _MARGIN
            is_active = agree(world, lambda: b"")  # the workers have learned
            self.subscription = Subscription(
                None,
                None,
                world,
                address,
                secret,
                name=name,
                bytes_per_s=bytes_per_s,
                verify=verify,
            )
            agree(world, self._wait_for_the_first)
            _commit_first(world, self.subscription, _nothing)
            return any(is_active)

        try:
            is_active = self._run(
                subscribe, partial(self._client.init_weight_transfer_engine, payload)
            )
        except BaseException:
            self._leave("the engine's process does not subscribe", together=True)
            raise
        if not is_active:
            self._client.start_weight_update()
        self._client.finish_weight_update(weight_version=str(self.version))

    def _wait_for_the_first(self) -> bytes:
        self.subscription.wait(0, self._timeout)
        return b""

    def _run(self, mine: Callable[[], Any], call: Callable[[], Any]) -> Any:
        """Run this rank's part while vLLM's workers take part in ``call``.

        An error of the world counts before one of vLLM: it has the cause.
        """
        running = background(mine)
        try:
            call()
        except Exception as error:
            if self._world is None:  # nobody has joined
                raise
            wait([running], timeout=_GRACE)
            if not running.done():
                self._world.abort(f"vLLM: {error}")
            found = running.exception()
            if found is not None:
                raise found from error
            raise
        return running.result()

    @property
    def version(self) -> int:
        """The version with which the engine computes."""
        return self.subscription.version

    @property
    def staged(self) -> int:
        """The newest version that has arrived."""
        return self.subscription.staged

    def update(self, version: int = 0, timeout: float | None = None) -> int:
        """Let the engine compute with the newest version that all workers have staged.

        Return its number, which vLLM then reports as its weight version. vLLM must run no requests
        during this call, unless nothing is newer: then nothing is called. ``version``: wait at
        first until one at least as new is staged, at most ``timeout`` seconds (None: that of the
        subscription). The wait needs no pause if you call ``wait`` before.

        Raises Timeout with the subscription's last error if it does not arrive; vLLM keeps the old
        weights.
        """
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        while True:
            if version > self.staged:
                self.wait(version, max(0.0, deadline - time.monotonic()))
            if self.staged > self.version:
                self._update()
            if self.version >= version:
                return self.version
            time.sleep(_POLL)  # a worker is a moment behind

    def wait(self, version: int, timeout: float | None = None) -> int:
        """Wait until a version at least as new is staged, while the engine serves; return it.

        Raises Timeout, with the subscription's last error, after ``timeout`` seconds (None: that of
        the subscription).
        """
        return self.subscription.wait(version - 1, self._timeout if timeout is None else timeout)

    def check(self) -> None:
        """Raise the subscription's last error, if it is not connected because of one."""
        self.subscription.check()

    def _update(self) -> None:
        world = self._world
        assert world is not None
        world.check()
        self._client.start_weight_update()
        try:
            commit = partial(_commit, world, self.subscription, _nothing)
            self._run(commit, partial(self._client.update_weights, {}))
        except BaseException:
            with contextlib.suppress(Exception):  # one worker alone has ended the update itself
                self._client.finish_weight_update()
            raise
        self._client.finish_weight_update(weight_version=str(self.version))

    def _leave(self, reason: str, together: bool = False) -> None:
        if self._world is not None:
            updates.leave(self._world, reason, together=together)

    def close(self) -> None:
        """End the subscription. The engine goes on with the version that it has."""
        self._leave("the engine's process has ended the subscription")

    def __enter__(self) -> WeightSubscription:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


class _Offline:
    """The calls of an LLM, as vLLM's clients of servers have them."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._llm.init_weight_transfer_engine({"init_info": init_info})

    def start_weight_update(self) -> None:
        self._llm.start_weight_update()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._llm.update_weights({"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._llm.finish_weight_update(weight_version)


# ---- vLLM's workers ----


@dataclass(kw_only=True)
class SubscriptionInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """How a worker joins the process that drives the engine; see WeightSubscription."""

    unique_id: str = field(repr=False)
    world_size: int
    timeout: float
    join_timeout: float
    tensors: Sequence[Sequence[Any]] | None
    max_staging_bytes: int
    verify_layout: bool | None


class BanyanSubscriptionEngine(BanyanWorkerEngine):
    """Fetches versions of a publication in a worker of vLLM, and commits them with the others."""

    init_info_cls = SubscriptionInitInfo

    _subscription: Subscription | None = None

    def _learn_engine(self, init_info: SubscriptionInitInfo) -> bytes:
        """Learn where the trainers' tensors belong. Raise Unsupported if they cannot be fetched."""
        if self.vllm_config.quant_config is not None:
            raise Unsupported(
                f"vLLM's model is quantized ({self.model_config.quantization}), and a publication "
                'has the trainers\' formats: use the backend "banyan"'
            )
        if init_info.tensors is None:
            held: Iterable[Any] = Model(self.model_config.model).tensors
            found = [updates.Meta(one.name, one.dtype, tuple(one.shape)) for one in held]
        else:
            found = [
                updates.Meta(name, dtype, tuple(shape)) for name, dtype, shape in init_info.tensors
            ]
        self._learn(init_info.verify_layout, found)
        return b"1" if self._is_active else b""

    def _join(self, init_info: Any) -> None:
        world = self._world = self._join_world(init_info, 1)
        world.timeout = init_info.timeout + _MARGIN
        agree(world, partial(self._learn_engine, init_info))
        assert self._memory is not None
        tensors = self._memory.tensors()
        before = Before(tensors, tensors.keys() - self._memory.buffered)
        try:
            self._subscription = follow(
                self._memory.layout,
                tensors,
                world,
                self.device,
                max_staging_bytes=init_info.max_staging_bytes,
            )
            agree(world, lambda: b"")  # the engine's process has seen the first version
            self._take(_commit_first)
        except Exception as error:
            if self.weights.torn is None:
                self._end_subscription(str(error), together=True)
                before.restore()
            raise
        finally:
            self._guard.set(self.weights.torn is not None)

    def _take(self, commit: Callable[..., int]) -> None:
        """Commit a version on all workers, and let it count when all have processed it."""
        assert self._world is not None and self._subscription is not None
        before = self._subscription.version
        settle(self.device)
        try:
            version = commit(self._world, self._subscription, self._process)
        except Exception as error:
            if self._subscription.version != before:
                self.weights.torn = f"version {self._subscription.version} failed ({error})"
            raise
        if version != before:
            self.weights.version, self.weights.torn = version, None

    def _process(self, version: int) -> bytes:
        """Process the layers that vLLM repacks, from the buffers that hold a version."""
        assert self._memory is not None
        self.weights.torn = f"version {version} is being processed"
        with set_current_vllm_config(self.vllm_config):
            self._finish(list(self._memory.tensors()))
        return b""

    def _receive(self) -> None:
        """Commit the newest version that all workers have staged. Collective."""
        self._take(_commit)

    def _end_subscription(self, reason: str, together: bool) -> None:
        """End this worker's thread, which would else wait for rank 0's.

        ``together``: wait a little until the others have the error because of which they leave.
        """
        if self._subscription is None or self._world is None:
            return
        if together:
            with contextlib.suppress(Error):
                self._world.timeout = _GRACE
                self._world.barrier()
        with contextlib.suppress(Error):
            self._world.abort(reason)
        self._subscription.close()
        self._subscription = None

    def _leave(self, reason: str, together: bool = False) -> None:
        self._end_subscription(reason, together)
        super()._leave(reason, together)
