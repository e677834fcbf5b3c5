"""Compare results with committed ones, and fail where they are slower beyond the noise.

usage: check.py BUILD [--only REGEX] [--rounds N] [--all] [--write | --add | --table]

Every result is a ratio to a limit or to a peer of the same run: above 1 is faster than that. The
benchmarks take turns, N rounds each. A ratio is slower if all of its rounds are below all committed
rounds, and its median is below the committed one by more than 5 %. Such rows are measured again
before they are reported.

bench/ratios has a file for each kind of machine. --write makes it, --add adds rounds to it, and
--table prints the results of this run.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "bench/ratios"
ROUNDS = 5
# A smaller change of a median is none, whatever the noise.
LEAST_CHANGE = 0.05
NOT_MEASURED = 77


class Result(NamedTuple):
    """What a benchmark measured: its own time or speed, and those of the limit and the peer."""

    unit: str
    ours: float
    limit: float | None = None
    peer: float | None = None

    def ratios(self) -> dict[str, float]:
        """Return how many times as fast as the limit and the peer it is."""
        found = {}
        for name, other in (("limit", self.limit), ("peer", self.peer)):
            if other is not None and other > 0 and self.ours > 0:
                found[name] = other / self.ours if self.unit == "µs" else self.ours / other
        return found


Results = dict[str, Result]
# The rounds' ratios by the name of the row.
Ratios = dict[str, list[float]]


class Benchmark(NamedTuple):
    """A program, and the function that reads its lines."""

    command: list[str]
    read: Callable[[str], Results]


# ---- benchmarks ----

COLLECTIVE = re.compile(
    r"^(?P<name>all-[\w-]+) +(?P<ranks>\d+) ranks +(?P<bytes>\d+) B +(?P<limit>[\d.]+) µs"
    r" +(?P<peer>[\d.]+) µs +(?P<ordinary>[\d.]+) µs +[\d.]+x +(?P<registered>[\d.]+) µs",
    re.MULTILINE,
)


def read_collectives(text: str) -> Results:
    """Read the lines of collectives_beside_mpi. Memcpy is no limit of short messages."""
    found = {}
    for line in COLLECTIVE.finditer(text):
        limit = float(line["limit"]) if int(line["bytes"]) >= 32 << 10 else None
        for memory in ("ordinary", "registered"):
            name = f"{line['name']}, {line['ranks']} ranks, {line['bytes']} B, {memory}"
            found[name] = Result("µs", float(line[memory]), limit, float(line["peer"]))
    return found


COPY = re.compile(
    r"^  (?P<name>\w+, \w+) +(?P<ours>[\d.]+) GB/s +[\d.]+ ms +\d+ % of memcpy's"
    r" (?P<limit>[\d.]+) GB/s",
    re.MULTILINE,
)


def read_copies(text: str) -> Results:
    """Read the lines of one part of bench_copy. MPI is the peer of all others."""
    title = text.split(":")[0]
    lines = list(COPY.finditer(text))
    speeds = {line["name"]: float(line["ours"]) for line in lines}
    peer = speeds.get("mpi, ordinary")
    return {
        f"{title}, {line['name']}": Result("GB/s", float(line["ours"]), float(line["limit"]), peer)
        for line in lines
        if not line["name"].startswith("mpi")
    }


TRANSFORM = re.compile(
    r"^(?P<name>\w+ -> \w+) +(?P<ours>[\d.]+) +(?P<limit>[\d.]+) +\d+%", re.MULTILINE
)


def read_transforms(text: str) -> Results:
    """Read the lines of bench_transform."""
    return {
        line["name"].replace("->", "to"): Result("GB/s", float(line["ours"]), float(line["limit"]))
        for line in TRANSFORM.finditer(text)
    }


TRANSPORT = re.compile(
    r"^(?P<name>(?:get|put)[^%]*?) {2,}(?P<ours>[\d.]+) GB/s +\d+ % of (?P<limit>[\d.]+),",
    re.MULTILINE,
)


def read_transports(text: str) -> Results:
    """Read the lines of bench_transport; of a name that comes twice, the last one."""
    return {
        line["name"]: Result("GB/s", float(line["ours"]), float(line["limit"]))
        for line in TRANSPORT.finditer(text)
    }


def benchmarks(build: pathlib.Path) -> dict[str, Benchmark]:
    """Return the benchmarks of a build by name."""
    programs = build / "bin"
    found = {
        f"collectives-{ranks}": Benchmark(
            [
                "mpirun",
                "-n",
                str(ranks),
                str(programs / "collectives_beside_mpi"),
                "8",
                str(2 << 20),
            ],
            read_collectives,
        )
        for ranks in (2, 4, 8)
    }
    for part in ("small", "large", "model"):
        found[f"copy-{part}"] = Benchmark([str(programs / "bench_copy"), part], read_copies)
    found["transform"] = Benchmark([str(programs / "bench_transform")], read_transforms)
    found["transport"] = Benchmark([str(programs / "bench_transport")], read_transports)
    return found


def measure(chosen: Mapping[str, Benchmark], rounds: int) -> tuple[Ratios, dict[str, list[Result]]]:
    """Run the benchmarks in turns. The codes of those that missed a goal do not matter."""
    environment = dict(
        os.environ,
        OMPI_MCA_rmaps_base_oversubscribe="1",
        OMPI_MCA_hwloc_base_binding_policy="none",
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
    )
    ratios: Ratios = {}
    results: dict[str, list[Result]] = {}
    for turn in range(rounds):
        for name, benchmark in chosen.items():
            print(f"{name}: round {turn + 1} of {rounds}", file=sys.stderr, flush=True)
            done = subprocess.run(
                benchmark.command, env=environment, capture_output=True, text=True, timeout=600
            )
            found = benchmark.read(done.stdout)
            if not found:
                raise SystemExit(
                    f"bench-check: {name} printed no result (code {done.returncode}): "
                    f"{done.stderr.strip() or done.stdout.strip()}"
                )
            for row, result in found.items():
                results.setdefault(f"{name}: {row}", []).append(result)
                for other, ratio in result.ratios().items():
                    ratios.setdefault(f"{name}: {row}, of {other}", []).append(ratio)
    return ratios, results


# ---- comparison ----


class Change(NamedTuple):
    """A row whose rounds lie apart from the committed ones."""

    row: str
    before: float
    now: float
    noise: float

    @property
    def share(self) -> float:
        """Return by how much the median has grown."""
        return self.now / self.before - 1


class Comparison(NamedTuple):
    """The rows that differ, those without rounds, and those that are not committed."""

    slower: list[Change]
    faster: list[Change]
    missing: list[str]
    new: list[str]
    same: int


def noise_of(rounds: Iterable[float]) -> float:
    """Return the largest distance of a round from the median, as a share of it."""
    values = list(rounds)
    median = statistics.median(values)
    return max(max(values) - median, median - min(values)) / median


def compare(before: Ratios, now: Ratios) -> Comparison:
    """Compare rounds with committed ones."""
    slower, faster, same = [], [], 0
    for row in sorted(before.keys() & now.keys()):
        change = Change(
            row,
            statistics.median(before[row]),
            statistics.median(now[row]),
            max(noise_of(before[row]), noise_of(now[row])),
        )
        if max(now[row]) < min(before[row]) and change.share < -LEAST_CHANGE:
            slower.append(change)
        elif min(now[row]) > max(before[row]) and change.share > LEAST_CHANGE:
            faster.append(change)
        else:
            same += 1
    return Comparison(
        slower,
        faster,
        sorted(before.keys() - now.keys()),
        sorted(now.keys() - before.keys()),
        same,
    )


def benchmark_of(row: str) -> str:
    """Return the name of the benchmark that a row is of."""
    return row.split(":")[0]


def join(first: Ratios, second: Ratios) -> Ratios:
    """Return the rounds of both."""
    return {row: first.get(row, []) + second.get(row, []) for row in first.keys() | second.keys()}


def report(found: Comparison) -> list[str]:
    """Return the lines that tell what has changed."""
    lines = []
    for title, changes in (("slower", found.slower), ("faster", found.faster)):
        if changes:
            lines.append(f"{title:<72} {'before':>8} {'now':>8} {'change':>8} {'noise':>8}")
        for change in sorted(changes, key=lambda one: -abs(one.share)):
            lines.append(
                f"  {change.row:<70} {change.before:>8.2f} {change.now:>8.2f} "
                f"{change.share:>+8.0%} {change.noise:>8.0%}"
            )
    lines += [f"not measured, but committed: {row}" for row in found.missing]
    lines += [f"measured, but not committed (--write or --add): {row}" for row in found.new]
    lines.append(
        f"bench-check: {len(found.slower)} slower, {len(found.faster)} faster, {found.same} within "
        f"the noise, {len(found.missing)} not measured, {len(found.new)} not committed"
    )
    return lines


# ---- machines ----


def machine() -> dict[str, str | int]:
    """Describe this machine, as far as ratios depend on it."""
    described: dict[str, str | int] = {"processors": len(os.sched_getaffinity(0))}
    wanted = {"vendor_id", "cpu family", "model", "model name"}
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in wanted:
            described.setdefault(name.strip(), value.strip())
    return described


def file_of(described: Mapping[str, str | int]) -> pathlib.Path:
    """Return the file with the ratios of such machines."""
    words = [str(described.get(name, "")) for name in ("vendor_id", "cpu family", "model")]
    name = "-".join([*filter(None, words), str(described["processors"])])
    return FOLDER / f"{re.sub(r'[^A-Za-z0-9]+', '-', name).lower()}.json"


def load(path: pathlib.Path) -> Ratios:
    """Read the committed rounds."""
    return {row: list(rounds) for row, rounds in json.loads(path.read_text())["ratios"].items()}


def save(path: pathlib.Path, described: Mapping[str, str | int], ratios: Ratios) -> None:
    """Write rounds, one row a line."""
    rows = ",\n".join(
        f"    {json.dumps(row, ensure_ascii=False)}: {[round(value, 3) for value in ratios[row]]}"
        for row in sorted(ratios)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'{{\n  "machine": {json.dumps(described)},\n  "ratios": {{\n{rows}\n  }}\n}}\n'
    )


def table(results: Mapping[str, list[Result]]) -> list[str]:
    """Return the results with limit and peer as a table of Markdown: medians of the rounds."""
    lines = [
        "| result | unit | Banyan | limit | of it | Open MPI | times as fast |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row, rounds in results.items():
        cells = [row, rounds[0].unit, f"{statistics.median(one.ours for one in rounds):.4g}"]
        for name in ("limit", "peer"):
            others = [one for one in rounds if name in one.ratios()]
            if not others:
                cells += ["", ""]
                continue
            ratio = statistics.median(one.ratios()[name] for one in others)
            cells.append(f"{statistics.median(getattr(one, name) for one in others):.4g}")
            cells.append(f"{ratio:.0%}" if name == "limit" else f"{ratio:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def arguments(words: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--only", default="", help="benchmarks with such names")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--all", action="store_true", help="all benchmarks")
    parser.add_argument("--write", action="store_true", help="commit these ratios")
    parser.add_argument("--add", action="store_true", help="add these rounds to the committed ones")
    parser.add_argument("--table", action="store_true", help="print the results alone")
    return parser.parse_args(words)


# Those that take a few minutes together.
SHORT = ("collectives-2", "collectives-4", "copy-small", "copy-large")


def main(words: list[str]) -> int:
    """Measure and compare; return 1 if a row is slower, or was committed and not measured."""
    given = arguments(words)
    chosen = {
        name: benchmark
        for name, benchmark in benchmarks(given.build).items()
        if (re.search(given.only, name) if given.only else given.all or name in SHORT)
    }
    if not chosen:
        names = ", ".join(benchmarks(given.build))
        raise SystemExit(f"bench-check: no benchmark matches {given.only!r}; there are {names}")
    described = machine()
    path = file_of(described)
    if not path.exists() and not (given.write or given.table):
        print(f"bench-check: nothing is committed for this machine: {path} (--write makes it)")
        return NOT_MEASURED
    ratios, results = measure(chosen, given.rounds)
    if given.table:
        print("\n".join(table(results)))
        return 0
    committed = load(path) if path.exists() else {}
    if given.write or given.add:
        others = {
            row: rounds for row, rounds in committed.items() if benchmark_of(row) not in chosen
        }
        save(path, described, join(committed, ratios) if given.add else others | ratios)
        print(f"bench-check: {len(ratios)} rows are written to {path}")
        return 0
    before = {row: rounds for row, rounds in committed.items() if benchmark_of(row) in chosen}
    found = compare(before, ratios)
    again = {benchmark_of(change.row) for change in found.slower}
    if again:
        print(f"measured again: {', '.join(sorted(again))}", file=sys.stderr)
        more, _ = measure({name: chosen[name] for name in chosen if name in again}, given.rounds)
        found = compare(before, join(ratios, more))
    print("\n".join(report(found)))
    return 1 if found.slower or found.missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
