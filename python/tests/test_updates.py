"""Updates of weights between jobs: trainers and the workers of an engine, joined by a unique id."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

try:
    import numpy
except ImportError:
    print("skipped: numpy is not installed")
    sys.exit(77)

import banyan
from banyan.integrations import _updates as updates

CONTEXT = multiprocessing.get_context("fork")
ROWS, COLUMNS, TRAINERS, WORKERS = 6, 10, 2, 2
SIZE = TRAINERS + WORKERS


def values(version: int) -> Any:
    """Return the whole tensor "w" of a version."""
    return (numpy.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS) + 1000 * version).astype("float32")


def trainer_layout(
    rank: int, rows: int = ROWS, dtype: str = "float32", extra: str | None = None
) -> banyan.Layout:
    """Return the layout of a trainer that has half of the rows of "w", and all of "bias"."""
    layout, half = banyan.Layout(), rows // 2
    w = layout.add_tensor("w", dtype, [half, COLUMNS])
    layout.add_piece(w, "w", [rows, COLUMNS], banyan.Box([rank * half, 0], [half, COLUMNS]))
    for name in ("bias", extra) if extra else ("bias",):
        layout.add_piece(layout.add_tensor(name, "float32", [3]), name, [3])
    return layout


def trainer_tensors(rank: int, version: int, dtype: str = "float32") -> dict[str, Any]:
    half = ROWS // 2
    return {
        "w": values(version)[rank * half : (rank + 1) * half].astype(dtype),
        "bias": numpy.full(3, version, "float32"),
    }


def worker_layout(worker: int, bias: str = "bias") -> banyan.Layout:
    """Return the layout of a worker that has half of the columns of "w", and all of "bias"."""
    layout, half = banyan.Layout(), COLUMNS // 2
    w = layout.add_tensor("fused", "float32", [ROWS, half])
    layout.add_piece(w, "w", [ROWS, COLUMNS], banyan.Box([0, worker * half], [ROWS, half]))
    layout.add_piece(layout.add_tensor("bias", "float32", [3]), bias, [3])
    return layout


class Worker:
    """A worker of an engine: its memory, and the version of its weights."""

    def __init__(self, number: int) -> None:
        half = COLUMNS // 2
        self.number, self.weights = number, updates.Weights()
        self.memory = {
            "fused": numpy.full((ROWS, half), numpy.nan, "float32"),
            "bias": numpy.full(3, numpy.nan, "float32"),
        }

    def check(self, version: int) -> None:
        half = COLUMNS // 2
        wanted = values(version)[:, self.number * half : (self.number + 1) * half]
        numpy.testing.assert_array_equal(self.memory["fused"], wanted)
        numpy.testing.assert_array_equal(self.memory["bias"], numpy.full(3, version))
        assert (self.weights.version, self.weights.torn) == (version, None)
        self.weights.require_whole()


def _play(fn: Callable[..., Any], rank: int, identity: str, pipe: Connection, args: Any) -> None:
    try:
        pipe.send((True, fn(rank, identity, *args)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))


def play(fn: Callable[..., Any], *args: Any, dying: int | None = None) -> list[Any]:
    """Call ``fn(rank, identity, *args)`` in a process for each rank, and return the results."""
    unique_id = banyan.UniqueId()
    processes, pipes = [], []
    for rank in range(SIZE):
        ours, theirs = CONTEXT.Pipe()
        call = fn, rank, updates.id_text(unique_id), theirs, args
        process = CONTEXT.Process(target=_play, args=call)
        process.start()
        theirs.close()
        processes.append(process)
        pipes.append(ours)
    results: list[Any] = []
    wrong = ""
    for rank, pipe in enumerate(pipes):
        try:
            good, result = pipe.recv() if pipe.poll(60) else (False, "no answer in time")
        except EOFError:
            good, result = rank == dying, None
        results.append(result)
        wrong += "" if good else f"rank {rank}: {result}\n"
    for process in processes:
        process.join(60)
        assert not process.is_alive()
    assert not wrong, wrong
    return results


def raised(call: Callable[[], object]) -> str:
    """Return the type and the message of the error that a call raises."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def open_updates(world: banyan.World, worker: Worker | None, **options: Any) -> updates.Updates:
    if worker is None:
        return updates.Updates(world, trainer_layout(world.rank), None, **options)
    layout = worker_layout(worker.number)
    return updates.Updates(world, None, layout, weights=worker.weights, **options)


def worker_of(rank: int) -> Worker | None:
    return None if rank < TRAINERS else Worker(rank - TRAINERS)


def versions(rank: int, identity: str) -> None:
    """Send versions 1, 2 and 7; names travel to the engine first."""
    worker = worker_of(rank)
    with updates.join(identity, rank, SIZE, timeout=30) as world:
        found = updates.published(world, None if worker else trainer_layout(rank))
        assert found == [
            updates.Meta("w", "float32", (ROWS, COLUMNS)),
            updates.Meta("bias", "float32", (3,)),
        ], found
        one = open_updates(world, worker)
        assert (one.trainers, one.engines) == ([0, 1], [2, 3])
        for asked, version in ((None, 1), (None, 2), (7, 7)):
            if worker is None:
                sent = trainer_tensors(rank, version)
                made = one.update(partial(dict, sent), version=asked)
            else:
                made = one.update(lambda: worker.memory, unmap=version == 2)
                worker.check(version)
            assert made == version
        asked = 7 if worker is None else None
        memory = worker.memory if worker else trainer_tensors(rank, 8)
        text = raised(lambda: one.update(lambda: memory, version=asked))
        assert "no weights were moved: version 7 is not newer than version 7" in text, text
        if worker:
            worker.check(7)
        one.close()


def refusals(rank: int, identity: str) -> list[str]:
    """Open updates whose sides differ, and return the errors."""
    worker = worker_of(rank)
    texts = []

    def attempt(source: Any, destination: Any, **options: Any) -> None:
        sides = (None, destination()) if worker else (source(), None)
        texts.append(raised(lambda: updates.Updates(world, *sides, **options).close()))

    with updates.join(identity, rank, SIZE, timeout=30) as world:
        number = worker.number if worker else 0
        attempt(lambda: trainer_layout(rank), lambda: worker_layout(number, "model.biass"))
        attempt(lambda: trainer_layout(rank, rows=8), lambda: worker_layout(number))
        attempt(lambda: trainer_layout(rank, dtype="int32"), lambda: worker_layout(number))
        attempt(lambda: trainer_layout(rank, extra="lm_head"), lambda: worker_layout(number))
        unused = {"unused": ["lm_head"]} if worker else {}
        attempt(
            lambda: trainer_layout(rank, extra="lm_head"), lambda: worker_layout(number), **unused
        )
        attempt(lambda: trainer_layout(rank, rows=6 + 2 * rank), lambda: worker_layout(number))
        attempt(
            lambda: trainer_layout(rank),
            lambda: worker_layout(number),
            device="cuda:0" if worker else None,
        )
        attempt(lambda: trainer_layout(rank), lambda: worker_layout(number), cast=rank == 2)
        attempt(lambda: trainer_layout(rank), lambda: worker_layout(number), group_bytes=rank)
        both = raised(lambda: updates.Updates(world, trainer_layout(0), worker_layout(0)))
        assert "a trainer or a worker" in both, both
    return texts


def casts(rank: int, identity: str) -> list[str]:
    """Send float16 to float32, which is exact."""
    worker = worker_of(rank)
    with updates.join(identity, rank, SIZE, timeout=30) as world:
        if worker is None:
            one = updates.Updates(world, trainer_layout(rank, dtype="float16"), None)
            one.update(lambda: trainer_tensors(rank, 1, "float16"))
        else:
            one = open_updates(world, worker)
            one.update(lambda: worker.memory)
            worker.check(1)
        one.close()
    return []


def failures(rank: int, identity: str) -> list[str]:
    """Fail before and after the transfer, and then succeed over the same world."""
    worker = worker_of(rank)
    texts = []

    def refuse(_: object) -> None:
        raise ValueError("the layers do not fit")

    def tensors(version: int, fails: bool = False) -> Any:
        if fails and rank == 1:
            raise ValueError("the optimizer is busy")
        return worker.memory if worker else trainer_tensors(rank, version)

    with updates.join(identity, rank, SIZE, timeout=30) as world:
        one = open_updates(world, worker)
        one.update(lambda: tensors(1))
        texts.append(raised(lambda: one.update(lambda: tensors(2, True))))
        if worker:
            worker.check(1)  # nothing has moved
        finish = refuse if rank == 3 else None
        texts.append(raised(lambda: one.update(lambda: tensors(3), finish=finish)))
        if worker:
            texts.append(raised(worker.weights.require_whole))
        one.update(lambda: tensors(2))
        if worker:
            worker.check(2)
        one.close()
    return texts


LAYERS = 3


class Buffers(Mapping[str, Any]):
    """Memory of a worker that is allocated when it is looked up, and freed when it is finished."""

    def __init__(self) -> None:
        self.held: dict[str, Any] = {}
        self.most = 0

    def __getitem__(self, name: str) -> Any:
        self.held.setdefault(name, numpy.full((ROWS, COLUMNS), numpy.nan, "float32"))
        self.most = max(self.most, len(self.held))
        return self.held[name]

    def __iter__(self) -> Iterator[str]:
        return iter(f"own{layer}" for layer in range(LAYERS))

    def __len__(self) -> int:
        return LAYERS


def layers(rank: int, identity: str) -> list[str]:
    """Send layers one after another; then fail in the second one, and send them again."""
    worker = worker_of(rank)
    layout = banyan.Layout()
    shape = [ROWS, COLUMNS]
    half = [ROWS // 2, COLUMNS]
    for layer in range(LAYERS):
        if worker:
            number = layout.add_tensor(f"own{layer}", "float32", shape)
            layout.add_piece(number, f"layers.{layer}.w", shape)
        else:
            number = layout.add_tensor(f"shard{layer}", "float32", half)
            layout.add_piece(
                number, f"layers.{layer}.w", shape, banyan.Box([rank * half[0], 0], half)
            )
    received: list[str] = []
    fails = False
    memory = Buffers()

    def tensors(version: int) -> Mapping[str, Any]:
        if worker:
            return memory
        rows = slice(rank * half[0], (rank + 1) * half[0])
        return {f"shard{i}": values(version + 10 * i)[rows].copy() for i in range(LAYERS)}

    def finish(names: Sequence[str]) -> None:
        for name in names:
            if fails and name == "own1" and rank == 2:
                raise ValueError("the second layer does not fit")
            wanted = values(version + 10 * int(name[-1]))
            numpy.testing.assert_array_equal(memory.held.pop(name), wanted)
        received.extend(names)

    done = finish if worker else None
    with updates.join(identity, rank, SIZE, timeout=30) as world:
        sides = (None, layout) if worker else (layout, None)
        weights = updates.Weights()
        # One layer has 240 bytes.
        one = updates.Updates(world, *sides, weights=weights, group_bytes=300)
        version = 1
        one.update(lambda: tensors(1), finish=done)
        version, fails = 2, True
        text = raised(lambda: one.update(lambda: tensors(2), finish=done))
        memory.held.clear()
        if worker:
            assert weights.torn is not None
        version, fails = 2, False
        one.update(lambda: tensors(2), finish=done)
        one.close()
    if worker:
        assert (weights.version, weights.torn) == (2, None)
        names = [f"own{layer}" for layer in range(LAYERS)]
        first = names + (names[:1] if rank == 2 else names[:2])
        assert received == first + names, received
        assert memory.most == 1, memory.most
    return [text]


class Deadly:
    """A plan whose run kills the process."""

    def execute(self, *_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def death(rank: int, identity: str, second: str) -> str:
    """Let trainer 1 die during version 2. Trainer 0 then updates both workers alone."""
    worker = worker_of(rank)
    world = updates.join(identity, rank, SIZE, timeout=30)
    one = open_updates(world, worker)

    def tensors(version: int) -> Any:
        return worker.memory if worker else trainer_tensors(rank, version)

    one.update(lambda: tensors(1))
    if rank == 1:  # all ranks have agreed to begin when the transfer is called
        one._plans[0] = Deadly()  # type: ignore
    text = raised(lambda: one.update(lambda: tensors(2)))
    if worker:
        torn = raised(worker.weights.require_whole)
        assert torn.startswith("Torn: the weights are torn: the update to version 2 failed"), torn
        assert "the last one was version 1" in torn, torn
    one.close()
    world.abort("the update failed")
    text += raised(world.close)
    with updates.join(second, max(0, rank - 1), SIZE - 1, timeout=30) as world:
        if worker:
            one = open_updates(world, worker)
            one.update(lambda: worker.memory)
            worker.check(2)
        else:
            part = updates.full_part({"w": values(2), "bias": numpy.full(3, 2, "float32")})
            one = updates.Updates(world, part.layout, None)
            one.update(lambda: part.tensors)
        one.close()
    return text


class UpdatesTest(unittest.TestCase):
    def test_versions_arrive_whole(self) -> None:
        play(versions)

    def test_sides_that_differ_are_refused_on_all_ranks(self) -> None:
        texts = play(refusals)
        for other in texts[1:]:
            self.assertEqual(other, texts[0])
        names, shapes, dtypes, extra, unused, trainers, device, cast, limit = texts[0]
        self.assertIn('1 tensors of the engine are at no trainer:\n  "model.biass"', names)
        self.assertIn('1 tensors of the trainers are not the engine\'s:\n  "bias"', names)
        self.assertIn('"w" is float32 [8, 10] at trainer 0, but float32 [6, 10] at rank 2', shapes)
        self.assertIn('"w" is int32 [6, 10] at trainer 0, but float32 [6, 10] at rank 3', dtypes)
        self.assertIn("those of rank 0 are on cpu, and those of rank 2 on cuda", device)
        self.assertIn("group_bytes differs between ranks: [0, 1, 2, 3]", limit)
        self.assertIn("cast is False on rank 0, but not on rank 2", cast)
        self.assertIn("NotFound: 1 tensors of the trainers are not the engine's:", extra)
        self.assertIn('"lm_head"', extra)
        self.assertEqual(unused, "nothing")
        self.assertIn("at trainer 0, but float32 [8, 10] at rank 1 of the trainers", trainers)

    def test_layers_arrive_one_after_another(self) -> None:
        for rank, texts in enumerate(play(layers)):
            self.assertIn("the second layer does not fit", texts[0])
            if rank != 2:
                self.assertIn("the update to version 2 failed: rank 2", texts[0])

    def test_exact_casts_are_made(self) -> None:
        play(casts)

    def test_weights_are_torn_after_a_failed_transfer_alone(self) -> None:
        for rank, texts in enumerate(play(failures)):
            self.assertIn("the optimizer is busy", texts[0])
            self.assertIn("the layers do not fit", texts[1])
            if rank != 1:
                self.assertIn("no weights were moved: rank 1: the optimizer is busy", texts[0])
                self.assertIn("trainers: ranks 0, 1", texts[0])
            if rank >= TRAINERS:
                self.assertIn("the update to version 2 failed", texts[2])

    def test_another_trainer_follows_one_that_died(self) -> None:
        second = banyan.UniqueId()
        texts = play(death, updates.id_text(second), dying=1)
        self.assertIsNone(texts[1])
        for rank in (0, 2, 3):
            self.assertIn("the update to version 2 failed", texts[rank])
            self.assertIn("PeerLost", texts[rank])
            self.assertIn("rank 1", texts[rank])
            self.assertIn("trainers: ranks 0, 1, workers: ranks 2, 3", texts[rank])


if __name__ == "__main__":
    unittest.main()
