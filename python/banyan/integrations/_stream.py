"""Streams of named tensors from trainers to engines, in buckets of bounded size.

Checkpoint engines of verl and NeMo-RL are adapters of ``WeightStream``. All ranks of a world take
part; the first ones send. Each sender iterates over the same names in the same order, with whole
tensors or DTensors. Banyan's planner divides the sending of whole tensors among the senders. A
bucket is planned when it first occurs, and its names, types and shapes travel then. Later updates
send a digest, and run the plan again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import mmap
import struct
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from .. import (
    Box,
    CopyService,
    Error,
    Layout,
    Mismatch,
    PeerLost,
    ReshardPlan,
    Tensors,
    Timeout,
    UniqueId,
    World,
)
from ._updates import Part, join, state_part

Weights: TypeAlias = Iterable[tuple[str, Tensor]] | AsyncIterable[tuple[str, Tensor]]
#: Return the box of a tensor that this rank receives, by its name and shape. None: nothing of it.
Select: TypeAlias = Callable[[str, Sequence[int]], Box | None]

#: Bytes to which tensors are aligned in a bucket.
_ALIGNMENT = 256
#: Message of a rank about a bucket: version, is it the last one, digest of names, types and
#: shapes, digest of what this rank has of them. From rank 0 a new header follows.
_MESSAGE = struct.Struct("<q?16s16s")
_NO_VERSION = -1
#: Seconds in which a sender whose weights fail waits for the report that a peer has died.
_LOSS_SECONDS = 0.5


class _Tensor(NamedTuple):
    """A tensor of a bucket, as all ranks know it."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class _Prepared(NamedTuple):
    """A bucket that was planned."""

    plan: ReshardPlan
    layout: Layout | None  # of what this rank sends or receives
    boxes: list[tuple[_Tensor, tuple[int, ...]]]  # received tensors, and their local shapes


class _Destination(NamedTuple):
    """The place of a bucket at a receiver."""

    buffer: Tensor
    set: Tensors | None
    views: list[tuple[str, Tensor]]


def _digest(value: Any) -> bytes:
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=16).digest()


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _nbytes(dtype: torch.dtype, shape: Sequence[int]) -> int:
    return _aligned(math.prod(shape) * dtype.itemsize)


def _views(
    buffer: Tensor, tensors: Iterable[tuple[torch.dtype, Sequence[int]]]
) -> Iterator[Tensor]:
    """Divide a buffer into tensors."""
    start = 0
    for dtype, shape in tensors:
        end = start + math.prod(shape) * dtype.itemsize
        yield buffer[start:end].view(dtype).view(tuple(shape))
        start = _aligned(end)


async def _each(weights: Weights) -> AsyncIterator[tuple[str, Tensor]]:
    if isinstance(weights, AsyncIterable):
        async for one in weights:
            yield one
    else:
        for one in weights:
            yield one


async def _buckets(
    weights: Weights, limit: int
) -> AsyncIterator[tuple[list[tuple[str, Tensor]], bool]]:
    """Divide weights into buckets of up to ``limit`` bytes. A larger tensor is a bucket alone.

    Yield each with True if it is the last one, which may be empty.
    """
    bucket: list[tuple[str, Tensor]] = []
    size = 0
    async for name, tensor in _each(weights):
        nbytes = _nbytes(tensor.dtype, tensor.shape)
        if bucket and size + nbytes > limit:
            yield bucket, False
            bucket, size = [], 0
        bucket.append((name, tensor.detach()))
        size += nbytes
    yield bucket, True


async def _loss(world: World) -> None:
    """Wait a little until the world reports a dead peer, after which collectives of trainers fail.

    An earlier abort would hide the name of the peer from the other ranks.
    """
    deadline = time.monotonic() + _LOSS_SECONDS
    with contextlib.suppress(Error):
        while time.monotonic() < deadline:
            world.check()
            await asyncio.sleep(0.01)


class WeightStream:
    """The weights of an update, from the first ``senders`` ranks of a world to the others.

    ``bucket_bytes``: bytes of a bucket. A receiver has two of them, and on a GPU a sender, too. A
    tensor that is larger needs as much memory as it has. ``device``: of the buckets. ``timeout``:
    seconds that a wait may last without progress.
    """

    def __init__(
        self,
        bucket_bytes: int,
        *,
        device: torch.device | str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Make a stream without a group. Local."""
        if bucket_bytes < 1:
            raise ValueError(f"buckets of {bucket_bytes} bytes: at least 1 is needed")
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(device)
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.bucket_bytes = bucket_bytes
        self.timeout = timeout
        self.world: World | None = None
        self.senders = 0
        #: Plans that were made, and buckets that were moved.
        self.planned = self.runs = 0
        #: True on a sender that has joined and has not sent since. Receivers may wait for it.
        self._is_due = False
        self._failure = "no group was initialized"
        self._unique_id: UniqueId | None = None
        self._token: tuple[str, int, int, int] | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._stream: torch.cuda.Stream | None = None
        self._forget()

    def _forget(self) -> None:
        self._service: CopyService | None = None
        self._headers: dict[bytes, list[_Tensor]] = {}
        self._plans: dict[bytes, _Prepared] = {}
        self._destinations: dict[bytes, _Destination] = {}
        self._buffers: list[Tensor | None] = [None, None]
        self._largest = 0  # bytes of the largest bucket
        self._used: set[bytes] = set()

    # ---- the world ----

    def describe(self, *, leads: bool) -> dict[str, Any]:
        """Return what all ranks need of this one for ``topology``. ``leads``: it may be rank 0.

        If this sender has not sent since it joined, its last update failed before. The other ranks,
        which may wait for it, raise now.
        """
        if self._is_due:
            self._leave("it failed before it sent its weights")
        elif self.world is not None:
            try:
                self.world.check()
            except Exception:
                self._leave()
        if leads and self._unique_id is None:
            self._unique_id = UniqueId()
        unique_id = None if self._unique_id is None else bytes(self._unique_id)
        return {"unique_id": unique_id, "token": self._token}

    @staticmethod
    def topology(metadata: Sequence[dict[str, Any]], senders: int) -> tuple[bytes, bool]:
        """Return the unique id of the world, and True if all ranks can keep the one they have."""
        unique_id = metadata[0]["unique_id"]
        if unique_id is None:
            raise ValueError("rank 0 of the trainers has no unique id")
        job = (metadata[0]["token"] or ("",))[0]
        expected = [(job, rank, len(metadata), senders) for rank in range(len(metadata))]
        tokens = [one["token"] and tuple(one["token"]) for one in metadata]
        return unique_id, tokens == expected

    def join(self, rank: int, size: int, senders: int, unique_id: bytes, keep: bool) -> None:
        """Open the world, unless it is kept. Collective."""
        self._is_due = rank < senders
        if keep:
            return
        if not 0 < senders < size:
            raise ValueError(f"{senders} trainers of {size} ranks: both sides need ranks")
        self._leave()
        self.world = join(unique_id, rank, size, timeout=self.timeout)
        self._unique_id = None  # the next world needs another one
        self.senders = senders
        self._token = (hashlib.sha256(unique_id).hexdigest(), rank, size, senders)
        self._thread = ThreadPoolExecutor(1, "banyan-stream")

    def _leave(self, reason: str = "this rank joins another world") -> None:
        """End the world. The other ranks may have ended theirs, or have died."""
        if self.world is not None:
            self.world.abort(reason)
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        self._forget()
        self._token = None
        if self.world is not None:
            world, self.world = self.world, None
            with contextlib.suppress(Exception):
                world.close()

    def release(self) -> None:
        """Free the buckets. The plans stay."""
        self._destinations.clear()
        for one in self._plans.values():
            one.plan.release()
        self._buffers = [None, None]
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    # ---- updates ----

    async def send(self, weights: Weights, version: int | None = None) -> None:
        """Send weights, at each sender the same names in the same order. Collective.

        While a bucket is sent, the next one is taken from ``weights``. A tensor is kept until its
        bucket has been sent.
        """
        step: Future[None] | None = None
        world = self.world
        try:
            self._require(sends=True)
            self._is_due = False
            number = 0
            async for bucket, is_last in _buckets(weights, self.bucket_bytes):
                taken = self._take(bucket, number)
                del bucket
                if step is not None:
                    await asyncio.wrap_future(step)
                step = self._submit(self._send, *taken, is_last, version)
                del taken
                number += 1
            assert step is not None
            await asyncio.wrap_future(step)
            self._prune()
        except BaseException as error:
            if isinstance(error, RuntimeError) and world is not None:
                await _loss(world)
            self._fail(error, step, world)
            raise

    async def receive(
        self, version: int | None = None, select: Select | None = None
    ) -> AsyncIterator[list[tuple[str, Tensor]]]:
        """Yield the tensors of each bucket. Collective.

        Their memory is valid until the next bucket is asked for. It arrives meanwhile. ``select``
        chooses what this rank receives; its result must not change.
        """
        step: Future[tuple[list[tuple[str, Tensor]], bool]] | None = None
        world = self.world
        try:
            self._require(sends=False)
            number, is_last = 0, False
            step = self._submit(self._receive, 0, version, select)
            while not is_last:
                tensors, is_last = await asyncio.wrap_future(step)
                if is_last:
                    self._prune()
                    break
                number += 1
                self._synchronize()  # the caller has read this buffer
                step = self._submit(self._receive, number, version, select)
                if tensors:
                    yield tensors
        except BaseException as error:
            self._fail(error, step, world)
            raise
        if tensors:
            yield tensors

    def _require(self, sends: bool) -> None:
        if self.world is None or self._thread is None:
            raise ValueError(f"no world is open: {self._failure}")
        if sends != (self.world.rank < self.senders):
            raise ValueError(
                f"rank {self.world.rank} calls {'send' if sends else 'receive'}, but ranks 0 to "
                f"{self.senders - 1} send and ranks {self.senders} to {self.world.size - 1} receive"
            )

    def _submit(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run a function in the thread that drives the world."""

        held = [args]  # its tensors are free when the step is done

        def call() -> Any:
            if self.device.type == "cpu":
                return function(*held.pop())
            with torch.cuda.device(self.device):
                return function(*held.pop())

        del args

        assert self._thread is not None
        return self._thread.submit(call)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def _fail(self, error: BaseException, step: Future[Any] | None, world: World | None) -> None:
        """End the world after an error at this rank, so that no other rank waits for it.

        ``world``: that of the call, which this rank may have left since for another one.
        """
        if self.world is not world or world is None:
            return
        reason, roles = f"{type(error).__name__}: {error}", ""
        if isinstance(error, (GeneratorExit, asyncio.CancelledError)):
            reason = "it stopped in the middle of an update"
        world.abort(reason)
        if step is not None:
            wait([step])
        if isinstance(error, (PeerLost, Timeout)):
            roles = (
                f" (ranks 0 to {self.senders - 1} send, ranks {self.senders} to "
                f"{world.size - 1} receive)"
            )
            error.args = (f"{error}{roles}",)
        self._leave()
        self._failure = f"the last update failed ({reason}{roles})"

    def _prune(self) -> None:
        """Forget the buckets that this update did not have."""
        for key in self._plans.keys() - self._used:
            self._plans.pop(key).plan.close()
            self._destinations.pop(key, None)
        digests = {key[:16] for key in self._plans}
        for digest in self._headers.keys() - digests:
            del self._headers[digest]
        self._used = set()

    def _buffer(self, number: int, nbytes: int) -> Tensor:
        """Return the memory of a bucket, which alternates between two buffers."""
        kept = self._buffers[number % 2]
        if kept is not None and kept.numel() >= nbytes:
            return kept
        if nbytes > self.bucket_bytes:
            return self._allocate(nbytes)
        self._largest = max(self._largest, nbytes, 1)
        buffer = self._buffers[number % 2] = self._allocate(self._largest)
        return buffer

    def _allocate(self, nbytes: int) -> Tensor:
        if self.device.type == "cuda":
            return torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        # Faults of small pages would take longer than the copies.
        memory = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        return torch.frombuffer(memory, dtype=torch.uint8)

    # ---- senders ----

    def _take(
        self, bucket: list[tuple[str, Tensor]], number: int
    ) -> tuple[list[_Tensor], bytes, Part, Any]:
        """Return a bucket's header, a digest of its placements, this rank's part, and an event."""
        assert self.world is not None
        header = [_Tensor(name, str(t.dtype)[6:], tuple(t.shape)) for name, t in bucket]
        if len({one.name for one in header}) < len(header):
            twice = next(n for n, _ in bucket if [one.name for one in header].count(n) > 1)
            raise ValueError(f'two weights have the name "{twice}"')
        state = dict(bucket)
        placed = [
            (str(t.device_mesh.mesh.tolist()), repr(t.placements))
            if isinstance(t, DTensor)
            else None
            for t in state.values()
        ]
        layout, held = state_part(state, ranks=range(self.senders), rank=self.world.rank)
        if self.device.type == "cpu":
            on_host = {name: tensor.cpu() for name, tensor in held.items()}
            return header, _digest(placed), Part(layout, on_host), None
        shapes = [(t.dtype, t.shape) for t in held.values()]
        buffer = self._buffer(number, sum(_nbytes(*one) for one in shapes))
        staged = dict(zip(held, _views(buffer, shapes), strict=True))
        for name, view in staged.items():
            view.copy_(held[name])
        event = torch.cuda.current_stream(self.device).record_event()
        return header, _digest(placed), Part(layout, staged), event

    def _send(
        self,
        header: list[_Tensor],
        placed: bytes,
        part: Part,
        event: Any,
        is_last: bool,
        version: int | None,
    ) -> None:
        assert self.world is not None
        digest = _digest(header)
        text = b""
        if self.world.rank == 0 and digest not in self._headers:
            text = json.dumps(header).encode()
        key, _, _ = self._agree(digest, placed, is_last, version, text)
        if not header:
            return
        found = self._plans.get(key)
        if found is None:
            found = self._plan(key, part.layout, None, [])
        assert found.layout is not None
        self._run(found, Tensors(found.layout, part.tensors), None, event)
        if self.device.type == "cpu":
            found.plan.release()  # the trainer may free these tensors

    # ---- receivers ----

    def _receive(
        self, number: int, version: int | None, select: Select | None
    ) -> tuple[list[tuple[str, Tensor]], bool]:
        key, header, is_last = self._agree(bytes(16), bytes(16), False, version, b"")
        if not header:
            return [], is_last
        found = self._plans.get(key)
        if found is None:
            found = self._plan(key, None, *self._destination_layout(header, select))
        nbytes = sum(_nbytes(getattr(torch, one.dtype), shape) for one, shape in found.boxes)
        buffer = self._buffer(number, nbytes)
        place = self._destinations.get(key)
        if place is None or place.buffer is not buffer:
            shapes = [(getattr(torch, one.dtype), shape) for one, shape in found.boxes]
            names = [one.name for one, _ in found.boxes]
            views = list(zip(names, _views(buffer, shapes), strict=True))
            filled = None if found.layout is None else Tensors(found.layout, dict(views))
            place = _Destination(buffer, filled, views)
            if nbytes <= self.bucket_bytes:
                self._destinations[key] = place
        self._run(found, None, place.set, None)
        if nbytes > self.bucket_bytes:
            found.plan.release()
        return place.views, is_last

    def _destination_layout(
        self, header: list[_Tensor], select: Select | None
    ) -> tuple[Layout | None, list[tuple[_Tensor, tuple[int, ...]]]]:
        layout = Layout()
        boxes = []
        for one in header:
            box = Box([0] * len(one.shape), one.shape)
            if select is not None:
                chosen = select(one.name, one.shape)
                if chosen is None:
                    continue
                box = chosen
            tensor = layout.add_tensor(one.name, one.dtype, box.extent)
            layout.add_piece(tensor, one.name, one.shape, box)
            boxes.append((one, tuple(box.extent)))
        return (layout if boxes else None), boxes

    # ---- both ----

    def _agree(
        self, digest: bytes, placed: bytes, is_last: bool, version: int | None, text: bytes
    ) -> tuple[bytes, list[_Tensor], bool]:
        """Return the key of the next bucket, its header, and True if it is the last one."""
        assert self.world is not None
        number = _NO_VERSION if version is None else version
        words = self.world.gather(_MESSAGE.pack(number, is_last, digest, placed) + text)
        told = [_MESSAGE.unpack_from(one) for one in words]
        difference = self._difference(told)
        if difference is not None:
            with contextlib.suppress(Exception):
                self.world.barrier()  # all ranks have seen it, and raise the same
            raise Mismatch(difference)
        digest, is_last = told[0][2], told[0][1]
        if len(words[0]) > _MESSAGE.size:
            read = json.loads(words[0][_MESSAGE.size :])
            self._headers[digest] = [_Tensor(n, d, tuple(shape)) for n, d, shape in read]
        key = (
            digest
            + hashlib.blake2b(
                b"".join(one[3] for one in told[: self.senders]), digest_size=16
            ).digest()
        )
        self._used.add(key)
        return key, self._headers[digest], is_last

    def _difference(self, told: Sequence[tuple[int, bool, bytes, bytes]]) -> str | None:
        """Say in which way the messages of the ranks contradict each other."""
        versions: dict[int, int] = {}
        for rank, one in enumerate(told):
            if one[0] != _NO_VERSION:
                versions.setdefault(one[0], rank)
        if len(versions) > 1:
            (first, rank), (second, other) = list(versions.items())[:2]
            return f"rank {rank} updates to version {first}, but rank {other} to {second}"
        for rank, one in enumerate(told[: self.senders]):
            if one[1:3] != told[0][1:3]:
                return (
                    f"rank {rank} has other weights than rank 0 in bucket {len(self._used) + 1}: "
                    "all trainers send the same names, types and shapes in the same order"
                )
        return None

    def _plan(
        self,
        key: bytes,
        source: Layout | None,
        destination: Layout | None,
        boxes: list[tuple[_Tensor, tuple[int, ...]]],
    ) -> _Prepared:
        assert self.world is not None
        if self._service is None:
            self._service = CopyService(
                self.world,
                device=None if self.device.type == "cpu" else self.device,
                progress=False,
                timeout=self.timeout,
            )
        plan = ReshardPlan(source, destination, self.world, timeout=self.timeout)
        self.planned += 1
        self._plans[key] = _Prepared(plan, destination if source is None else source, boxes)
        return self._plans[key]

    def _run(
        self, found: _Prepared, source: Tensors | None, destination: Tensors | None, event: Any
    ) -> None:
        assert self._service is not None
        if self.device.type == "cpu":
            found.plan.execute(source, destination, self._service)
        else:
            if self._stream is None:
                self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            if event is not None:
                self._stream.wait_event(event)
            found.plan.execute(source, destination, self._service, stream=self._stream)
            self._stream.synchronize()
            self._service.check()
        self.runs += 1


def is_first_process() -> bool:
    """True in rank 0 of torch.distributed, and without it."""
    return not dist.is_initialized() or dist.get_rank() == 0
