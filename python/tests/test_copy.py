"""Copy services: batches against NumPy, schedules, errors, the cost of many tensors."""

from __future__ import annotations

import random
import time
import unittest
import weakref
from typing import Any

import numpy as np

import banyan
from ranks import run, seed

Array = np.ndarray[Any, Any]


def data(task: int, count: int) -> Array:
    return (np.arange(count, dtype=np.int64) * 7 + task * 1001).astype(np.int32)


def strided(rng: random.Random, count: int) -> Array:
    """Return a poisoned array of `count` elements, which may have gaps."""
    step = rng.choice([1, 1, 3])
    return np.full(count * step, -5, np.int32)[::step]


def columns(rows: list[Any]) -> Any:
    return zip(*rows, strict=True) if rows else ([], 0, [])


def batches(world: banyan.World, number: int) -> None:
    rng = random.Random(number)
    for backend in (None, "direct", "pipeline"):
        with banyan.CopyService(world, backend) as service:
            assert backend in (None, service.backend) and service.device == "cpu"
            assert "strided" in service.capabilities
            for _ in range(3):
                tasks = [
                    (
                        rng.randrange(world.size),
                        rng.randrange(world.size),
                        rng.choice([0, 1, 6, 999]),
                    )
                    for _ in range(40)
                ]
                many = rng.random() < 0.5
                sends: list[Any] = []
                recvs: list[Any] = []
                for task, (of, to, count) in enumerate(tasks):
                    a, b = strided(rng, count), strided(rng, count)
                    if of == world.rank:
                        a[:] = data(task, count)
                        sends.append((a, to, task))
                    if to == world.rank:
                        recvs.append((b, of, task))
                if many:
                    service.submit_sends(*columns(sends))
                    service.submit_recvs(*columns(recvs))
                else:
                    for tensor, peer, task in sends:
                        service.submit_send(tensor, peer, task)
                    for tensor, peer, task in recvs:
                        service.submit_recv(tensor, peer, task)
                if rng.random() < 0.5:
                    service.run()
                    for tensor, _, task in recvs:
                        np.testing.assert_array_equal(tensor, data(task, tensor.size))
                    continue
                with service.prepare() as schedule:
                    for turn in range(3):
                        for tensor, _, task in sends:
                            tensor[:] = data(task + turn, tensor.size)
                        schedule.run()
                        for tensor, _, task in recvs:
                            np.testing.assert_array_equal(tensor, data(task + turn, tensor.size))
                        world.barrier()


def wrong(world: banyan.World) -> list[str]:
    messages = []
    service = banyan.CopyService(world)
    frozen = np.zeros(4)
    frozen.flags.writeable = False
    other = (world.rank + 1) % world.size
    calls: list[Any] = [
        lambda: service.submit_send(np.zeros(4), 9, 0),
        lambda: service.submit_recv(frozen, other, 0),
        lambda: service.submit_send([1.0], other, 0),  # type: ignore[arg-type]
        lambda: service.submit_send(np.zeros(4), other, -1),
        lambda: service.submit_send(np.zeros(4), other, 0, mxfp8="half"),  # type: ignore[arg-type]
        lambda: service.submit_sends([np.zeros(4)], [0, 1], [0]),
        lambda: service.run(stream=3),
        lambda: banyan.CopyService(world, "carrier pigeon"),
    ]
    for call in calls:
        try:
            call()
        except (ValueError, TypeError, OverflowError, LookupError) as error:
            messages.append(f"{type(error).__name__}: {error}")
        else:
            messages.append("no error")
    service.run()  # none of these was queued
    if world.rank == 0:
        service.submit_send(np.zeros(4), 1, 77)
    try:
        service.run()
    except banyan.Mismatch as error:
        messages.append(str(error))
    service.run()
    schedule = service.prepare()
    service.close()
    try:
        schedule.run()
    except ValueError as error:
        messages.append(str(error))
    return messages


def casts(world: banyan.World) -> None:
    service = banyan.CopyService(world)
    if "casts" not in service.capabilities:
        return
    sent = np.linspace(-3, 3, 100).astype(np.float32)
    got = np.zeros(100, np.float16)
    service.submit_send(sent, 1 - world.rank, 3, cast=True)
    service.submit_recv(got, 1 - world.rank, 3, cast=True)
    service.run()
    np.testing.assert_array_equal(got, sent.astype(np.float16))


def kept(world: banyan.World) -> None:
    """A schedule keeps its tensors, or none of them."""
    for keep in (True, False):
        with banyan.CopyService(world) as service:
            arrays = [np.full(10, world.rank), np.zeros(10, np.int64)]
            service.submit_send(arrays[0], 1 - world.rank, 0)
            service.submit_recv(arrays[1], 1 - world.rank, 0)
            schedule = service.prepare(keep=keep)
            schedule.run()
            assert (arrays[1] == 1 - world.rank).all()
            references = [weakref.ref(one) for one in arrays]
            arrays.clear()
            assert [one() is not None for one in references] == [keep, keep]
            schedule.close()


class CopyTest(unittest.TestCase):
    def test_batches(self) -> None:
        run(4, batches, seed())

    def test_what_is_refused(self) -> None:
        for messages in run(2, wrong):
            for message, expected in zip(
                messages,
                (
                    "Invalid:.*9",
                    "ValueError: tensor: the buffer is read-only",
                    "TypeError: tensor: a tensor is needed",
                    "OverflowError",
                    "ValueError: mxfp8 is",
                    "ValueError: 1 tensors, 2 ranks, 1 task ids",
                    "ValueError: a stream is given",
                    "NotFound:.*carrier pigeon",
                    "77",
                    "the copy service is closed",
                ),
                strict=True,
            ):
                self.assertRegex(message, expected)

    def test_casts(self) -> None:
        run(2, casts)

    def test_schedules_keep_tensors_or_not(self) -> None:
        run(2, kept)

    def test_cost_of_many_tensors(self) -> None:
        count = 10000
        with banyan.World(0, 1, unique_id=banyan.UniqueId()) as world:
            sends = [np.zeros(16, np.float32) for _ in range(count)]
            recvs = [np.zeros(16, np.float32) for _ in range(count)]
            best = 1.0
            for _ in range(10):
                with banyan.CopyService(world) as service:
                    began = time.thread_time()
                    service.submit_sends(sends, 0, range(count))
                    service.submit_recvs(recvs, 0, range(count))
                    best = min(best, (time.thread_time() - began) / (2 * count))
            print(f"submit: {best * 1e6:.3f} us each")
            self.assertLess(best, 5e-6)  # the goal is 1 us on an idle machine


if __name__ == "__main__":
    unittest.main()
