"""Jobs on two machines, started as docs/cluster.md says; addresses and interfaces."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import cluster

BUILD = pathlib.Path(os.environ["BANYAN_BUILD"])
BANYAN = str(BUILD / "bin/banyan")
PAGE = pathlib.Path("docs/cluster.md").read_text()
SECRET = "00112233445566778899aabbccddeeff"
HEAD = "10.77.3.1"
#: Two ranks on each of two machines.
TABLE = re.compile(r"4 ranks on 2 nodes, transports (shm,ucx)\n")
SETTINGS = {
    "BANYAN_SECRET": SECRET,
    "BANYAN_PORT": "29601",
    "BANYAN_MODULE_PATH": str(BUILD / "lib"),
    "BANYAN_TIMEOUT": "30",
    "UCX_TLS": "tcp",
}


def torchrun() -> str | None:
    """Return PyTorch's launcher, if there is one."""
    return os.environ.get("BANYAN_TORCHRUN") or shutil.which("torchrun")


def has_slurm() -> bool:
    """Tell whether Slurm is installed."""
    return all(shutil.which(name) for name in ("srun", "slurmctld", "slurmd"))


#: A cluster of the two machines, without accounts.
SLURM = """ClusterName=test
SlurmctldHost=machine0(10.77.3.1)
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
ReturnToService=2
NodeName=machine0 NodeAddr=10.77.3.1 CPUs=2
NodeName=machine1 NodeAddr=10.77.3.2 CPUs=2
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def by_hand(rank: int, address: str) -> dict[str, str]:
    """Return the variables that torchrun sets."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": "4",
        "LOCAL_RANK": str(rank % 2),
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": address,
        "MASTER_PORT": "29600",
    }


def start_by_hand(pair, address, *words, **more):
    """Start two ranks of a command of banyan on each machine; without words, `world info`."""
    words = words or ("world", "info")
    return [
        pair[rank // 2].start(BANYAN, *words, **(SETTINGS | by_hand(rank, address) | more))
        for rank in range(4)
    ]


def write_plan(path, ranks):
    """Write the plan of an all-reduce between nodes of two ranks."""
    words = ["allreduce_hierarchical", "-n", str(ranks), "--ranks-per-node", "2", "-o", str(path)]
    subprocess.run([BANYAN, "algo", "emit", *words], check=True, capture_output=True)


def finish(ranks):
    """Return exit codes, output of the first, and errors of all."""
    outputs = [one.communicate(timeout=100) for one in ranks]
    return [one.returncode for one in ranks], outputs[0][0], [one[1] for one in outputs]


class Addresses(unittest.TestCase):
    def check_data(self, pair, address, **more):
        """Run a plan between the machines; the command compares every element."""
        with tempfile.TemporaryDirectory() as folder:
            plan = pathlib.Path(folder) / "plan.json"
            write_plan(plan, 4)
            words = ["run", str(plan), "-s", "1K:256K", "--step-factor", "16"]
            codes, out, errors = finish(start_by_hand(pair, address, *words, **more))
            self.assertEqual(codes, [0] * 4, errors)
            self.assertIn("all are right", out)

    def test_machines_with_ipv6_alone(self):
        with cluster.machines(version=6) as pair:
            for address in ("fd77:3::1", "[fd77:3::1]", "head"):
                with self.subTest(address):
                    codes, out, errors = finish(start_by_hand(pair, address))
                    self.assertEqual(codes, [0] * 4, errors)
                    self.assertRegex(out, TABLE)
                    self.assertIn("eth0 fd77:3::2", out)
            self.check_data(pair, "fd77:3::1")

    def test_an_interface_is_chosen_and_others_are_not_used(self):
        with cluster.machines(dead=True) as pair:
            for names in ("eth", "=eth0", "^dead,lo", "none,eth0"):
                with self.subTest(names):
                    codes, out, errors = finish(start_by_hand(pair, HEAD, BANYAN_IFNAME=names))
                    self.assertEqual(codes, [0] * 4, errors)
                    self.assertRegex(out, TABLE)
            self.check_data(pair, HEAD, BANYAN_IFNAME="eth")
            # The other network leads nowhere: with its addresses no rank reaches another machine.
            codes, _, errors = finish(
                start_by_hand(pair, HEAD, BANYAN_IFNAME="dead", BANYAN_TIMEOUT="8")
            )
            self.assertNotIn(0, codes, errors)
            self.assertIn("10.99.", "".join(errors))

    def test_an_interface_that_is_missing_is_an_error_with_a_list(self):
        with cluster.machines(dead=True) as pair:
            for names in ("ib", "=eth", "^eth,dead,lo"):
                codes, _, errors = finish(start_by_hand(pair, HEAD, BANYAN_IFNAME=names))
                self.assertEqual(codes, [1] * 4)
                self.assertIn(
                    f'BANYAN_IFNAME is "{names}", and no network interface with an address '
                    "matches; there are: lo,dead0,eth0\n",
                    errors[3],
                )


class Commands(unittest.TestCase):
    """Commands that are ranks of a job measure across its machines."""

    def test_run_and_mixed(self):
        with cluster.machines() as pair, tempfile.TemporaryDirectory() as folder:
            plan = pathlib.Path(folder) / "plan.json"
            for ranks in (4, 8):
                write_plan(plan, ranks)
                words = ["run", str(plan), "-s", "4K:8K", "--json"]
                codes, out, errors = finish(start_by_hand(pair, HEAD, *words))
                if ranks == 4:
                    self.assertEqual(codes, [0] * 4, errors)
                    self.assertEqual(json.loads(out)["ranks"], 4)
            self.assertEqual(codes, [1] * 4)
            self.assertIn(
                "banyan run: this process is rank 3 of a job of 4, and the command is for 8 ranks",
                errors[3],
            )
            words = "mixed --local-tp 2 --inter-dp 2 --rows 4:4 --hidden 64 --json"
            codes, out, errors = finish(start_by_hand(pair, HEAD, *words.split()))
            self.assertEqual(codes, [0] * 4, errors)
            self.assertTrue(json.loads(out))

    def test_tune_writes_rows_for_nodes(self):
        with cluster.machines() as pair, tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "table.json"
            words = ["tune", "-o", str(path), *"-c allreduce -s 1K:4K --seconds 4".split()]
            codes, out, errors = finish(start_by_hand(pair, HEAD, *words))
            self.assertEqual(codes, [0] * 4, errors)
            rows = json.loads(path.read_text())["rows"]
            on_nodes = [one for one in rows if one["ranks_per_node"] == 2]
            self.assertEqual({one["ranks"] for one in on_nodes}, {4})
            self.assertEqual({one["collective"] for one in on_nodes}, {"allreduce"})
            self.assertIn("4 ranks, a rank's input", out)


class Launchers(unittest.TestCase):
    def check_page(self, *parts):
        """Check that the page has the command that the test runs."""
        flat = " ".join(PAGE.replace("\\\n", " ").split())
        for part in parts:
            self.assertIn(part, flat)

    @unittest.skipUnless(torchrun(), "there is no torchrun (BANYAN_TORCHRUN, or in PATH)")
    def test_torchrun(self):
        words = (
            "--nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint head:29400 "
            "--rdzv-id 7"
        )
        self.check_page(f"torchrun {words}")
        with cluster.machines() as pair:
            agents = [
                one.start(
                    torchrun(), *words.split(), "--no-python", BANYAN, "world", "info", **SETTINGS
                )
                for one in pair
            ]
            outputs = [one.communicate(timeout=200) for one in agents]
            self.assertEqual([one.returncode for one in agents], [0, 0], outputs)
            self.assertRegex(outputs[0][0] + outputs[1][0], TABLE)

    @unittest.skipUnless(shutil.which("mpirun"), "there is no mpirun")
    def test_mpirun(self):
        self.check_page("mpirun -n 4 --host head:2,second:2 -x BANYAN_IFNAME")
        with cluster.machines() as pair, tempfile.TemporaryDirectory() as folder:
            agent = pathlib.Path(folder) / "agent"  # starts Open MPI's daemon on a machine
            cases = "".join(
                f"{name}|10.77.3.{one.number + 1}) set -- {' '.join(one.inside)} ;;\n"
                for name, one in zip(("head", "second"), pair, strict=True)
            )
            agent.write_text(
                f'#!/bin/sh\nhost=$1; shift; command="$*"\ncase $host in\n{cases}esac\n'
                'exec "$@" sh -c "$command"\n'
            )
            agent.chmod(0o755)
            command = "mpirun -n 4 --host head:2,second:2 -x BANYAN_IFNAME".split()
            command += ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
            command += ["--mca", "plm_rsh_agent", str(agent)]
            for name in ("BANYAN_MODULE_PATH", "BANYAN_TIMEOUT", "UCX_TLS"):
                command += ["-x", name]
            settings = SETTINGS | {"BANYAN_IFNAME": "eth0"}
            done = pair[0].start(*command, BANYAN, "world", "info", **settings)
            out, errors = done.communicate(timeout=100)
            self.assertEqual(done.returncode, 0, errors)
            self.assertRegex(out, TABLE)
            self.check_page("banyan tune -o table.json")
            path = pathlib.Path(folder) / "table.json"
            short = "-c allgather -s 1K:1K --seconds 6".split()
            done = pair[0].start(*command, BANYAN, "tune", "-o", str(path), *short, **settings)
            out, errors = done.communicate(timeout=100)
            self.assertEqual(done.returncode, 0, errors)
            rows = json.loads(path.read_text())["rows"]
            self.assertIn((4, 2), {(one["ranks"], one["ranks_per_node"]) for one in rows})

    @unittest.skipUnless(has_slurm(), "there is no srun, slurmctld or slurmd")
    def test_srun(self):
        words = "-N 2 -n 4 --mpi=pmix"
        self.check_page(f"srun {words}")
        with cluster.machines() as pair, tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            config = folder / "slurm.conf"
            config.write_text(SLURM.format(folder=folder))
            (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
            (folder / "mpi.conf").write_text("PMIxCliTmpDirBase=/mnt\n")
            for one in pair:  # slurmd wants groups of processes, and uses none here
                one.run(*"mount -t tmpfs tmpfs /sys/fs/cgroup".split())
                one.run(*"mount -t tmpfs tmpfs /mnt".split())
            commands = [[*pair[0].inside, "slurmctld", "-D", "-f", str(config)]]
            commands += [
                [*one.inside, "slurmd", "-D", "-N", f"machine{one.number}", "-f", str(config)]
                for one in pair
            ]
            quiet = subprocess.DEVNULL
            daemons = [subprocess.Popen(one, stdout=quiet, stderr=quiet) for one in commands]
            try:
                self.wait_for_nodes(pair[0], str(config))
                done = pair[0].start(
                    *f"srun {words}".split(),
                    BANYAN,
                    "world",
                    "info",
                    **(SETTINGS | {"SLURM_CONF": str(config)}),
                )
                out, errors = done.communicate(timeout=100)
                self.assertEqual(done.returncode, 0, errors + self.logs(folder))
                self.assertRegex(out, TABLE)
            finally:
                for one in reversed(daemons):
                    one.terminate()
                    try:
                        one.wait(timeout=10)
                    except subprocess.TimeoutExpired:
                        one.kill()
                        one.wait()

    def logs(self, folder):
        """Return what the daemons logged."""
        return "".join(f"{one}:\n{one.read_text()}" for one in folder.glob("*.log"))

    def wait_for_nodes(self, machine, config):
        """Wait until both machines may run jobs."""
        try:
            cluster.wait_until(
                lambda: (
                    machine.run(
                        "env", f"SLURM_CONF={config}", "sinfo", "-h", "-t", "idle", "-o", "%D"
                    ).strip()
                    == "2"
                ),
                40,
            )
        except (TimeoutError, subprocess.CalledProcessError) as error:
            self.fail(f"{error}: {self.logs(pathlib.Path(config).parent)}")


if __name__ == "__main__":
    if not shutil.which("ip") or not shutil.which("nsenter"):
        print("skipped: there is no ip or nsenter")
        sys.exit(77)
    if not (BUILD / "lib/libbanyan_ucx.so").exists():
        print("skipped: this build has no UCX module")
        sys.exit(77)
    try:
        with cluster.machines():
            pass
    except (cluster.Skipped, subprocess.CalledProcessError) as reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    unittest.main()
