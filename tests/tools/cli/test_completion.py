"""Candidates of completion are the commands, options and names that the help and the lists have."""

import os
import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
BIN = pathlib.Path(os.environ.get("BANYAN_BUILD", ROOT / "build")) / "bin"


def candidates(*words):
    """Candidates and directives for the last word, with what follows each."""
    done = subprocess.run([BIN / "banyan", "__complete", *words], capture_output=True, text=True,
                          timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done
    return dict(line.split("\t") for line in done.stdout.splitlines())


def output(*words):
    return subprocess.run([BIN / "banyan", *words], capture_output=True, text=True, check=True,
                          timeout=60).stdout


def option_names(*command):
    return set(re.findall(r"(?m)^  (?:-\w, |    )(--[a-z-]+)", output(*command, "--help")))


class Candidates(unittest.TestCase):
    def test_every_command_and_option_of_the_help_is_a_candidate(self):
        def look_at(*command):
            text = output(*command, "--help")
            names = re.findall(r"(?m)^  ([a-z][a-z-]*)(?: \S+)*  +[a-z]", text)
            if names:
                self.assertEqual(set(names) | {"help"},
                                 {name for name in candidates(*command, "x") if name[0] != ":"
                                  and name[0] != "-"})
            for name in names:
                look_at(*command, name)
            options = {name for name in candidates(*command, "--") if name.startswith("--")}
            if option_names(*command):
                self.looked += 1
                self.assertEqual(options, option_names(*command), command)

        self.looked = 0
        look_at()
        self.assertGreaterEqual(self.looked, 25)

    def test_names_are_those_of_the_library(self):
        algorithms = re.findall(r"(?m)^([a-z]\w+) ", output("algo", "list"))[1:]
        self.assertGreater(len(algorithms), 60)
        for words in (["algo", "emit", ""], ["simulate", "--algo", ""], ["simulate", "-a", "x"]):
            self.assertEqual(list(candidates(*words)), algorithms)
        topologies = re.findall(r"(?m)^([a-z]\S+) ", output("topo", "list"))[1:]
        for words in (["topo", "show", ""], ["plan", "view", "x.json", "-t", ""]):
            self.assertEqual(list(candidates(*words)), [*topologies, ":json"])
        packings, files = (re.findall(r"(?m)^([a-z]\w+) ", part)[1:]
                           for part in output("rules", "list").split("\n\n"))
        self.assertEqual(list(candidates("reshard", "--to", "tp=2,packing=")),
                         [f"tp=2,packing={name}" for name in packings])
        self.assertEqual(list(candidates("rules", "show", "")), files)
        self.assertIn("allreduce", candidates("tune", "-c", ""))
        self.assertIn("two_shot_nodes", candidates("mixed", "--mode", ""))
        self.assertIn("allreduce_allgather", candidates("mixed", "--op", ""))

    def test_types_are_types(self):
        for name in candidates("run", "--dtype", ""):
            done = subprocess.run([BIN / "banyan", "run", "--dtype", name, "/nowhere.json"],
                                  capture_output=True, text=True, timeout=60)
            self.assertIn("/nowhere.json", done.stderr)

    def test_keys_of_a_spec_are_those_that_the_parser_names(self):
        done = subprocess.run([BIN / "banyan", "plan-scale", "--model", "x", "--from", "no=1",
                               "--to", "tp=1"], capture_output=True, text=True, timeout=60)
        named = re.search(r"there are ([a-z_, ]+) and ([a-z_]+)", done.stderr)
        keys = {f"tp=1,{key}=" for key in [*named[1].split(", "), named[2]]}
        self.assertEqual(set(candidates("reshard", "--from", "tp=1,p")), keys)
        self.assertEqual(candidates("reshard", "--from", "tp=1,pp=2"), {})

    def test_operands_are_counted(self):
        options = {"--json", "--help"}
        for words, expected in [
                (["plan", "diff", ""], {":json"}), (["plan", "diff", "a", ""], {":json"}),
                (["plan", "diff", "--json", "a", "b", ""], options),
                (["check", "a", "b", ""], {":json"}), (["reshard", "verify", "a", ""], {":json"}),
                (["topo", "list", ""], options), (["topo", "show", "--", "h200x4", ""], set()),
                (["algo", "emit", "-n", ""], set()), (["help", "run", ""], set()),
                (["nonsense", ""], set())]:
            self.assertEqual(set(candidates(*words)), expected, words)

    def test_values_stand_behind_their_option(self):
        for words, expected in [
                (["run", "--memory=sy"], {"--memory=symmetric": "", "--memory=ordinary": ""}),
                (["reshard", "--in", ""], {":folders": ""}),
                (["reshard", "--svg=x"], {":files": "--svg="}),
                (["plan", "view", "x.json", "-ox"], {":files": "-o"}),
                (["launch", "-n", "2", "--", "cat", "-", "x"], {":command": "3"}),
                (["launch", "-n", "2", "ca"], {":command": "1"})]:
            self.assertEqual(candidates(*words), expected, words)


if __name__ == "__main__":
    unittest.main()
