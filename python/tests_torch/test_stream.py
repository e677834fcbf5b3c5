"""Streams of weights between trainers and engines: values, plans that are kept, and failures."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import unittest
import weakref
from collections.abc import Iterator
from typing import Any

from groups import DEVICE, Failed, banyan, dist, run, seed, torch
from streams import (
    Weight,
    gathered,
    generate,
    is_equal,
    meshes,
    message_of,
    random_weights,
    require_equal,
    value,
)

from banyan.integrations._stream import WeightStream


def connect(stream: WeightStream, senders: int) -> bool:
    """Join the stream's world as a driver would arrange it. True: the world was kept."""
    rank = dist.get_rank()
    metadata = gathered(stream.describe(leads=rank == 0))
    unique_id, keep = WeightStream.topology(metadata, senders)
    stream.join(rank, len(metadata), senders, unique_id, keep)
    return keep


async def take(
    stream: WeightStream, version: int | None, select: Any = None
) -> list[tuple[str, Any]]:
    """Return copies of everything that arrives."""
    found = []
    async for bucket in stream.receive(version, select):
        found += [(name, tensor.clone()) for name, tensor in bucket]
    return found


def update(stream: WeightStream, weights: list[Weight], version: int, mesh: Any) -> None:
    """Move one version, and compare it at the receivers, whose buckets are poisoned before."""
    for buffer in stream._buffers:
        if buffer is not None:
            buffer.fill_(0xAB)
    if dist.get_rank() < stream.senders:
        asyncio.run(stream.send(generate(weights, version, mesh), version))
    else:
        require_equal(asyncio.run(take(stream, version)), weights, version)


def case(rank: int, number: int, senders: int, sharded: bool, limit: int) -> None:
    mesh = meshes(senders)
    weights = random_weights(number, 25, senders, sharded)
    stream = WeightStream(limit, device=DEVICE, timeout=30)
    planned = []
    for version in (1, 2, 3):
        assert connect(stream, senders) == (version > 1)
        update(stream, weights, version, mesh)
        planned.append(stream.planned)
        if version == 2:
            stream.release()
    assert planned[0] == planned[2] > 0, planned
    assert stream.runs == 3 * planned[0]
    others = random_weights(number + 1, 5, senders, sharded)
    update(stream, others, 4, mesh)
    update(stream, weights, 5, mesh)
    assert stream.planned > planned[0]  # the plans of the first weights were forgotten
    assert len(stream._plans) == planned[0]


def moved_shards(rank: int) -> None:
    """Shards that lie elsewhere are planned again, though names and shapes are the same."""
    from torch.distributed.tensor import Shard

    mesh = meshes(2)
    stream = WeightStream(1 << 20, device=DEVICE, timeout=30)
    connect(stream, 2)
    for version, dim in ((1, 0), (2, 1), (3, 1)):
        update(stream, [("w", torch.float32, (7, 5), [Shard(dim)])], version, mesh)
    assert stream.planned == 2


def few_are_alive(rank: int) -> None:
    """A trainer keeps two buckets and one tensor; a receiver's buckets do not grow."""
    count, shape, limit = 40, (64, 64), 4 * 64 * 64 * 4
    weights: list[Weight] = [(f"w.{i}", torch.float32, shape, None) for i in range(count)]
    alive = most = 0

    def freed() -> None:
        nonlocal alive
        alive -= 1

    def watched() -> Iterator[tuple[str, Any]]:
        nonlocal alive, most
        for name, tensor in generate(weights, 1, None):
            memory = tensor.cpu().numpy().copy()  # its memory lives as long as this array
            weakref.finalize(memory, freed)
            alive += 1
            most = max(most, alive)
            tensor = torch.from_numpy(memory).to(DEVICE)
            del memory
            yield name, tensor
            del tensor

    stream = WeightStream(limit, device=DEVICE, timeout=30)
    connect(stream, 2)
    if rank < 2:
        asyncio.run(stream.send(watched(), 1))
        if DEVICE == "cpu":  # one bucket on its way, the next one, and the tensor after it
            assert most == 9, most
    else:
        require_equal(asyncio.run(take(stream, 1)), weights, 1)
    assert sum(b.numel() for b in stream._buffers if b is not None) <= 2 * limit


def failures(rank: int) -> None:
    weights: list[Weight] = [(f"w.{i}", torch.float32, (100,), None) for i in range(10)]
    stream = WeightStream(1100, device=DEVICE, timeout=20)

    def fails(kind: type[BaseException], sent: Any, received: Any) -> str:
        call = sent if rank < 2 else received
        assert not connect(stream, 2)  # each failure ends the world
        dist.barrier()
        text = message_of(lambda: asyncio.run(call()), kind)
        later = message_of(lambda: asyncio.run(call()), ValueError)
        assert later.startswith("no world is open: the last update failed"), later
        assert text in later or "stopped in the middle" in later, later
        return text

    async def receive(version: int = 1) -> None:
        await take(stream, version)

    async def send(version: int = 1) -> None:
        named = weights if rank == 0 else [*weights[:5], ("x", torch.float32, (100,), None)]
        await stream.send(generate(named, 1, None), version)

    text = fails(banyan.Mismatch, send, receive)
    assert "rank 1 has other weights than rank 0 in bucket 3" in text, text

    async def send_newer() -> None:
        await stream.send(generate(weights, 1, None), 7)

    text = fails(banyan.Mismatch, send_newer, receive)
    assert text == "rank 0 updates to version 7, but rank 2 to 1", text

    def broken() -> Iterator[tuple[str, Any]]:
        yield from generate(weights[:6], 1, None)
        raise RuntimeError("the optimizer is on fire")

    async def send_broken() -> None:
        await stream.send(broken() if rank == 1 else generate(weights, 1, None), 1)

    text = fails(RuntimeError if rank == 1 else banyan.Aborted, send_broken, receive)
    assert "the optimizer is on fire" in text and (rank == 1 or "rank 1" in text), text

    async def receive_some() -> None:
        async for _ in stream.receive(1):
            if rank == 3:
                raise RuntimeError("the loader refuses")

    async def send_all() -> None:
        await stream.send(generate(weights, 1, None), 1)

    text = fails(RuntimeError if rank == 3 else banyan.Aborted, send_all, receive_some)
    wanted = "the loader refuses" if rank == 3 else "rank 3 aborted: it stopped in the middle of an"
    assert wanted in text, text

    text = fails(ValueError if rank < 2 else banyan.Aborted, receive, receive)
    assert f"rank {rank if rank < 2 else ''}" in text and "calls receive" in text, text

    connect(stream, 2)  # and all is well again
    update(stream, weights, 2, None)


def fails_early(rank: int) -> None:
    """A trainer fails before it sends. The others wait until it prepares the next update."""
    weights: list[Weight] = [("w", torch.float32, (100,), None)]
    stream = WeightStream(1100, device=DEVICE, timeout=60)
    connect(stream, 2)
    update(stream, weights, 1, None)
    connect(stream, 2)
    begun = time.monotonic()
    if rank == 1:
        time.sleep(1)
    else:
        call = stream.send(generate(weights, 2, None), 2) if rank < 2 else take(stream, 2)
        text = message_of(lambda: asyncio.run(call), banyan.Aborted)
        assert "rank 1" in text and "it failed before it sent its weights" in text, text
        assert time.monotonic() - begun < 20
    if rank == 1:
        stream.describe(leads=False)
    assert not connect(stream, 2)
    update(stream, weights, 3, None)
    assert connect(stream, 2)
    update(stream, weights, 4, None)


def overtaken(rank: int) -> None:
    """A receiver that still waits joins the next world, which its error does not end."""
    weights: list[Weight] = [("w", torch.float32, (100,), None)]
    stream = WeightStream(1100, device=DEVICE, timeout=60)
    connect(stream, 1)

    async def receive_twice() -> None:
        first = asyncio.ensure_future(take(stream, 1))
        await asyncio.sleep(1)
        connect(stream, 1)  # as an asynchronous actor does beside the call that waits
        try:
            await first
        except banyan.Error as error:
            assert "rank 0" in str(error), error
        else:
            raise AssertionError("nothing was sent")
        require_equal(await take(stream, 2), weights, 2)

    if rank == 0:
        time.sleep(0.5)  # the others have joined, and wait
        connect(stream, 1)
        asyncio.run(stream.send(generate(weights, 2, None), 2))
    else:
        asyncio.run(receive_twice())


def dies(rank: int, way: str) -> None:
    weights: list[Weight] = [(f"w.{i}", torch.float32, (100,), None) for i in range(10)]
    stream = WeightStream(1100, device=DEVICE, timeout=20)
    connect(stream, 2)
    update(stream, weights, 1, None)
    senders = dist.new_group([0, 1])

    def until_killed() -> Iterator[tuple[str, Any]]:
        for i, one in enumerate(generate(weights, 2, None)):
            if rank == 1 and i == 6:
                os.kill(os.getpid(), signal.SIGKILL)
            if way == "gathers":
                dist.barrier(senders)
            yield one

    if way == "early" and rank == 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    call = stream.send(until_killed(), 2) if rank < 2 else take(stream, 2)
    begun = time.monotonic()
    if way == "gathers" and rank == 0:
        message_of(lambda: asyncio.run(call), RuntimeError)  # Gloo's, or Banyan's
        assert time.monotonic() - begun < 10
        return
    text = message_of(lambda: asyncio.run(call), banyan.PeerLost)
    assert time.monotonic() - begun < 10
    assert "rank 1" in text and "ranks 0 to 1 send, ranks 2 to 3 receive" in text, text


def late(rank: int) -> None:
    weights: list[Weight] = [("w", torch.float32, (100,), None)]
    stream = WeightStream(1000, device=DEVICE, timeout=60)
    connect(stream, 2)
    if rank == 3:
        time.sleep(1.5)
    update(stream, weights, 1, None)
    assert stream.world is not None
    stream.world.timeout = 3
    if rank == 3:
        time.sleep(7)
        message_of(lambda: asyncio.run(take(stream, 2)), banyan.Error)
        return
    call = stream.send(generate(weights, 2, None), 2) if rank < 2 else take(stream, 2)
    text = message_of(lambda: asyncio.run(call), banyan.Error)
    assert "rank 3" in text, text


def selected(rank: int) -> None:
    """Receivers that take different boxes of tensors, or nothing."""
    weights: list[Weight] = [(f"w.{i}", torch.float32, (6, 8), None) for i in range(5)]

    def select(name: str, shape: Any) -> banyan.Box | None:
        if name == "w.1" and rank == 3:
            return None
        return (
            banyan.Box([0, 4 * (rank - 2)], [6, 4]) if name != "w.2" else banyan.Box([0, 0], shape)
        )

    stream = WeightStream(300, device=DEVICE, timeout=30)
    connect(stream, 2)
    for version in (1, 2):
        if rank < 2:
            asyncio.run(stream.send(generate(weights, version, None), version))
            continue
        found = dict(asyncio.run(take(stream, version, select)))
        assert list(found) == [f"w.{i}" for i in range(5) if rank == 2 or i != 1]
        for name, tensor in found.items():
            whole = value(name, torch.float32, (6, 8), version)
            box = select(name, (6, 8))
            assert box is not None and torch.equal(
                tensor.view(torch.int32), whole[box.slices].contiguous().view(torch.int32)
            ), name


def views(rank: int) -> None:
    """Tied, transposed and expanded weights, as a state dict may have them."""
    base = value("base", torch.float32, (6, 8), 1)
    wanted = {
        "embed": base,
        "head": base,
        "turned": base.t(),
        "columns": base[:, 2:5],
        "wide": base[:, :1].expand(6, 4),
    }
    stream = WeightStream(1 << 16, device=DEVICE, timeout=30)
    connect(stream, 2)
    for _ in range(2):
        if rank < 2:
            asyncio.run(stream.send(wanted.items()))
            continue
        found = dict(asyncio.run(take(stream, None)))
        assert found.keys() == wanted.keys()
        for name, one in wanted.items():
            assert is_equal(found[name], one), name


def grown(rank: int) -> None:
    """A world is left when ranks join: here trainer 0 and rank 2 first, then all four."""
    weights = random_weights(5, 6, 2, False)
    stream = WeightStream(4096, device=DEVICE, timeout=30)
    metadata = gathered(stream.describe(leads=rank == 0))
    pair = [metadata[0], metadata[2]]
    if rank in (0, 2):
        unique_id, keep = WeightStream.topology(pair, 1)
        stream.join(rank // 2, 2, 1, unique_id, keep)
        if rank == 0:
            asyncio.run(stream.send(generate(weights, 1, None), 1))
        else:
            require_equal(asyncio.run(take(stream, 1)), weights, 1)
    assert not connect(stream, 2)
    update(stream, weights, 2, None)
    assert connect(stream, 2)
    update(stream, weights, 3, None)


class TestStream(unittest.TestCase):
    def test_whole_tensors_arrive_three_times(self) -> None:
        number = seed()
        run(2, case, number, 1, False, 1, backend="gloo")
        run(3, case, number, 2, False, 3000, backend="gloo")
        run(4, case, number, 2, False, 1 << 20, backend="gloo")

    def test_shards_arrive_three_times(self) -> None:
        number = seed()
        run(4, case, number, 2, True, 3000, backend="gloo")
        run(4, case, number, 3, True, 1 << 20, backend="gloo")

    def test_moved_shards_are_planned_again(self) -> None:
        run(3, moved_shards, backend="gloo")

    def test_memory_is_bounded(self) -> None:
        run(4, few_are_alive, backend="gloo")

    def test_failures_end_the_update_everywhere(self) -> None:
        run(4, failures, backend="gloo")

    def test_a_dead_trainer_is_named(self) -> None:
        for way in ("sends", "gathers", "early"):
            with self.assertRaises(Failed) as caught:
                run(4, dies, way, backend="gloo")
            self.assertNotIn("Traceback", str(caught.exception))
            self.assertIn("rank 1: the process ended", str(caught.exception))

    def test_a_trainer_that_fails_before_it_sends_is_named(self) -> None:
        run(4, fails_early, backend="gloo")
        run(3, overtaken, backend="gloo")

    def test_a_late_receiver_is_waited_for_and_named(self) -> None:
        run(4, late, backend="gloo")

    def test_receivers_take_parts(self) -> None:
        run(4, selected, backend="gloo")

    def test_views_and_tied_weights_arrive(self) -> None:
        run(4, views, backend="gloo")

    def test_ranks_may_join_later(self) -> None:
        run(4, grown, backend="gloo")


if __name__ == "__main__":
    unittest.main()
