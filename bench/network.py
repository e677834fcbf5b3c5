"""Puts, copies, collectives, reshards and versions between machines, beside their peers.

usage: network.py BUILD [puts] [collectives] [reshard] [publish]; all of them by default. The peers
are ucx_perftest and Open MPI, and for versions of a model the whole model. The machines are
network namespaces, joined by a bridge. Goals: at least 90 % of ucx_perftest's bandwidth, at most
1.3 times its latency, and copies at least 85 % of its bandwidth; collectives of 4 and 2 ranks on 2
machines at least as fast as Open MPI's; a reshard at 85 % of the bandwidth, with at most 1.05 times
the least bytes on the wire; a version of which 3 % have changed 10 times as fast as the whole
model.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

SECRET = "00112233445566778899aabbccddeeff"
ROUNDS = 3
#: UCX lists the network cards of a machine in /sys. Open MPI takes machines of one name for one.
OWN = "mount -t sysfs sysfs /sys; mount -t tmpfs tmpfs /dev/shm; hostname machine{}; exec sleep 600"
ENGINES = 64  # that subscribe at once
LONGEST = 4 << 20  # bytes of a collective
#: Links of the reshard: slower than the processors, which all machines share.
LINK = "1gbit"
QUEUE = ["burst", "512kb", "latency", "20ms"]
#: One TCP stream of about 2 s, and its rate at the receiver.
SEND = """
import socket, sys, time
to = socket.create_connection((sys.argv[1], 29602))
data, end = bytes(1 << 20), time.monotonic() + 2
while time.monotonic() < end:
    to.sendall(data)
"""
RECEIVE = """
import socket, time
[at, _] = socket.create_server(("", 29602)).accept()
data, count = bytearray(1 << 20), at.recv_into(bytearray(1))
start = time.monotonic()
while some := at.recv_into(data):
    count += some
print(count / (time.monotonic() - start))
"""


def has_started(pid: int) -> bool:
    """Tell whether a holder has its namespaces, and has mounted its own /sys."""
    return pathlib.Path(f"/proc/{pid}/comm").read_text() == "sleep\n"


@contextlib.contextmanager
def machines(count: int = 2) -> Iterator[list[list[str]]]:
    """Make machines on one bridge; yield the words before a command that run it there."""
    switch = ["unshare", "-n", "sh", "-c", "ip link add switch type bridge; exec sleep 600"]
    names = ["unshare", "-n", "-m", "-u", "sh", "-c"]
    holders = [subprocess.Popen([*names, OWN.format(i)]) for i in range(count)]
    holders.append(subprocess.Popen(switch))
    try:
        inside = [["nsenter", "-t", str(one.pid), "-n", "-m", "-u"] for one in holders[:count]]
        outside = ["nsenter", "-t", str(holders[count].pid), "-n"]
        end = time.monotonic() + 10
        while not all(has_started(one.pid) for one in holders):
            if time.monotonic() > end or any(one.poll() is not None for one in holders):
                sys.exit("network: not measured, since this user may make no network namespaces")
            time.sleep(0.01)
        run(outside, "ip", "link", "set", "switch", "up")
        for i, node in enumerate(inside):
            cable = ["type", "veth", "peer", "eth0", "netns", str(holders[i].pid)]
            run(outside, "ip", "link", "add", f"port{i}", *cable)
            run(outside, "ip", "link", "set", f"port{i}", "master", "switch", "up")
            run(node, "ip", "address", "add", f"10.77.1.{i + 1}/24", "dev", "eth0")
            run(node, "ip", "link", "set", "lo", "up")
            run(node, "ip", "link", "set", "eth0", "up")
        for node in inside:  # UCX leaves out cards that are not up
            while "up" not in run(node, "cat", "/sys/class/net/eth0/operstate"):
                time.sleep(0.01)
        yield inside
    finally:
        for one in holders:
            one.kill()
            one.wait()


def run(node: list[str], *command: str) -> str:
    """Run a command on a machine; return what it prints."""
    return subprocess.run(
        [*node, *command], check=True, capture_output=True, text=True, timeout=120
    ).stdout


def perftest(nodes: list[list[str]], *options: str, pairs: int = 1) -> list[list[float]]:
    """Run ucx_perftest between machines i and i + len / 2, all pairs at once.

    Return the numbers of each: iterations, latencies (us), MB/s, messages/s.
    """
    command = ["env", "UCX_TLS=tcp", "ucx_perftest", *options]
    far = len(nodes) // 2
    servers = [
        subprocess.Popen([*nodes[far + i], *command], stdout=subprocess.PIPE) for i in range(pairs)
    ]
    try:
        time.sleep(0.3)
        clients = [
            subprocess.Popen(
                [*nodes[i], *command[:3], f"10.77.1.{far + i + 1}", *options, "-f"],
                stdout=subprocess.PIPE,
                text=True,
            )
            for i in range(pairs)
        ]
        outputs = [one.communicate(timeout=120)[0] for one in clients]
        for server in servers:
            server.wait(timeout=30)
    finally:
        for server in servers:
            server.kill()
    words = [out.splitlines()[-1].replace("Final:", "").split() for out in outputs]
    return [[float(word) for word in line] for line in words]


def banyan(
    nodes: list[list[str]], build: pathlib.Path, ranks: int, *program: str, first: int = 0
) -> dict[str, Any]:
    """Run a program's ranks, spread over the machines; return what rank 0 measured.

    `first`: number of ranks on the first machine, if not as many as on the others.
    """
    settings = [
        "UCX_TLS=tcp",
        f"WORLD_SIZE={ranks}",
        "MASTER_ADDR=10.77.1.1",
        "MASTER_PORT=29600",
        "BANYAN_PORT=29601",
        f"BANYAN_SECRET={SECRET}",
        f"BANYAN_MODULE_PATH={build / 'lib'}",
    ]
    command = [str(build / "bin" / program[0]), *program[1:]]

    def node_of(rank: int) -> int:
        return int(rank >= first) if first else rank * len(nodes) // ranks

    started = [
        subprocess.Popen(
            [*nodes[node_of(rank)], "env", *settings, f"RANK={rank}", *command],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    outputs = [one.communicate(timeout=120)[0] for one in started]
    if any(one.returncode for one in started):
        sys.exit("network: a rank failed")
    found: dict[str, Any] = json.loads(outputs[0])
    return found


def stream(nodes: list[list[str]], pairs: int) -> float:
    """Return the bytes a second of plain TCP between as many pairs of machines at once."""
    far = len(nodes) // 2
    receive = [
        subprocess.Popen([*nodes[far + i], sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE)
        for i in range(pairs)
    ]
    time.sleep(0.5)
    send = [
        subprocess.Popen([*nodes[i], sys.executable, "-c", SEND, f"10.77.1.{far + i + 1}"])
        for i in range(pairs)
    ]
    rates = [float(one.communicate(timeout=60)[0]) for one in receive]
    for one in send:
        one.wait()
    return sum(rates)


def reshards(build: pathlib.Path) -> bool:
    """Measure a reshard between four machines; return True if a goal of direct is missed."""
    speed = ["-t", "ucp_put_bw", "-s", str(1 << 20), "-n", "200", "-w", "20"]
    best: dict[str, dict[str, float]] = {}
    perf = plain = 0.0
    with machines(4) as nodes:
        for node in nodes:
            run(node, *f"tc qdisc add dev eth0 root tbf rate {LINK}".split(), *QUEUE)
        for _ in range(ROUNDS):
            rates = perftest(nodes, *speed, pairs=2)
            perf = max(perf, sum(one[-4] * 2**20 for one in rates))
            plain = max(plain, stream(nodes, 2))
            for backend in ("direct", "pipeline"):
                one = banyan(nodes, build, 8, "network_reshard", backend)
                if backend not in best or one["seconds"] < best[backend]["seconds"]:
                    best[backend] = one
    print(
        "reshard from 4 ranks on 2 machines to 4 on 2 others, each box needed twice in a machine\n"
        f"two links of {LINK}: perftest {perf / 1e6:.0f} MB/s, plain TCP {plain / 1e6:.0f} MB/s\n"
        f"{'':<10}{'MB/s':>8}{'share of the faster':>22}{'goal':>8}"
        f"{'wire/minimum':>14}{'goal':>8}"
    )
    missed = False
    for backend, one in best.items():
        wire = one["wire_bytes"] / one["bytes"]
        rate = one["wire_bytes"] / one["seconds"]
        share = rate / max(perf, plain)
        wrong = backend == "direct" and (wire > 1.05 or share < 0.85)
        missed |= wrong
        print(
            f"{backend:<10}{rate / 1e6:>8.0f}{share:>22.2f}{0.85:>8.2f}{wire:>14.3f}{1.05:>8.2f}"
            f"{'  MISSED' if wrong else ''}"
        )
    return missed


def publish(build: pathlib.Path) -> bool:
    """Measure versions of a model between two machines; return True if a goal is missed."""
    with machines() as nodes:
        for node in nodes:
            run(node, *f"tc qdisc add dev eth0 root tbf rate {LINK}".split(), *QUEUE)
        plain = banyan(nodes, build, 4, "network_publish", "densities", "off")
        found = banyan(nodes, build, 4, "network_publish", "densities")
        step = banyan(nodes, build, 2, "network_publish", "step")
        join = banyan(nodes, build, 1 + ENGINES, "network_publish", "join", first=1)
    whole = found["whole_seconds"]
    print(
        f"versions of a model of {found['bytes'] / 1e6:.0f} MB in bf16, from 2 ranks to 2, {LINK}\n"
        f"whole by a reshard {whole:.3f} s, the first version {found['first_seconds']:.3f} s\n"
        f"{'changed':<10}{'seconds':>10}{'of whole':>10}{'goal':>8}{'publish':>10}{'commit':>10}"
        f"{'bytes/3 for each':>18}{'goal':>8}{'not compressed':>17}{'of whole':>10}{'bytes/3':>9}"
    )
    missed = False
    for one, other in zip(found["versions"], plain["versions"], strict=True):
        times = whole / one["seconds"]
        goal = 10 if one["share"] <= 0.03 else 1
        wire, plain_wire = (each["sent_bytes"] / 3 / each["changed"] for each in (one, other))
        wrong = times < goal or (one["share"] == 0.03 and wire > 1.25)
        missed |= wrong
        print(
            f"{one['share'] * 100:<10g}{one['seconds']:>10.3f}{times:>9.1f}x{goal:>7.1f}x"
            f"{one['publish_seconds']:>10.3f}{one['commit_seconds']:>10.3f}{wire:>18.2f}"
            f"{1.25:>8.2f}{other['seconds']:>17.3f}"
            f"{plain['whole_seconds'] / other['seconds']:>9.1f}x{plain_wire:>9.2f}"
            f"{'  MISSED' if wrong else ''}"
        )
    slower = step["beside_seconds"] / step["alone_seconds"] - 1
    missed |= slower > 0.05
    print(
        f"a step of {step['alone_seconds']:.3f} s beside a fetch: {slower * 100:+.1f} %, goal 5 %"
        f"{'  MISSED' if slower > 0.05 else ''}\n"
        f"{join['engines']} engines of {join['bytes'] / 1e6:.1f} MB at once: {join['joined']} "
        f"joined, {join['dropped']} dropped, all had the version after {join['join_seconds']:.2f} s"
        f", and one with 3 % changed after {join['update_seconds']:.2f} s "
        f"(publish {join['publish_seconds']:.3f} s)\n"
    )
    return missed


def collectives(nodes: list[list[str]], build: pathlib.Path, ranks: int) -> bool:
    """Run collectives beside Open MPI's; print its table, and return True if one is slower."""
    with tempfile.TemporaryDirectory() as folder:
        agent = pathlib.Path(folder) / "agent"  # starts Open MPI's daemon on a machine
        cases = "".join(
            f"10.77.1.{i + 1}) set -- {' '.join(node)} ;;\n" for i, node in enumerate(nodes)
        )
        agent.write_text(
            f'#!/bin/sh\nhost=$1; shift; command="$*"\ncase $host in\n{cases}esac\n'
            'exec "$@" sh -c "$command"\n'
        )
        agent.chmod(0o755)
        settings = {
            "BANYAN_SECRET": SECRET,
            "BANYAN_PORT": "29601",
            "BANYAN_MODULE_PATH": str(build / "lib"),
            "MASTER_ADDR": "10.77.1.1",
            "MASTER_PORT": "29600",
            "UCX_TLS": "tcp",
        }
        options = {
            "plm_rsh_agent": str(agent),
            "oob_tcp_if_include": "10.77.1.0/24",
            "btl": "self,vader,tcp",
            "btl_tcp_if_include": "10.77.1.0/24",
            "pml": "ob1",
            "mpi_yield_when_idle": "1",  # the machines share their processors
        }
        slots = ranks // len(nodes)
        hosts = ",".join(f"10.77.1.{i + 1}:{slots}" for i in range(len(nodes)))
        command = ["mpirun", "--allow-run-as-root", "--host", hosts, "-n", str(ranks)]
        command += ["--oversubscribe", "--bind-to", "none"]
        for name, value in options.items():
            command += ["--mca", name, value]
        for name, value in settings.items():
            command += ["-x", f"{name}={value}"]
        command += [str(build / "bin/collectives_beside_mpi"), "8", str(LONGEST)]
        table = subprocess.run(
            [*nodes[0], *command], check=True, stdout=subprocess.PIPE, text=True, timeout=600
        ).stdout
    print(table.replace("  MISSED", ""), end="")  # its goals are those of one machine
    ratios = [float(one) for one in re.findall(r"([0-9.]+)x", table)]
    slower = sum(one < 1 for one in ratios)
    print(f"slower than Open MPI: {slower} of {len(ratios)}{'  MISSED' if slower else ''}\n")
    return slower > 0


def puts(nodes: list[list[str]], build: pathlib.Path) -> bool:
    """Measure puts and copies beside ucx_perftest; return True if a goal is missed."""
    ours: dict[str, float] = {}
    theirs = {"put_bytes_per_s": 0.0, "put_latency_us": float("inf")}
    for _ in range(ROUNDS):  # in turn, since machines are shared
        one = banyan(nodes, build, 2, "network_ranks")
        for name, value in one.items():
            if isinstance(value, str):
                continue
            better = min if name.endswith("_us") else max
            ours[name] = better(ours.get(name, value), value)
        [speed] = perftest(nodes, "-t", "ucp_put_bw", "-s", str(1 << 20), "-n", "1000", "-w", "50")
        [late] = perftest(nodes, "-t", "ucp_put_lat", "-s", "8", "-n", "20000", "-w", "1000")
        theirs["put_bytes_per_s"] = max(theirs["put_bytes_per_s"], speed[-4] * 2**20)
        theirs["put_latency_us"] = min(theirs["put_latency_us"], late[1])
    rows = [
        ("puts of 1 MiB, GB/s", "put_bytes_per_s", "put_bytes_per_s", 1e9, 0.9),
        ("put of 8 bytes, us", "put_latency_us", "put_latency_us", 1, 1.3),
        ("copy of 64 MiB, GB/s", "copy_bytes_per_s", "put_bytes_per_s", 1e9, 0.85),
    ]
    print(
        f"{'between two namespaces, TCP':<30}{'banyan':>10}{'perftest':>10}{'ratio':>8}{'goal':>8}"
    )
    missed = False
    for title, mine, peer, unit, goal in rows:
        ratio = ours[mine] / theirs[peer]
        wrong = ratio > goal if mine.endswith("_us") else ratio < goal
        missed |= wrong
        print(
            f"{title:<30}{ours[mine] / unit:>10.2f}{theirs[peer] / unit:>10.2f}{ratio:>8.2f}"
            f"{goal:>8.2f}{'  MISSED' if wrong else ''}"
        )
    return missed


def main() -> int:
    """Measure the parts, print ratios, and return 1 if a goal is missed."""
    build = pathlib.Path(sys.argv[1]).resolve()
    parts = sys.argv[2:] or ["puts", "collectives", "reshard", "publish"]
    if not (build / "lib/libbanyan_ucx.so").exists():
        print("network: not measured, since this build has no UCX module")
        return 0
    for tool in ("ucx_perftest", "ip", "tc", "unshare", "nsenter"):
        if not shutil.which(tool):
            print(f"network: not measured, since {tool} is missing")
            return 0
    has_mpi = shutil.which("mpirun") and (build / "bin/collectives_beside_mpi").exists()
    missed = False
    with machines() as nodes:
        if "puts" in parts:
            missed |= puts(nodes, build)
        if "collectives" in parts and not has_mpi:
            print("network: collectives are not measured, since Open MPI is missing")
        elif "collectives" in parts:
            missed |= collectives(nodes, build, 4)
            missed |= collectives(nodes, build, 2)
    if "reshard" in parts:
        missed |= reshards(build)
    if "publish" in parts:
        missed |= publish(build)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
