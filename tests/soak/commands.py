"""Commands that start ranks, with one of their processes killed at a random time: all of them end,
the exit code tells, and nothing is left behind."""

import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tools"))
import small_model

ENDS_S = 30
SIGNALS = [signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT]


def marked(mark):
    """Processes, living ones, whose environment has the mark."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            state = (path / "stat").read_text().rsplit(")", 1)[1].split()[0]
            if state != "Z" and mark.encode() in (path / "environ").read_bytes():
                found.append(int(path.name))
        except OSError:
            pass
    return found


def children(pid):
    """Ascending; the first one of a command that starts ranks is its guard."""
    try:
        listed = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return sorted(map(int, listed))


def sent(pid, number):
    """Send a signal. False if the process has ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


class Commands:
    def __init__(self, build: pathlib.Path, folder: pathlib.Path, seed: int):
        self.banyan, self.folder = build / "bin/banyan", folder
        self.draw = random.Random(seed)
        self.model = small_model.write(small_model.dense(), folder / "model.json")
        self.plan = folder / "ring.json"
        with self.plan.open("w") as out:
            subprocess.run([self.banyan, "algo", "emit", "allreduce_ring", "-n", "4"], stdout=out,
                           check=True)
        self.figures = {"jobs": 0, "kills": 0, "crashes": 0, "hangs": 0, "left": 0, "silent": 0}

    def words(self, work):
        """A command that works for longer than it is let; `work` is a folder of its own."""
        ranks = self.draw.randint(2, 6)
        return self.draw.choice([
            ["launch", "-n", ranks, "--", "sleep", 600],
            ["reshard", "--model", self.model, "--from", "tp=2", "--to", "tp=4", "--iters", 10**7],
            ["reshard", "--model", self.model, "--from", "fsdp=3", "--to", "tp=2", "--disjoint",
             "--backend", "pipeline", "--iters", 10**7],
            ["run", self.plan, "-s", "1K:1M", "--rounds", 10**6],
            ["mixed", "--local-tp", 2, "--local-dp", 2, "--rows", "1:512", "--hidden", 256,
             "--save-autotune", work / "table.json"],
        ])

    def step(self):
        mark = f"SOAK_{uuid.UUID(int=self.draw.getrandbits(128)).hex}"
        work = self.folder / "work"
        work.mkdir()
        words = [str(word) for word in self.words(work)]
        log = self.folder / "log"
        with log.open("w") as out:
            child = subprocess.Popen([self.banyan, *words], stdout=subprocess.DEVNULL, stderr=out,
                                     stdin=subprocess.DEVNULL, cwd=work,
                                     env={"PATH": "/usr/bin:/bin", mark: "1", "TMPDIR": str(work),
                                          "BANYAN_TIMEOUT": "5"})
        waited = self.draw.uniform(0, 1.0)
        time.sleep(waited)
        alive = sorted(marked(mark))
        number = self.draw.choice(SIGNALS)
        victim = self.draw.choice(alive) if alive else None
        if victim != child.pid:
            number = signal.SIGKILL  # ranks leave the others to the command
        is_guard = victim in children(child.pid)[:1]
        # Its number cannot have been given to another process: it is checked again at once.
        if victim in marked(mark) and sent(victim, number):
            self.figures["kills"] += 1
        self.figures["jobs"] += 1
        if is_guard or not victim:
            # The job may go on without its guard.
            time.sleep(1)
            child.terminate()
        self.judge(child, mark, work, f"{' '.join(words)}; {number.name} to "
                   f"{'it' if victim == child.pid else 'its guard' if is_guard else 'a rank'} "
                   f"after {waited:.3f} s", log,
                   is_guard or victim in (None, child.pid))
        shutil.rmtree(work)

    def judge(self, child, mark, work, what, log, is_itself):
        def complain(kind, said):
            self.figures[kind] += 1
            print(f"{what}: {kind}: {said}", flush=True)

        try:
            code = child.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            complain("hangs", f"still there after {ENDS_S} s")
            child.kill()
            code = child.wait()
        end = time.monotonic() + ENDS_S
        while (left := marked(mark)) and time.monotonic() < end:
            time.sleep(0.02)
        for pid in left:
            complain("left", f"process {pid}")
            sent(pid, signal.SIGKILL)
        said = log.read_text(errors="replace")
        if "Sanitizer" in said or code in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS):
            complain("crashes", f"exit code {code}: {said[-800:]}")
        elif code == -signal.SIGPIPE or (code != 0 and not said and not is_itself):
            complain("silent", f"exit code {code} and no message")
        for path in sorted(work.iterdir()):
            if path.name != "table.json":
                complain("left", f"file {path.name}")
