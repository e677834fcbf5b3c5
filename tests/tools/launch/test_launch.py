"""banyan launch: exit codes, output, signals, and nothing left behind."""

import os
import pathlib
import pty
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BUILD = pathlib.Path(os.environ["BANYAN_BUILD"])
BANYAN = BUILD / "bin/banyan"
HELLO = BUILD / "bin/example_hello"


def command(*arguments):
    return [str(BANYAN), *map(str, arguments)]


def launch(*arguments, **options):
    return subprocess.run(command("launch", *arguments), capture_output=True, text=True,
                          timeout=60, **options)


def shell(ranks, script, *options, **more):
    return launch("-n", ranks, *options, "--", "sh", "-c", script, **more)


def sleepers(marker):
    """Processes whose command line has the marker."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            pass
    return found


def wait_for(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def marker():
    """A duration that no other test sleeps for."""
    marker.count += 1
    return f"{9000 + marker.count}.{os.getpid()}"


marker.count = 0


class CommandLine(unittest.TestCase):
    def test_help_and_version_succeed(self):
        for arguments, part in [(["--help"], "launch"), (["--version"], "banyan 0."),
                                (["launch", "--help"], "--tag-output")]:
            done = subprocess.run(command(*arguments), capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn(part, done.stdout)

    def test_wrong_calls_are_refused_with_a_message(self):
        for arguments, part in [([], "usage"), (["fly"], "no command \"fly\""),
                                (["launch"], "-n N"), (["launch", "-n", "2"], "give the program"),
                                (["launch", "-n", "x", "true"], "not \"x\""),
                                (["launch", "-n", "0", "true"], "from 1 to"),
                                (["launch", "-n", "99999", "true"], "from 1 to"),
                                (["launch", "-n"], "needs a value"),
                                (["launch", "--fly", "true"], "no option --fly"),
                                (["launch", "--tag-output=1", "true"], "takes no value"),
                                (["launch", "-n1", "--timeout", "-3", "true"], "seconds")]:
            done = subprocess.run(command(*arguments), capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertIn(part, done.stderr)


class ExitCodes(unittest.TestCase):
    def test_success_is_silent(self):
        done = shell(4, "exit 0")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_the_exit_code_is_that_of_the_rank_that_failed(self):
        mark = marker()
        done = shell(4, f"[ $BANYAN_RANK = 2 ] && exit 7; sleep {mark}")
        self.assertEqual(done.returncode, 7)
        self.assertRegex(done.stderr, r"rank 2 \(process \d+\) exited with code 7; ending the other 3")
        self.assertEqual(sleepers(mark), [])

    def test_a_signal_is_128_and_its_number(self):
        done = shell(3, "[ $BANYAN_RANK = 1 ] && kill -9 $$; sleep 60")
        self.assertEqual(done.returncode, 137)
        self.assertIn("was killed by signal 9 (Killed)", done.stderr)

    def test_a_killed_rank_is_the_cause_of_its_peers_errors(self):
        with tempfile.TemporaryDirectory() as folder:
            # The pipe's end is what the others see of the death.
            pipe = pathlib.Path(folder) / "pipe"
            os.mkfifo(pipe)
            done = shell(4, f"[ $BANYAN_RANK = 3 ] && {{ exec 3>{pipe}; kill -9 $$; }}; "
                            f"cat {pipe}; exit 1")
        self.assertEqual(done.returncode, 137)
        self.assertIn("rank 3", done.stderr)

    def test_a_program_that_cannot_run_is_named(self):
        done = launch("-n", 3, "no-such-program")
        self.assertEqual(done.returncode, 127)
        self.assertEqual(done.stderr.count("cannot run no-such-program: No such file"), 1)
        self.assertTrue(done.stderr.endswith(" in the folders of PATH\n"), done.stderr)
        self.assertEqual(launch("-n", 3, "/etc/passwd").returncode, 126)
        self.assertTrue(launch("-n", 3, "/no/program").stderr.endswith("cannot run /no/program: No such file or directory\n"))

    def test_a_program_of_this_folder_is_told_of(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "mine").touch()
            done = launch("-n", 2, "mine", cwd=folder)
        self.assertEqual(done.returncode, 127)
        self.assertIn(" in the folders of PATH; there is ./mine\n", done.stderr)

    def test_a_rank_that_ignores_sigterm_is_killed(self):
        mark = marker()
        began = time.monotonic()
        done = shell(3, f"trap '' TERM; [ $BANYAN_RANK = 0 ] && exit 3; sleep {mark}; sleep {mark}",
                     "--grace", "0.3")
        self.assertEqual(done.returncode, 3)
        self.assertLess(time.monotonic() - began, 10)
        self.assertEqual(sleepers(mark), [])

    def test_the_timeout_ends_the_job(self):
        done = launch("-n", 2, "--timeout", "0.3", "sleep", "60")
        self.assertEqual(done.returncode, 124)
        self.assertIn("still runs after 0.3 s", done.stderr)


class Environment(unittest.TestCase):
    def test_each_rank_has_its_identity(self):
        done = shell(3, "echo $BANYAN_RANK $BANYAN_WORLD_SIZE $BANYAN_LOCAL_RANK $BANYAN_LOCAL_SIZE")
        self.assertEqual(sorted(done.stdout.split("\n"))[1:], ["0 3 0 3", "1 3 1 3", "2 3 2 3"])

    def test_ranks_share_a_secret_that_every_job_has_anew(self):
        secrets = []
        for _ in range(2):
            lines = shell(3, "echo $BANYAN_SECRET $BANYAN_JOB").stdout.split("\n")[:-1]
            self.assertEqual(len(set(lines)), 1)
            self.assertRegex(lines[0], "^[0-9a-f]{32} [0-9a-f]{32}$")
            secrets.append(lines[0].split())
        self.assertNotEqual(secrets[0][0], secrets[1][0])
        self.assertNotEqual(secrets[0][1], secrets[1][1])

    def test_a_secret_that_is_given_stays(self):
        done = shell(2, "echo $BANYAN_SECRET", env={**os.environ, "BANYAN_SECRET": "ab" * 16})
        self.assertEqual(done.stdout, ("ab" * 16 + "\n") * 2)

    def test_a_wrong_secret_is_refused_and_not_shown(self):
        for wrong in ("", "xyz", "ab" * 15 + "a", "ab" * 15 + "ax", "ab" * 17):
            done = shell(2, "echo started", env={**os.environ, "BANYAN_SECRET": wrong})
            self.assertEqual((done.returncode, done.stdout), (1, ""), wrong)
            self.assertIn(f"BANYAN_SECRET has {len(wrong)} characters", done.stderr)
            self.assertFalse(wrong and wrong in done.stderr)

    def test_rank_zero_has_stdin(self):
        done = shell(3, "echo $BANYAN_RANK:$(cat)", input="hello")
        self.assertEqual(sorted(done.stdout.split()), ["0:hello", "1:", "2:"])


class Output(unittest.TestCase):
    def test_lines_are_tagged_and_whole(self):
        line = "x" * 3000
        done = shell(4, f"for i in 1 2 3 4 5 6 7 8 9; do printf {line[:1500]}; "
                        f"printf {line[1500:]}; echo .$i; done; printf end; echo oops >&2",
                     "--tag-output")
        self.assertEqual(done.returncode, 0)
        for rank in range(4):
            mine = [text for text in done.stdout.split("\n") if text.startswith(f"[{rank}] ")]
            self.assertEqual(mine, [f"[{rank}] {line}.{i}" for i in range(1, 10)] + [f"[{rank}] end"])
        self.assertEqual(sorted(done.stderr.split("\n"))[1:], [f"[{rank}] oops" for rank in range(4)])

    def test_output_of_a_failing_job_is_kept(self):
        done = shell(2, "echo before; exit 5", "--tag-output")
        self.assertIn("before", done.stdout)

    def test_a_background_process_does_not_hold_the_job(self):
        mark = marker()
        began = time.monotonic()
        done = shell(2, f"sleep {mark} & echo started $!", "--tag-output")
        self.assertLess(time.monotonic() - began, 20)
        pids = [int(text) for text in re.findall(r"started (\d+)", done.stdout)]
        self.assertEqual(len(pids), 2)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


class Signals(unittest.TestCase):
    def start(self, script, *options, ranks=3):
        started = subprocess.Popen(command("launch", "-n", ranks, *options, "--", "sh", "-c", script),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   stdin=subprocess.DEVNULL)
        self.addCleanup(started.communicate)
        return started

    def ready(self, started, ranks=3):
        for _ in range(ranks):
            self.assertEqual(started.stdout.readline(), "ready\n")

    def test_signals_are_forwarded(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            name = number.name.removeprefix("SIG")
            started = self.start(f"trap 'echo got {name}; exit 0' {name}; echo ready; "
                                 "while true; do sleep 0.05; done")
            self.ready(started)
            started.send_signal(number)
            output, _ = started.communicate(timeout=30)
            self.assertEqual(output, f"got {name}\n" * 3)
            self.assertEqual(started.returncode, 0)

    def test_ranks_that_a_signal_ends_give_their_code(self):
        mark = marker()
        started = self.start(f"echo ready; exec sleep {mark}")
        self.ready(started)
        started.send_signal(signal.SIGTERM)
        self.assertEqual(started.wait(timeout=30), 143)
        self.assertEqual(sleepers(mark), [])

    def test_a_second_signal_ends_ranks_that_ignore_the_first(self):
        mark = marker()
        started = self.start(f"trap '' INT TERM; echo ready; sleep {mark}", "--grace", "0.2")
        self.ready(started)
        started.send_signal(signal.SIGINT)
        time.sleep(0.2)
        self.assertIsNone(started.poll())
        started.send_signal(signal.SIGINT)
        self.assertEqual(started.wait(timeout=30), 130)
        self.assertEqual(sleepers(mark), [])

    def test_a_killed_launcher_leaves_nothing(self):
        for script in ("exec sleep {0}", "sleep {0}; true", "sleep {0} & sleep {0}; wait"):
            mark = marker()
            started = self.start("echo ready; " + script.format(mark), "--tag-output", ranks=1)
            self.assertEqual(started.stdout.readline(), "[0] ready\n")
            self.assertTrue(wait_for(lambda: sleepers(mark)))
            started.kill()
            started.wait(timeout=30)
            self.assertTrue(wait_for(lambda: not sleepers(mark)), sleepers(mark))

    def test_children_of_a_failing_rank_end_with_it(self):
        mark = marker()
        started = self.start(f"sleep {mark} & [ $BANYAN_RANK = 1 ] && exit 4; wait")
        self.assertEqual(started.wait(timeout=30), 4)
        self.assertTrue(wait_for(lambda: not sleepers(mark)), sleepers(mark))

    def test_the_terminal_reaches_every_rank_once(self):
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(BANYAN, command("launch", "-n", "2", "--", "sh", "-c",
                                     "trap 'echo interrupt' INT; echo ready; read line; "
                                     "echo rank $BANYAN_RANK: $line; sleep 1; sleep 1; exit 0"))
        seen = b""
        while seen.count(b"ready") < 2:
            seen += os.read(terminal, 1000)
        os.write(terminal, b"hello\n")
        while b"rank 0: hello" not in seen:
            seen += os.read(terminal, 1000)
        os.write(terminal, b"\x03")
        try:
            while part := os.read(terminal, 1000):
                seen += part
        except OSError:
            pass
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
        self.assertEqual(os.waitstatus_to_exitcode(status), 0)
        self.assertEqual(seen.count(b"interrupt"), 2, seen)


class Descriptors(unittest.TestCase):
    def test_every_limit_works_or_is_an_error_at_once(self):
        worked = []
        for limit in range(3, 40):
            done = launch("-n", 4, "--", HELLO, preexec_fn=lambda: resource.setrlimit(
                resource.RLIMIT_NOFILE, (limit, limit)), env={**os.environ, "BANYAN_TIMEOUT": "30"})
            worked += [limit] * (done.returncode == 0)
            if done.returncode != 0:
                self.assertNotIn("TIMEOUT", done.stderr)
                self.assertNotIn("waited", done.stderr)
                self.assertRegex(done.stderr, "Too many open files|ulimit -n|shared libraries")
        self.assertEqual(worked, list(range(worked[0], 40)))
        self.assertLess(worked[0], 32)


class Worlds(unittest.TestCase):
    """A program that opens a world from its environment."""

    def assert_met(self, output, ranks):
        self.assertEqual(sorted(re.findall(r"rank (\d+) of (\d+), node 0 of 1", output)),
                         [(str(rank), str(ranks)) for rank in range(ranks)])

    def test_launched_ranks_meet(self):
        done = launch("-n", 4, HELLO)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_met(done.stdout, 4)

    def test_jobs_beside_each_other_do_not_meet(self):
        started = [subprocess.Popen(command("launch", "-n", 3, HELLO), stdout=subprocess.PIPE,
                                    text=True) for _ in range(4)]
        for job in started:
            output, _ = job.communicate(timeout=60)
            self.assertEqual(job.returncode, 0)
            self.assert_met(output, 3)

    def test_a_process_alone_is_a_world(self):
        done = subprocess.run([HELLO], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_met(done.stdout, 1)

    def run_torchrun(self, ranks, **changes):
        """Start ranks as torchrun does, without PyTorch."""
        started = []
        for rank in range(ranks):
            variables = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank,
                         "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1",
                         "MASTER_PORT": 20000 + os.getpid() % 10000, "TORCHELASTIC_RUN_ID": "none",
                         **changes}
            started.append(subprocess.Popen(
                [HELLO], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env={**os.environ, **{name: str(value) for name, value in variables.items()}}))
        results = [job.communicate(timeout=60) for job in started]
        return [job.returncode for job in started], results

    def test_ranks_of_torchrun_meet(self):
        codes, results = self.run_torchrun(3)
        self.assertEqual(codes, [0, 0, 0], results)
        self.assert_met("".join(output for output, _ in results), 3)

    def test_a_wrong_variable_is_named(self):
        codes, results = self.run_torchrun(1, WORLD_SIZE="many")
        self.assertEqual(codes, [1])
        self.assertIn("WORLD_SIZE is \"many\"", results[0][1])

    def test_a_rank_that_dies_early_ends_the_job(self):
        began = time.monotonic()
        done = launch("-n", 3, "--", "sh", "-c", f"[ $BANYAN_RANK = 1 ] && exit 9; exec {HELLO}")
        self.assertEqual(done.returncode, 9)
        self.assertLess(time.monotonic() - began, 20)


if __name__ == "__main__":
    done = unittest.main(argv=[sys.argv[0], "-v"], exit=False)
    sys.exit(not done.result.wasSuccessful())
