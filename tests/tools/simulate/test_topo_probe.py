"""A probed topology predicts what the built-in all-reduces take on this machine, and which is faster.

The machine may be busy with other things, and a hypervisor may move its processors: two that shared a core a minute ago
are behind different caches now, and all that crosses between them takes two to four times as long. So an attempt probes,
measures, probes, measures and probes again. It decides something if it was one machine all the time: what was measured
twice, and what the three probes predict, differ by no more than the margin (median), others had little of the
processors' time, and enough pairs of algorithms differ. Up to three attempts are made, and one that decides and finds
nothing wrong is enough; when none decides, the test is skipped. An attempt ends as soon as others have too much of the
processors' time, and none begins after two minutes. The test is skipped at once when a probe itself says that the
processors are moved.

Two algorithms must be ranked as measured when both measurements say that one takes more than half longer, and each was
measured twice within a tenth: a disturbed measurement decides nothing. One in a hundred such pairs may be ranked otherwise by
all probes: what signals cost that follow each other to a rank that waits is not in the model."""

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
SECONDS = 120  # after which no attempt begins
MARGIN = 0.3   # of the median error, and of what is measured or predicted several times
OTHERS = 0.05  # of the processors' time: with more for others, little is undisturbed
DIFFERENT = 1.5  # times as long: to be ranked in the same order
TWICE = 0.1  # apart, at most, are the times of what was measured undisturbed
PAIRS_LEAST = 100  # of those, or nothing is decided
WRONG = 0.01  # of them, at most
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


def fastest(several, key):
    return min(seconds[key] for seconds in several)


def spread(several, key):
    return max(seconds[key] for seconds in several) / fastest(several, key) - 1


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
        probed = finish("topo", "probe", "-n", RANKS, "-o", "-")
        json.loads(probed.stdout)
        topology.write_text(probed.stdout)
        warning = probed.stderr
        if warning:
            self.assertRegex(warning, r"a signal took \d+ ns at some times and \d+ ns at others")
            self.skipTest(warning)
        return {**self.for_all("simulate", "-t", topology, "--size", SIZES),
                **self.for_all("simulate", "-t", topology, "--size", LONG_SIZE)}

    def ranked_wrongly(self, measured, predicted):
        """Pairs that all measurements distinguish and all predictions rank the other way round, and the number of
        pairs."""
        sure = [key for key in measured[0] if spread(measured, key) <= TWICE]
        wrong, pairs = [], 0
        for slow, size in sure:
            for fast, other in sure:
                ratio = min(took[slow, size] / took[fast, size] for took in measured) if other == size else 0
                if ratio <= DIFFERENT:
                    continue
                pairs += 1
                if all(takes[slow, size] <= takes[fast, size] for takes in predicted):
                    def times(name, of):
                        return "/".join(f"{1e6 * one[name, size]:.2f}" for one in of)
                    wrong.append(f"{fast} is {ratio:.2f} times as fast as {slow} at {size} bytes, and predicted to be "
                                 f"slower (us: {times(fast, measured)}, not {times(slow, measured)}; predicted: "
                                 f"{times(fast, predicted)}, not {times(slow, predicted)})")
        return wrong, pairs

    def attempt(self):
        """Messages about errors, and reasons why they decide nothing."""
        others = OthersTime()
        predicted, measured = [self.predict()], []
        for _ in range(2):
            measured.append(self.measure())
            predicted.append(self.predict())
            busy = others.share()
            if busy > OTHERS:
                return [], [f"others had {busy:.0%} of the processors"]
        self.assertEqual(set(measured[0]), set(predicted[0]))
        error = statistics.median(abs(fastest(predicted, key) / fastest(measured, key) - 1) for key in measured[0])
        apart = [statistics.median(spread(each, key) for key in measured[0]) for each in (measured, predicted)]
        wrong, pairs = self.ranked_wrongly(measured, predicted)
        print(f"median error {error:.1%}; of {pairs} pairs {len(wrong)} ranked wrongly; measured twice: {apart[0]:.1%}; "
              f"probed three times: {apart[1]:.1%}; others had {busy:.1%} of the processors", *wrong, sep="\n  ",
              flush=True)
        faults = wrong if len(wrong) > WRONG * pairs else []
        if error > MARGIN:
            faults.append(f"the median of the errors is {error:.1%}")
        doubts = [f"what is {what} differs by {share:.0%} (median)"
                  for what, share in zip(("measured twice", "probed three times"), apart) if share > MARGIN]
        if pairs < PAIRS_LEAST:
            doubts.append(f"{pairs} pairs of algorithms differ, fewer than {PAIRS_LEAST}")
        return faults, doubts

    def test_times_and_order_are_those_measured(self):
        judged, doubted = [], []
        began = time.monotonic()
        while len(judged) + len(doubted) < ATTEMPTS and time.monotonic() - began < SECONDS:
            faults, doubts = self.attempt()
            if doubts:
                doubted.append(" and ".join(doubts))
            elif not faults:
                return
            else:
                judged.append(faults)
        if not judged:
            self.skipTest(f"the machine is not steady: in {len(doubted)} attempts " + "; then ".join(doubted))
        self.fail(f"{len(judged)} of {len(judged) + len(doubted)} attempts could decide; the last of them: " + "; ".join(judged[-1]))


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    sys.exit(not result.wasSuccessful() or (SKIPPED if result.skipped else 0))
