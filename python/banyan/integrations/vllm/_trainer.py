"""The trainers' side of vLLM's weight-transfer engine "banyan"."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from vllm.distributed.weight_transfer.base import TrainerInitInfo, TrainerWeightTransferEngine

from ... import UniqueId, World
from .. import _updates as updates
from ._source import reader_of
from ._threads import background

#: Seconds that a failed call of vLLM, and one of the world, wait for each other's error.
_GRACE = 5.0


@dataclass(kw_only=True)
class BanyanTrainerInitInfo(TrainerInitInfo):  # type: ignore[misc]
    """How trainers join the workers of vLLM. ``rank``: of this trainer, from 0."""

    backend: ClassVar[str] = "banyan"

    world_size: int
    """Trainer ranks and all workers of vLLM: tensor x pipeline x data parallel."""
    num_trainer_ranks: int = 1
    """Trainer ranks. Each has its own shards."""
    unique_id: str | None = field(default=None, repr=False)
    """``bytes(banyan.UniqueId()).hex()`` of a process that lives until all have joined, the same on
    all ranks. None: rank 0 makes one, and sends it to the others through the default process
    group. It reaches the workers through the client; who reads it can join."""
    timeout: float = 300.0
    """Seconds that a wait may last without progress, of trainers and workers."""
    join_timeout: float = 120.0
    """Seconds until all trainers and workers have joined."""
    cast: bool = False
    """Allow rounding to the type of the engine's parameters, such as float32 to bfloat16."""
    checksums: bool = False
    """Verify every transfer."""
    group_bytes: int = 2 << 30
    """Move groups of layers one after another, each of at most so many bytes of the whole model.
    Layers that vLLM repacks need buffers for one group alone. 0: all at once."""
    verify: bool | None = None
    """Workers verify the layouts that they learn with random values, which takes host memory for
    their parameters, once. None: if half of the free host memory is enough for all workers."""
    node: str | None = None
    """Ranks with equal names share memory; None: those of one boot. The workers' is set by
    BANYAN_NODE."""

    def __post_init__(self) -> None:
        """Reject ranks that cannot form a world."""
        if not 0 < self.num_trainer_ranks < self.world_size:
            raise ValueError(
                f"num_trainer_ranks: {self.num_trainer_ranks} of a world_size of {self.world_size} "
                "leave no worker, or are no trainer"
            )
        if not 0 <= self.rank < self.num_trainer_ranks:
            raise ValueError(f"rank: {self.rank} is not below {self.num_trainer_ranks} trainers")


class BanyanTrainerEngine(TrainerWeightTransferEngine[BanyanTrainerInitInfo]):  # type: ignore[misc]
    """Sends the shards of this trainer rank to the workers of one vLLM engine.

    Make it with ``trainer_init`` on every trainer rank, where ``send_weights`` and ``shutdown`` are
    called, too. One thread at a time drives the engines of a process.
    """

    init_info_cls = BanyanTrainerInitInfo

    def __init__(
        self, world: World, *, client: Any, source: Any, init_info: BanyanTrainerInitInfo
    ) -> None:
        """Use ``trainer_init``."""
        super().__init__(client=client, source=source, is_sender=init_info.is_sender)
        self.world = world
        self._rank, self._timeout = init_info.rank, init_info.timeout
        self._updates: updates.Updates | None = None
        self._reader: Any = None
        self._stays_active = False  # vLLM is still in an update that failed

    @classmethod
    def trainer_init(
        cls, init_info: BanyanTrainerInitInfo, *, client: Any, source: Any = None
    ) -> BanyanTrainerEngine:
        """Join the workers, and plan. Collective over the trainers.

        ``client``: used on rank 0 alone; its ``init_weight_transfer_engine`` lets the workers join.
        ``source``: a ShardSource or any WeightSource of vLLM. Of tensors that it would gather, each
        rank sends its shard; a source that gathers in another way is refused. Nothing moves. The
        names, shapes and types of trainers and vLLM are compared: all trainers and workers raise if
        they differ, or if the engine's loader cannot be followed.
        """
        if source is None:
            raise ValueError('the engine "banyan" needs a source')
        reader = reader_of(source)
        part, device, unique_id, text = _begin(init_info, reader)
        call = None
        if init_info.is_sender:
            payload = {
                "unique_id": text,
                "num_trainer_ranks": init_info.num_trainer_ranks,
                "world_size": init_info.world_size,
                "timeout": init_info.timeout,
                "join_timeout": init_info.join_timeout,
                "cast": init_info.cast,
                "checksums": init_info.checksums,
                "group_bytes": init_info.group_bytes,
                "verify": init_info.verify,
            }
            call = background(client.init_weight_transfer_engine, payload)
        joining = background(
            updates.join,
            text,
            init_info.rank,
            init_info.world_size,
            node=init_info.node,
            timeout=init_info.join_timeout,
        )
        wait([one for one in (call, joining) if one is not None], return_when=FIRST_COMPLETED)
        if call is not None and call.done() and call.exception() and not joining.done():
            raise RuntimeError("vLLM's workers did not join") from call.exception()
        world = joining.result()
        world.timeout = init_info.timeout
        engine = cls(world, client=client, source=source, init_info=init_info)
        engine._reader = reader
        try:
            with engine._call(call):
                engine._updates = updates.Updates(
                    world,
                    part.layout,
                    None,
                    cast=init_info.cast,
                    group_bytes=init_info.group_bytes,
                    device=device,
                    checksums=init_info.checksums,
                )
                told = [json.loads(one) for one in world.gather(b"")[init_info.num_trainer_ranks :]]
        except BaseException:
            updates.leave(world, f"trainer {init_info.rank} did not join", together=True)
            raise
        del unique_id  # all have joined
        engine._stays_active = any(stays for _, stays in told)
        if engine.is_sender and any(is_active for is_active, _ in told):
            client.finish_weight_update()  # which a trainer that is gone had started
        return engine

    @contextlib.contextmanager
    def _call(self, call: Future[Any] | None) -> Iterator[None]:
        """Run collective calls of the world while vLLM's workers take part in them in ``call``.

        If the call of vLLM fails and the workers do not say so themselves, end the world, so that
        no trainer waits for them.
        """
        ended = threading.Event()

        def watch(done: Future[Any]) -> None:
            if done.exception() is not None and not ended.wait(_GRACE):
                self.world.abort(f"vLLM: {done.exception()}")

        if call is not None:
            call.add_done_callback(watch)
        try:
            yield
        except BaseException:
            ended.set()
            if call is not None:
                wait([call], timeout=_GRACE)
            raise
        ended.set()
        if call is not None:
            call.result(self._timeout)

    def send_weights(self, version: int | None = None) -> int:
        """Move this version of the source's shards to the workers, and return its number.

        Collective over the trainers. ``version``: newer than the engine's, the same on all trainer
        ranks; None: one more than the engine's. vLLM reports it as its weight version. vLLM must
        run no requests meanwhile, as for its other engines: pause it, or call this between two
        calls of ``generate``.

        If a rank fails before anything moves, all ranks raise, and vLLM keeps the old weights.
        After a later failure vLLM refuses to compute until an update has arrived whole. If a
        trainer or a worker died, or a call of vLLM failed, the world has ended: make a new engine.
        """
        if self._updates is None:
            raise RuntimeError("the engine was shut down")
        self._updates.check()
        call = None
        if self.is_sender:
            try:
                self.client.start_weight_update()
            except BaseException as error:
                self.world.abort(f"vLLM did not start an update: {error}")
                raise
            call = background(self.client.update_weights, {})
        try:
            with self._call(call):
                sent = self._updates.update(self._reader.tensors, version=version)
        except BaseException:
            if self.is_sender and self._stays_active:
                with contextlib.suppress(Exception):
                    self.client.finish_weight_update()
            raise
        if self.is_sender:
            self.client.finish_weight_update(weight_version=str(sent))
        return sent

    def shutdown(self) -> None:
        """Leave the workers, and free the plan. Local; the other ranks' next calls raise."""
        if self._updates is not None:
            self._updates.close()
            self._updates = None
        updates.leave(self.world, f"trainer {self._rank} shut its engine down")


def _device(part: updates.Part) -> Any:
    """Return the device of a part's tensors; None: the host."""
    devices = {one.device for one in part.tensors.values()}
    if len(devices) > 1:
        raise ValueError(
            f"the tensors of a trainer are on several devices: {sorted(map(str, devices))}"
        )
    if not devices and torch.cuda.is_available():  # as the other ranks' tensors
        return torch.device("cuda", torch.cuda.current_device())
    return next((one for one in devices if one.type != "cpu"), None)


def _begin(
    init_info: BanyanTrainerInitInfo, reader: Any
) -> tuple[updates.Part, Any, UniqueId | None, str]:
    """Return this rank's part, its device, and the id of the world to join, also as text.

    The rank that made the id keeps it until all have joined. Collective if no id is given: an
    error of one trainer is raised on all.
    """
    made = UniqueId() if init_info.unique_id is None and init_info.is_sender else None
    count = init_info.num_trainer_ranks
    is_together = init_info.unique_id is None and count > 1
    if is_together and (not dist.is_initialized() or dist.get_world_size() != count):
        raise ValueError(
            f"{count} trainers have no default process group of their own: give unique_id"
        )
    failure: Exception | None = None
    try:
        part = reader.part(init_info.rank)
        device = _device(part)
    except Exception as error:
        failure = error
    text = init_info.unique_id if made is None else updates.id_text(made)
    if is_together:
        told: list[Any] = [None] * count
        dist.all_gather_object(told, (text, failure and f"{type(failure).__name__}: {failure}"))
        text = told[0][0]
        failed = next((rank for rank, one in enumerate(told) if one[1]), None)
        if failed is not None and failure is None:
            raise RuntimeError(f"trainer {failed} cannot send: {told[failed][1]}")
    if failure is not None:
        raise failure
    assert text is not None
    return part, device, made, text
