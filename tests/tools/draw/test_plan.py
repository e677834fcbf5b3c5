"""banyan plan: lists, compares and counts plans; refuses wrong ones with a message."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ["BANYAN_BUILD"])
BANYAN = BUILD / "bin/banyan"
PLAN = ROOT / "tests/fuzz/corpus/plan/every-operation"
PLANS = BUILD / "tests/plans"


class Plan(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_plan(self, *arguments):
        return subprocess.run([BANYAN, "plan", *map(str, arguments)], capture_output=True, text=True,
                              timeout=60)

    def printed(self, *arguments, code=0):
        done = self.run_plan(*arguments)
        self.assertEqual((done.returncode, done.stderr), (code, ""))
        return done.stdout

    def assert_refused(self, part, *arguments, code=1):
        done = self.run_plan(*arguments)
        self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
        self.assertRegex(done.stderr, r"\Abanyan plan( \w+)?: .*\n")
        self.assertIn(part, done.stderr)

    def changed(self, change):
        """The plan with something changed in its JSON, as a file."""
        plan = json.loads(PLAN.read_text())
        change(plan)
        path = self.folder / "changed.json"
        path.write_text(json.dumps(plan))
        return path


class Adapt(Plan):
    def test_plans_are_adapted_and_proved(self):
        mine = self.folder / "mine.json"
        emitted = ["algo", "emit", "allgather_allpairs", "-n", "3", "-o", mine]
        subprocess.run([BANYAN, *emitted], check=True, timeout=60)
        theirs = self.folder / "theirs.json"
        self.assertEqual(self.printed("adapt", mine, "-o", theirs), "")
        plan = json.loads(theirs.read_text())
        self.assertEqual((plan["banyan"]["executor"], plan["use_double_scratch_buffer"]), ("mscclpp", False))
        check = [BANYAN, "check", "--executor", "mscclpp"]
        self.assertEqual(subprocess.run([*check, theirs], capture_output=True, timeout=60).returncode, 0)
        found = subprocess.run([*check, mine], capture_output=True, text=True, timeout=60)
        self.assertEqual(found.returncode, 1)
        self.assertIn(". executor, from messages of ", found.stdout)
        self.assertEqual(self.printed("adapt", theirs), theirs.read_text())
        self.assertEqual(self.printed("diff", mine, self.written(self.printed("adapt", mine, "--executor=banyan"))), "")

    def written(self, text):
        path = self.folder / "written.json"
        path.write_text(text)
        return path

    def test_what_the_executor_lacks_is_said(self):
        self.assert_refused("cannot run on MSCCL++'s executor: ", "adapt", PLAN)
        self.assert_refused("--executor takes one of banyan|mscclpp", "adapt", PLAN, "--executor=nccl", code=2)


class Show(Plan):
    def test_all_ranks_or_one_are_listed(self):
        text = self.printed("show", PLAN)
        self.assertIn("everything: mine of 2 ranks, LL protocol\n", text)
        self.assertIn("\nrank 0: ", text)
        self.assertIn("\nrank 1: ", text)
        one = self.printed("show", "--rank", 1, PLAN)
        self.assertNotIn("\nrank 0: ", one)
        self.assertIn("    11    put memory i[0], i[1..4) -> i[0]@0, s[0..3)@0\n", one)

    def test_every_command_that_reads_a_plan_takes_stdin(self):
        plan = subprocess.run([BANYAN, "algo", "emit", "allreduce_ring", "-n", "4"], capture_output=True,
                              check=True, timeout=60).stdout
        page = self.folder / "page.html"
        for command in [["check", "-"], ["simulate", "-", "--topology", "h200x4", "--size", "1M"],
                        ["plan", "view", "-", "-o", page], ["plan", "stats", "-"]]:
            done = subprocess.run([BANYAN, *command], input=plan, capture_output=True, timeout=60)
            self.assertEqual((done.returncode, done.stderr), (0, b""), command)
        self.assertIn(b"</html>", page.read_bytes())

    def test_plans_come_from_stdin_and_pipes_too(self):
        listed = self.printed("show", PLAN)
        for name in ["-", "/dev/stdin"]:
            with subprocess.Popen(["cat", PLAN], stdout=subprocess.PIPE) as plan:
                done = subprocess.run([BANYAN, "plan", "show", name], stdin=plan.stdout,
                                      capture_output=True, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stdout), (0, listed), done.stderr)
        with open(PLAN) as plan:
            done = subprocess.run([BANYAN, "plan", "diff", "-", PLAN], stdin=plan,
                                  capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        done = subprocess.run([BANYAN, "plan", "show", "-"], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr),
                         (1, "banyan plan show: /dev/stdin is a device, not a file\n"))

    def test_an_error_names_its_place(self):
        def out_of_range(plan):
            plan["gpus"][1]["threadblocks"][0]["ops"][1]["src_buff"][0]["index"] = 9
        path = self.changed(out_of_range)
        self.assert_refused(f"{path}: gpus[1].threadblocks[0].ops[1].src_buff[0].index is 9, and "
                            "rank 1's input has 4 chunks", "show", path)
        self.assert_refused("there is no file /nowhere", "show", "/nowhere")
        self.assert_refused("none with the number 2", "show", PLAN, "--rank=2")
        self.assert_refused("say which plan: PLAN.json", "show", code=2)


class Diff(Plan):
    def test_equal_plans_differ_in_nothing(self):
        def other_order(plan):
            plan["gpus"][0] = dict(reversed(plan["gpus"][0].items()))
        self.assertEqual(self.printed("diff", PLAN, self.changed(other_order)), "")

    def test_a_difference_is_told_and_makes_the_exit_code_1(self):
        def other_size(plan):
            plan["gpus"][0]["threadblocks"][1]["ops"][10]["iter_context"]["unit_size"] = 2048
        text = self.printed("diff", PLAN, self.changed(other_size), code=1)
        self.assertEqual(text, "rank 0, thread block 1, operation 10: "
                         "pipeline over 2 chunks in units of 1024 bytes | "
                         "pipeline over 2 chunks in units of 2048 bytes\n")

    def test_many_differences_are_counted(self):
        def no_operations(plan):
            for gpu in plan["gpus"]:
                for block in gpu["threadblocks"]:
                    nops = [{"name": "nop"}] * 100
                    block["ops"] = [op for op in block["ops"] if op["name"] == "barrier"] + nops
        text = self.printed("diff", PLAN, self.changed(no_operations), code=1)
        self.assertEqual(text.count("\n"), 101)
        self.assertRegex(text, r"\nand \d\d\d more\n\Z")

    def test_all_differences_are_in_the_json(self):
        def no_operations(plan):
            for gpu in plan["gpus"]:
                for block in gpu["threadblocks"]:
                    nops = [{"name": "nop"}] * 100
                    block["ops"] = [op for op in block["ops"] if op["name"] == "barrier"] + nops
        changed = self.changed(no_operations)
        report = json.loads(self.printed("diff", "--json", PLAN, changed, code=1))
        self.assertFalse(report["equal"])
        self.assertGreater(report["count"], 200)
        self.assertEqual(len(report["differences"]), report["count"])
        lines = self.printed("diff", PLAN, changed, code=1).splitlines()
        self.assertEqual(report["differences"][:100], lines[:100])
        self.assertEqual(json.loads(self.printed("diff", "--json", PLAN, PLAN)),
                         {"equal": True, "count": 0, "differences": []})

    def test_a_plan_that_cannot_be_read_is_no_difference(self):
        self.assert_refused("there is no file /nowhere", "diff", PLAN, "/nowhere", code=2)
        self.assert_refused("there is no file /nowhere", "diff", "/nowhere", PLAN, code=2)
        self.assert_refused("wants 2 plans, 1 given", "diff", PLAN, code=2)


class Stats(Plan):
    def test_figures_follow_from_the_size(self):
        def loop_of_ones(plan):
            for gpu in plan["gpus"]:
                for block in gpu["threadblocks"]:
                    block["ops"] = [op for op in block["ops"] if op["name"] == "rlxsignal"]
        path = self.changed(loop_of_ones)
        figures = json.loads(self.printed("stats", "--json", path, "--size=4K"))
        self.assertEqual(figures["message_bytes"], 4096)
        self.assertEqual(figures["input_bytes"], 4096)
        self.assertEqual(figures["operations"], 2)
        self.assertEqual(figures["signals"], 4)
        self.assertEqual(figures["links"], [])
        self.assertEqual(figures["scratch_bytes"], 2 * 8 * 1024)

    def test_links_are_listed_in_both_forms(self):
        figures = json.loads(self.printed("stats", "--json", PLAN))
        self.assertEqual([(link["source"], link["destination"]) for link in figures["links"]],
                         [(0, 1), (1, 0)])
        self.assertGreater(figures["links"][0]["bytes"], 0)
        text = self.printed("stats", PLAN)
        self.assertIn("1.00 MiB", text)
        self.assertRegex(text, r"\n0 -> 1 +\d.*\n1 -> 0 ")

    def test_a_size_that_the_plan_cannot_cut_is_refused(self):
        self.assert_refused("a message of 4098 bytes cannot be cut", "stats", PLAN, "--size=4098")
        self.assert_refused("--size wants", "stats", PLAN, "--size=many", code=2)

    def test_collectives_of_the_format_have_figures(self):
        for path in sorted(PLANS.glob("single_node_*.json")):
            figures = json.loads(self.printed("stats", "--json", path, "--size=64K"))
            ranks = figures["ranks"]
            self.assertEqual(len(figures["links"]), ranks * (ranks - 1), path)
            self.assertIn(figures["critical_hops"], (1, 2), path)


class Command(Plan):
    def test_help_and_usage(self):
        self.assertIn("usage: banyan plan", self.printed("--help"))
        for name in ["show", "diff", "stats", "adapt"]:
            self.assertIn(f"usage: banyan plan {name}", self.printed(name, "--help"))
        done = self.run_plan("frobnicate")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn('there is no command "frobnicate"', done.stderr)
        self.assertEqual(self.run_plan().returncode, 2)


if __name__ == "__main__":
    unittest.main()
