"""Progress: bars on terminals and in notebooks, nothing elsewhere; functions of the caller."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

import nbformat
import numpy as np
from nbclient import NotebookClient

import banyan
from banyan import _progress
from ranks import run

#: Long work of every kind. Bars come at once.
WORK = """
import os, sys, tempfile
import numpy as np
import banyan, banyan._progress as _progress
_progress.DELAY_SECONDS = _progress.DRAW_SECONDS = 0
progress = eval(os.environ.get("PROGRESS", "True"))
with tempfile.TemporaryDirectory() as folder, banyan.World() as world:
    layout = banyan.Layout()
    layout.add_tensor("a", "float32", (1 << 20,))
    layout.add_piece(0, "a", (1 << 20,))
    tensors = banyan.Tensors(layout, {"a": np.arange(1 << 20, dtype=np.float32)})
    names = [f"{folder}/{name}" for name in ("saved", "joined", "one.safetensors")]
    banyan.Checkpoint.save(names[0], layout, tensors, world, progress=progress)
    banyan.Checkpoint.join(names[0], names[1], progress=progress)
    banyan.Checkpoint.write(names[2], {"a": tensors["a"]}, progress=progress)
    into = banyan.Tensors(layout, {"a": np.zeros(1 << 20, np.float32)})
    banyan.Checkpoint(names[1]).load(layout, into, progress=progress)
    assert (into["a"] == tensors["a"]).all()
    banyan.plan_scale(lambda rank, source, destination: None, 4, progress=progress)
print("ended", file=sys.stderr)
"""
TUNE = """
import banyan, banyan._progress as _progress
import numpy as np
_progress.DELAY_SECONDS = _progress.DRAW_SECONDS = 0
with banyan.World() as world:
    banyan.Communicator(world).tune(max_bytes=64, seconds=0.3)
    banyan.Mixed(world, local_tp=2, max_bytes=4096, dtype="float32").close()
    service = banyan.CopyService(world)
    sent, received = (np.zeros((64, 192, 6144), np.uint8) for _ in range(2))
    for i in range(1600):  # slow: an element at a time
        service.submit_send(sent[i % 64].T, 1 - world.rank, i)
        service.submit_recv(received[i % 64].reshape(6144, 192), 1 - world.rank, i)
    service.run()
    banyan.plan_scale(lambda rank, source, destination: None, 4)
"""
ORDER = [b"writing", b"joining", b"writing", b"reading", b"planning"]


def on_terminal(work: str = WORK, *launch: str, **variables: str) -> bytes:
    """Return what the work draws on a terminal."""
    master, terminal = pty.openpty()
    words = [*launch, sys.executable, "-c", work]
    started = subprocess.Popen(words, stderr=terminal, env=os.environ | variables)
    os.close(terminal)
    seen = b""
    try:
        while part := os.read(master, 1 << 16):
            seen += part
    except OSError:  # the other end is closed
        pass
    os.close(master)
    if started.wait(60) != 0:
        raise AssertionError(seen.decode())
    return seen


def exchange(world: banyan.World, service: banyan.CopyService, tasks: int = 1600) -> None:
    """Exchange 64 tensors several times, which takes long: elements are moved one by one."""
    sent, received = (np.zeros((64, 192, 6144), np.uint8) for _ in range(2))
    sent[:] = np.arange(6144) % 251 + world.rank
    for i in range(tasks):
        service.submit_send(sent[i % 64].T, 1 - world.rank, i)
        service.submit_recv(received[i % 64].reshape(6144, 192), 1 - world.rank, i)
    try:
        service.run()
    finally:
        got = received.reshape(64, 6144, 192)
        assert (got[:, :, 7] == np.arange(6144) % 251 + 1 - world.rank).all()


def moved(world: banyan.World, backend: str, tasks: int) -> list[tuple[int, int]]:
    """Return the reports of a run that takes long."""
    reports: list[tuple[int, int]] = []
    with banyan.CopyService(world, backend, progress=lambda *done: reports.append(done)) as service:
        exchange(world, service, tasks)
        assert reports, "the run was too short"
        short = reports.copy()
        few = np.zeros(4, np.uint8)
        service.submit_send(few[:2], 1 - world.rank, 1)
        service.submit_recv(few[2:], 1 - world.rank, 1)
        service.run()
        assert reports == short, "a short run is reported"
    return reports


def failing(world: banyan.World) -> None:
    """The exception of a report is raised when the run has ended, and the service goes on."""

    def fail(done: int, total: int) -> None:
        raise KeyError(total)

    service = banyan.CopyService(world, progress=fail)
    for _ in range(2):
        try:
            exchange(world, service)
        except KeyError as error:
            assert error.args[0] > 0
        else:
            raise AssertionError("no error")


def autotuned(world: banyan.World) -> list[tuple[str, float]]:
    shown: list[tuple[str, float]] = []
    options: dict[str, Any] = {"local_tp": 2, "max_bytes": 4096, "dtype": "float32"}
    with banyan.Mixed(world, progress=lambda *part: shown.append(part), **options) as mixed:
        assert mixed.timings
    return shown


class ProgressTest(unittest.TestCase):
    def test_terminal(self) -> None:
        seen = on_terminal()
        for kind in set(ORDER):
            self.assertRegex(seen, rb"\r" + kind + rb" +\[#*\.*\] +\d+ %  [^\r]*\x1b\[K")
        self.assertRegex(seen, rb"reading +\[#+\] 100 %  [\d.]+ [KMG]?i?B/s  0.0 s left")
        self.assertTrue(seen.endswith(b"\r\x1b[Kended\r\n"), seen[-200:])

    def test_first_rank_of_a_job_draws(self) -> None:
        launch = f"{os.environ['BANYAN_BUILD']}/bin/banyan launch -n 2 --".split()
        seen = on_terminal(TUNE, *launch)
        self.assertRegex(seen, rb"\rtuning +\[#*\.*\] +\d+ %  \w+ of \d+ bytes, \w+ memory")
        self.assertRegex(seen, rb"\rtuning +\[#*\.*\] +\d+ %  allreduce of 1024 bytes")
        self.assertRegex(seen, rb"\rmoving +\[#+\.*\] +\d+ %  [\d.]+ [KMG]iB/s ")
        self.assertEqual(seen.count(b"\rplanning "), 8, seen)

    def test_nothing_without_a_terminal(self) -> None:
        done = subprocess.run([sys.executable, "-c", WORK], capture_output=True, timeout=60)
        self.assertEqual((done.stdout, done.stderr), (b"", b"ended\n"))

    def test_off(self) -> None:
        for value in ("False", "None"):
            self.assertEqual(on_terminal(PROGRESS=value), b"ended\r\n")

    def test_function_replaces_the_bar(self) -> None:
        seen = on_terminal(PROGRESS="lambda *done: print(*done, file=sys.stderr)")
        self.assertNotIn(b"[", seen)
        self.assertRegex(seen, rb"\n4194\d+ 4194\d+\r\n")

    def test_rank_of_the_world_counts_before_the_launchers(self) -> None:
        with mock.patch.dict(os.environ, {"RANK": "3"}):
            self.assertFalse(_progress._is_first_rank())
            with banyan.World(0, 1, unique_id=banyan.UniqueId()):
                self.assertTrue(_progress._is_first_rank())
        self.assertTrue(_progress._is_first_rank())

    def test_exception_of_a_function_is_raised(self) -> None:
        def fail(done: int, total: int) -> None:
            raise KeyError(total)

        with self.assertRaisesRegex(KeyError, "8"):
            banyan.plan_scale(lambda rank, source, destination: None, 4, progress=fail)

    def test_runs_that_take_long_report_bytes(self) -> None:
        for backend, tasks in (("direct", 1600), ("pipeline", 640)):
            for reports in run(2, moved, backend, tasks):
                total = reports[-1][1]
                self.assertEqual(reports[-1], (total, total))
                self.assertGreaterEqual(total, tasks * 192 * 6144)
                self.assertEqual({report[1] for report in reports}, {total})
                done = [report[0] for report in reports]
                self.assertEqual(done, sorted(done))
                self.assertTrue(0 < done[0] < total)

    def test_exception_of_a_report_is_raised(self) -> None:
        run(2, failing)

    def test_autotuning_reports_measurements(self) -> None:
        first, second = run(2, autotuned)
        self.assertEqual(second, [])
        self.assertEqual([what for what, _ in first],
                         [f"allreduce of {n} bytes" for n in (1024, 2048, 4096)])  # fmt: skip
        self.assertEqual([share for _, share in first], [0, 1 / 3, 2 / 3])

    def test_short_work_shows_nothing(self) -> None:
        lines: list[str] = []
        draw: Callable[[str, bool], None] = lambda line, is_last: lines.append(line)  # noqa: E731
        now = 100.0
        with mock.patch("time.monotonic", lambda: now):
            bar = _progress.Bar("reading", True, draw)
            now += _progress.DELAY_SECONDS / 2
            bar(1 << 30, 10 << 30)
            bar.close()
            self.assertEqual(lines, [])
            now = 200.0
            bar(3 << 30, 12 << 30)
            bar.close()
        self.assertEqual(len(lines), 2)
        self.assertEqual(lines[0], "reading      [#######.......................]  25 %  "
                         "30.7 MiB/s  5:00 left")  # fmt: skip
        self.assertEqual(lines[1], "reading: 3 GiB in 1:40")

    def test_times_and_amounts(self) -> None:
        self.assertEqual([_progress._time(t) for t in (0.04, 59.9, 60, 7207)],
                         ["0.0 s", "59.9 s", "1:00", "2:00:07"])  # fmt: skip
        self.assertEqual([_progress._amount(n, True) for n in (0, 999, 1023, 1536, 5 << 40)],
                         ["0 B", "999 B", "1023 B", "1.5 KiB", "5 TiB"])  # fmt: skip
        self.assertEqual([_progress._amount(n, False) for n in (7, 999, 1500, 2e9)],
                         ["7", "999", "1.5 k", "2 G"])  # fmt: skip

    def test_notebook(self) -> None:
        v4: Any = nbformat.v4
        cell = v4.new_code_cell(WORK.replace('print("ended", file=sys.stderr)', ""))
        notebook = v4.new_notebook(cells=[cell])
        with tempfile.TemporaryDirectory() as folder:
            NotebookClient(notebook, timeout=60, resources={"metadata": {"path": folder}}).execute()
        texts = [output["data"]["text/plain"] for output in notebook.cells[0]["outputs"]]
        self.assertEqual([text.split(":")[0].encode() for text in texts], ORDER)
        self.assertRegex(texts[3], r"^reading: 4 MiB in \d\.\d s$")


if __name__ == "__main__":
    unittest.main()
