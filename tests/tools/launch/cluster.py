"""Machines for tests: network namespaces with their own host names, joined by a virtual cable."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator

#: UCX lists the network cards of a machine in /sys. Open MPI takes machines of one name for one.
OWN = (
    "mount -t sysfs sysfs /sys; mount -t tmpfs tmpfs /dev/shm; mount --bind {hosts} /etc/hosts; "
    "hostname machine{i}; exec sleep 600"
)


class Skipped(Exception):
    """This machine cannot make others."""


class Machine:
    """One machine; `inside` are the words before a command that run it there."""

    def __init__(self, number: int, hosts: pathlib.Path) -> None:
        """Start it, without network cards but loopback."""
        self.number = number
        self.holder = subprocess.Popen(
            ["unshare", "-n", "-m", "-u", "sh", "-c", OWN.format(i=number, hosts=hosts)],
            stderr=subprocess.DEVNULL,
        )
        self.inside = ["nsenter", "-t", str(self.holder.pid), "-n", "-m", "-u"]

    def has_started(self) -> bool:
        """Tell whether it has its namespaces."""
        if self.holder.poll() is not None:
            raise Skipped("this user may make no network namespaces")
        return pathlib.Path(f"/proc/{self.holder.pid}/comm").read_text() == "sleep\n"

    def run(self, *command: str, timeout: float = 60) -> str:
        """Run a command on it; return what it prints."""
        return subprocess.run(
            [*self.inside, *command], check=True, capture_output=True, text=True, timeout=timeout
        ).stdout

    def start(self, *command: str, **settings: str) -> subprocess.Popen[str]:
        """Start a command on it, with variables."""
        variables = [f"{name}={value}" for name, value in settings.items()]
        return subprocess.Popen(
            [*self.inside, "env", *variables, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def wait_until(done: Callable[[], bool], seconds: float = 10) -> None:
    """Wait until a function returns true."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise TimeoutError("the machines do not start")
        time.sleep(0.01)


def connect(pair: list[Machine], addresses: list[str], *, dead: bool) -> None:
    """Give the machines their cards and addresses."""
    prefix, nodad = ("/64", ["nodad"]) if ":" in addresses[0] else ("/24", [])
    for one in pair:
        one.run(*"ip link set lo up".split())
        if dead:
            one.run(*"ip link add dead0 type veth peer name dead1".split())
            one.run("ip", "address", "add", f"10.99.{one.number}.1/24", "dev", "dead0")
            one.run(*"ip link set dead0 up".split())
            one.run(*"ip link set dead1 up".split())
    second = str(pair[1].holder.pid)
    pair[0].run(*"ip link add eth0 type veth peer name eth0 netns".split(), second)
    for one, address in zip(pair, addresses, strict=True):
        one.run("ip", "address", "add", address + prefix, "dev", "eth0", *nodad)
        one.run(*"ip link set eth0 up".split())
    for one in pair:
        wait_until(lambda one=one: "up" in one.run("cat", "/sys/class/net/eth0/operstate"))


@contextlib.contextmanager
def machines(*, version: int = 4, dead: bool = False) -> Iterator[list[Machine]]:
    """Make two machines, called head and second: 10.77.3.1 and .2, or fd77:3::1 and ::2.

    With `dead`, each has another card before this one, whose network leads nowhere.
    """
    addresses = [f"10.77.3.{i + 1}" if version == 4 else f"fd77:3::{i + 1}" for i in range(2)]
    with tempfile.TemporaryDirectory() as folder:
        hosts = pathlib.Path(folder) / "hosts"
        hosts.write_text(
            f"127.0.0.1 localhost\n{addresses[0]} head machine0\n{addresses[1]} second machine1\n"
        )
        pair = [Machine(i, hosts) for i in range(2)]
        try:
            for one in pair:
                wait_until(one.has_started)
            try:
                connect(pair, addresses, dead=dead)
            except subprocess.CalledProcessError as error:
                raise Skipped(f"no virtual network cards: {error.stderr}") from error
            yield pair
        finally:
            for one in pair:
                one.holder.kill()
                one.holder.wait()
