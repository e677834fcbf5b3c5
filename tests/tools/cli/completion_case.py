"""Base of the tests of completion: a shell on a terminal, in which TAB is pressed."""

import os
import pathlib
import pty
import re
import select
import shutil
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
BIN = pathlib.Path(os.environ.get("BANYAN_BUILD", ROOT / "build")) / "bin"
SOURCES = ROOT / "tools/completion"
READY, END = "ready> ", "<end>"

# `show` prints its arguments. The text lacks END, so that the terminal's echo has none.
SHOW = "show() { printf '<%s>' \"$@\"; printf '<e%s>\\n' nd; }"


class Shell:
    """A shell on a terminal, in a folder with a few files."""

    def __init__(self, program, start, **environment):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="dumb", COLUMNS="400", LINES="400",
                              PATH=f"{BIN}:{os.environ['PATH']}", HOME=str(BIN.parent),
                              **environment)
            os.execvp(program[0], program)
        self.read = ""
        self.send(start)
        self.wait_for(READY)
        self.send("show\n")
        self.wait_for(END + "\r\n")
        self.wait_for(READY)

    def send(self, text):
        os.write(self.terminal, text.encode())

    def wait_for(self, text):
        """Return what the terminal shows until `text`."""
        until = time.monotonic() + 120
        while text not in self.read:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.terminal], [], [], left)[0]:
                raise AssertionError(f"no {text!r} in {self.read!r}")
            self.read += os.read(self.terminal, 65536).decode(errors="replace")
        before, _, self.read = self.read.partition(text)
        return before

    def complete(self, line, tabs=1):
        """Press TAB and X behind the line. Return the words, and what was shown meanwhile."""
        self.send(line + "\t" * tabs + "X\x01show \n")
        shown = self.wait_for(END + "\r\n")
        self.wait_for(READY)
        return re.findall(r"<([^<>]*)>", shown.splitlines()[-1])[1:], shown

    def close(self):
        self.send("\x15exit\n")
        os.close(self.terminal)
        os.waitpid(self.pid, 0)


class ShellCase:
    """Completions of every shell."""

    def complete_to(self, line, *words):
        self.assertEqual(self.shell.complete(line)[0], list(words), line)

    def test_commands(self):
        self.complete_to("banyan simu", "simulate", "X")
        self.complete_to("banyan plan di", "plan", "diff", "X")
        self.complete_to("banyan algo em", "algo", "emit", "X")
        self.complete_to("banyan reshard ver", "reshard", "verify", "X")
        self.complete_to("banyan help topo pr", "help", "topo", "probe", "X")

    def test_options(self):
        self.complete_to("banyan run --out", "run", "--out-of-place", "X")
        self.complete_to("banyan reshard verify --ba", "reshard", "verify", "--backend", "X")

    def test_values(self):
        self.complete_to("banyan run --memory o", "run", "--memory", "ordinary", "X")
        self.complete_to("banyan run --memory=o", "run", "--memory=ordinary", "X")
        self.complete_to("banyan algo emit allreduce_packets_tw", "algo", "emit",
                         "allreduce_packets_twoshot", "X")
        self.complete_to("banyan topo show h200x8", "topo", "show", "h200x8", "X")

    def test_specs(self):
        self.complete_to("banyan reshard --from wor", "reshard", "--from", "world=X")
        self.complete_to("banyan reshard --from tp=2,wor", "reshard", "--from", "tp=2,world=X")
        self.complete_to("banyan reshard --from tp=2,packing=megatron_g", "reshard", "--from",
                         "tp=2,packing=megatron_grouped", "X")
        self.complete_to("banyan reshard --to=tp=2,packing=megatron_g", "reshard",
                         "--to=tp=2,packing=megatron_grouped", "X")

    def test_files(self):
        self.complete_to("banyan plan show pl", "plan", "show", "plan one.json", "X")
        self.complete_to("banyan plan show fold", "plan", "show", "folder/X")
        self.complete_to("banyan reshard --in fo", "reshard", "--in", "folder/X")
        self.complete_to("banyan run --trace=tr", "run", "--trace=trace.txt", "X")
        self.complete_to("banyan plan view x.json -otr", "plan", "view", "x.json", "-otrace.txt", "X")
        self.complete_to("banyan topo show ma", "topo", "show", "machine.json", "X")

    def test_candidates_are_listed(self):
        shown = self.shell.complete("banyan topo show dgx-h100x", tabs=2)[1]
        for name in ("dgx-h100x16", "dgx-h100x64", "dgx-h100x2048"):
            self.assertIn(name, shown)
        self.assertNotIn("h200x4", shown)

    def test_programs_of_launch(self):
        self.complete_to("banyan launch -n 2 -- banyan simu", "launch", "-n", "2", "--", "banyan",
                         "simulate", "X")
        self.complete_to("banyan launch --grace=2 -n 2 banyan run --memory=o", "launch", "--grace=2",
                         "-n", "2", "banyan", "run", "--memory=ordinary", "X")
        self.complete_to("banyan launch -n 2 base3", "launch", "-n", "2", "base32", "X")

    def test_nothing_is_run(self):
        self.shell.complete("banyan topo probe -o made --ra")
        self.shell.send("banyan run $(touch made) --memory=o\tX\x15show\n")
        self.shell.wait_for(END + "\r\n")
        self.shell.wait_for(READY)
        self.assertFalse((self.folder / "made").exists())

    def test_a_program_in_the_home_folder(self):
        self.complete_to("banyan simu", "simulate", "X")  # bash-completion 2.11 loads no file for "~/…"
        self.complete_to("~/bin/banyan run --memory=o", "run", "--memory=ordinary", "X")


def start(case, make):
    """Give the case a folder with files, and the shell that `make` starts for the folder share."""
    folder = tempfile.TemporaryDirectory()
    case.addClassCleanup(folder.cleanup)
    case.folder = pathlib.Path(folder.name) / "files"
    (case.folder / "folder").mkdir(parents=True)
    for name in ("plan one.json", "trace.txt", "machine.json"):
        (case.folder / name).write_text("")
    share = pathlib.Path(folder.name) / "share"
    for path, source in [("bash-completion/completions/banyan", "banyan.bash"),
                         ("zsh/site-functions/_banyan", "_banyan")]:
        (share / path).parent.mkdir(parents=True)
        shutil.copy(SOURCES / source, share / path)
    case.shell = make(share)
    case.addClassCleanup(case.shell.close)
    case.shell.send(f"cd {case.folder}\n")
    case.shell.wait_for(READY)
