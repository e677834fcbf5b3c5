"""A probed topology predicts what the built-in all-reduces take on this machine, and which is faster.

The machine may be busy with other things. So probing and measuring take turns, and of all that was measured so far the
fastest counts; up to three attempts are made, and one that succeeds is enough. An attempt that failed tells nothing if
what was measured twice in it differs by more than the margin, or if others had more than a little of the processors'
time meanwhile; when none can tell, the test is skipped. It is skipped at once when the probe says that the processors are
moved, by a hypervisor perhaps: there is no one machine then to be predicted.

Two algorithms must be ranked as measured when every measurement so far says that one takes more than half longer, and
the fastest time of each was met twice: what was disturbed every time tells nothing. None may be ranked otherwise."""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import unittest

BANYAN = pathlib.Path(os.environ["BANYAN_BUILD"]) / "bin/banyan"
SKIPPED = 77
RANKS = 2
ATTEMPTS = 3
MARGIN = 0.3   # of the median error, and of what is measured twice
OTHERS = 0.05  # of the processors' time: with more for others, little is undisturbed
DIFFERENT = 1.5  # times as long: to be ranked alike
TWICE = 0.1  # apart, at most, are the two fastest times of what was measured undisturbed
PAIRS_LEAST = 100  # of those, or nothing is told
SIZES, STEP, ROUNDS = "1K:4M", 4, 20
LONG_SIZE, LONG_ROUNDS = "16M", 40  # runs of milliseconds: few of them are disturbed by nothing


def finish(*arguments):
    done = subprocess.run([BANYAN, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise AssertionError(f"banyan {' '.join(map(str, arguments))}: {done.stderr}")
    return done


def run(*arguments):
    return finish(*arguments).stdout


class OthersTime:
    """The processors' time that went to others, the hypervisor's other guests among them."""

    def __init__(self):
        self.cores = os.sched_getaffinity(0)
        self.began, self.busy, self.own = time.monotonic(), self.busy_seconds(), self.own_seconds()

    def busy_seconds(self):
        ticks = 0
        for line in pathlib.Path("/proc/stat").read_text().splitlines():
            name, *fields = line.split()
            if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in self.cores:
                user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
                ticks += user + nice + system + irq + softirq + steal
        return ticks / os.sysconf("SC_CLK_TCK")

    @staticmethod
    def own_seconds():
        return sum(os.times()[:4])

    def share(self):
        others = self.busy_seconds() - self.busy - (self.own_seconds() - self.own)
        return others / ((time.monotonic() - self.began) * len(self.cores))


def seconds_by_size(text):
    return {size["bytes"]: size["seconds"] for size in json.loads(text)["sizes"]}


class Probe(unittest.TestCase):
    def setUp(self):
        if os.environ.get("BANYAN_SANITIZE"):
            self.skipTest("a sanitizer changes what things cost")
        cores = len(os.sched_getaffinity(0))
        if cores < RANKS:
            self.skipTest(f"{RANKS} ranks need as many processors, and there are {cores}")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.plans = {}
        for line in run("algo", "list").splitlines():
            name = line.split()[0] if line.strip() else ""
            if name.startswith("allreduce"):
                path = self.folder / f"{name}.json"
                path.write_text(run("algo", "emit", name, "-n", RANKS))
                self.plans[name] = path
        self.assertGreater(len(self.plans), 10)

    def for_all(self, command, *arguments):
        """Seconds by algorithm and bytes."""
        found = {}
        for name, path in self.plans.items():
            text = run(command, path, *arguments, "--step-factor", STEP, "--json")
            found.update(((name, size), seconds) for size, seconds in seconds_by_size(text).items())
        return found

    def measure(self):
        found = {}
        for sizes, rounds in ((SIZES, ROUNDS), (LONG_SIZE, LONG_ROUNDS)):
            found.update(self.for_all("run", "--size", sizes, "--rounds", rounds, "--bind", "--no-check"))
        return found

    def predict(self):
        topology = self.folder / "here.json"
        warning = finish("topo", "probe", "-n", RANKS, "-o", topology).stderr
        if warning:
            self.assertRegex(warning, r"a signal took \d+ ns at some times and \d+ ns at others")
            self.skipTest(warning)
        return {**self.for_all("simulate", "-t", topology, "--size", SIZES),
                **self.for_all("simulate", "-t", topology, "--size", LONG_SIZE)}

    def ranked_wrongly(self, all_measured, predicted):
        """Of the pairs that all measurements tell apart: those that the prediction has the other way round, and
        how many they are."""
        all_seconds = {key: [took[key] for took in all_measured] for key in all_measured[0]}
        sure = [key for key, took in all_seconds.items() if sorted(took)[1] <= (1 + TWICE) * min(took)]
        wrong, pairs = [], 0
        for slow, size in sure:
            for fast, other in sure:
                ratio = min(took[slow, size] / took[fast, size] for took in all_measured) if other == size else 0
                if ratio <= DIFFERENT:
                    continue
                pairs += 1
                if predicted[slow, size] <= predicted[fast, size]:
                    times = ["/".join(f"{1e6 * took:.2f}" for took in (*all_seconds[name, size], predicted[name, size]))
                             for name in (fast, slow)]
                    wrong.append(f"{fast} is {ratio:.2f} times as fast as {slow} at {size} bytes, and predicted to be "
                                 f"slower (us: {times[0]}, not {times[1]}, the last is predicted)")
        return wrong, pairs

    def attempt(self, measured):
        """What is wrong, as a list of sentences, and whether the machine was quiet enough to tell."""
        others = OthersTime()
        predicted = self.predict()
        first = self.measure()
        second = self.measure()
        measured += [first, second]
        spread = statistics.median(max(first[key], second[key]) / min(first[key], second[key]) - 1 for key in first)
        least = {key: min(took[key] for took in measured) for key in first}
        self.assertEqual(set(least), set(predicted))
        error = statistics.median(abs(predicted[key] / least[key] - 1) for key in least)
        faults, pairs = self.ranked_wrongly(measured, predicted)
        busy = others.share()
        print(f"median error {error:.1%}; of {pairs} pairs {len(faults)} ranked wrongly; measured twice: {spread:.1%}; "
              f"others had {busy:.1%} of the processors", *faults, sep="\n  ", flush=True)
        if error > MARGIN:
            faults.append(f"the median of the errors is {error:.1%}")
        if pairs < PAIRS_LEAST:
            faults.append(f"{pairs} pairs of algorithms differ, fewer than {PAIRS_LEAST}")
        return faults, spread <= MARGIN and busy <= OTHERS

    def test_times_and_order_are_those_measured(self):
        measured, told = [], []
        for _ in range(ATTEMPTS):
            faults, quiet = self.attempt(measured)
            if not faults:
                return
            if quiet:
                told.append(faults)
        if not told:
            self.skipTest(f"the machine is not steady: in each of {ATTEMPTS} attempts what is measured twice differs by "
                          f"more than {MARGIN:.0%} (median), or others had more than {OTHERS:.0%} of the processors")
        self.fail(f"{len(told)} of {ATTEMPTS} attempts could tell; the last of them: " + "; ".join(told[-1]))


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    sys.exit(not result.wasSuccessful() or (SKIPPED if result.skipped else 0))
