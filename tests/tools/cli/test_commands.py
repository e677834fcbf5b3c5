"""The command line as a whole: its version, its help, and what it says to misspelt words."""

import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import small_model
from collective_case import CollectiveCase

SUBCOMMANDS = {"plan": ["show", "diff", "stats", "adapt", "view"], "layout": ["save", "learn", "check", "show"],
               "topo": ["list", "show", "probe"], "algo": ["list", "emit"],
               "rules": ["list", "show", "check"], "reshard": ["verify"], "compat": ["mscclpp"]}


class Commands(CollectiveCase):
    def commands(self):
        return re.findall(r"^  ([a-z-]+)  ", self.succeed("--help"), re.MULTILINE)

    def test_the_version(self):
        version = self.succeed("--version")
        self.assertRegex(version, r"^banyan \d+\.\d+\.\d+\n$")
        self.assertEqual(self.succeed("-V"), version)

    def test_help_of_a_command_equals_its_help_option(self):
        self.assertIn("reshard", self.commands())
        self.assertEqual(self.succeed("help"), self.succeed("--help"))
        for command in self.commands():
            text = self.succeed("help", command)
            self.assertTrue(text.startswith(f"usage: banyan {command} "), text)
            self.assertEqual(text, self.succeed(command, "--help"))
        for command, names in SUBCOMMANDS.items():
            self.assertEqual(re.findall(r"^  ([a-z]+) ", self.succeed("help", command),
                                        re.MULTILINE)[:len(names)], names)
            for name in names:
                text = self.succeed("help", command, name)
                self.assertTrue(text.startswith(f"usage: banyan {command} {name}"), text)
                self.assertEqual(text, self.succeed(command, "help", name))

    def test_columns_of_help_line_up(self):
        for command in self.commands():
            for part in self.succeed("help", command).split("\n\n"):
                for line in part.splitlines() if "    --help " in part else ():
                    self.assertRegex(line, r"^  .{30}  \S|^  .{31,}$|^ {34}\S")

    def test_misspelt_commands_and_options_are_recognised(self):
        for words, part in [
                (["reshrad"], 'no command "reshrad" (did you mean reshard?)'),
                (["help", "chekc"], 'no command "chekc" (did you mean check?)'),
                (["plan", "shwo"], 'no command "shwo" (did you mean show?)'),
                (["topo", "porbe"], 'no command "porbe" (did you mean probe?)'),
                (["algo", "emti"], 'no command "emti" (did you mean emit?)'),
                (["layout", "svae"], 'no command "svae" (did you mean save?)'),
                (["rules", "lits"], 'no command "lits" (did you mean list?)'),
                (["reshard", "--form=tp=1"], "no option --form=tp=1 (did you mean --from?)"),
                (["run", "x.json", "--itres", "3"], "no option --itres (did you mean --iters?)"),
                (["tune", "--hlep"], "no option --hlep (did you mean --help?)")]:
            self.assert_refused(self.banyan(*words), "banyan( [a-z]+)*", part, code=2)

    def test_control_characters_of_arguments_do_not_reach_the_terminal(self):
        for words in (["\x1b[31mx"], ["plan", "\x1b[31mx"], ["check", "--\x1b[31mx"], ["check", "\x1b[31mx"],
                      ["launch", "-n", "2", "\x1b[31mx"]):
            done = self.banyan(*words)
            self.assertNotEqual(done.returncode, 0)
            self.assertNotIn("\x1b", done.stdout + done.stderr)
            self.assertIn("\\x1b[31mx", done.stderr)

    def test_words_like_no_other_are_refused_without_a_guess(self):
        for words in (["frobnicate"], ["plan", "frobnicate"], ["run", "--frobnicate"],
                      ["run", "-x"]):
            done = self.banyan(*words)
            self.assertEqual((done.returncode, done.stdout), (2, ""), words)
            self.assertIn("--help lists them", done.stderr)
            self.assertNotIn("did you mean", done.stderr)

    def test_misspelt_algorithms_are_recognised(self):
        for words in (["algo", "emit", "allreduce_rign", "-n", 4],
                      ["simulate", "--algo", "allreduce_rign", "-t", "h200x4"]):
            done = self.banyan(*words)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn("called allreduce_rign (did you mean allreduce_ring?); banyan algo list "
                          "names them", done.stderr)

    def test_misspelt_tensors_are_recognised(self):
        model = self.folder / "model.json"
        small_model.write(small_model.dense(), model)
        done = self.banyan("reshard", "--model", model, "--from", "tp=1", "--to", "tp=2", "--skip",
                           "lm_haed.weight")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn('no tensor of the model fits "lm_haed.weight" (did you mean lm_head.weight?)',
                      done.stderr)


if __name__ == "__main__":
    unittest.main()
