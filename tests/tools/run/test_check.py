"""banyan check: reports on several plans, in text and as JSON."""

import copy
import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import small_case
from collective_case import CollectiveCase


class Check(CollectiveCase):
    def unsound(self):
        """A ring whose rank 0 does not wait for its last message."""
        plan = self.plan("allreduce_ring", 2)
        ops = plan["gpus"][0]["threadblocks"][0]["ops"]
        del ops[max(i for i, op in enumerate(ops) if op["name"] == "wait")]
        return self.write(plan, "unsound.json")

    def test_a_single_plan_is_an_object(self):
        sound, unsound = self.emit("allreduce_ring", 2), self.unsound()
        report = json.loads(self.succeed("check", sound, "--json"))
        self.assertEqual((report["plan"], report["sound"], report["findings"]),
                         (str(sound), True, []))
        done = self.banyan("check", unsound, "--json")
        self.assertEqual((done.returncode, json.loads(done.stdout)["sound"]), (1, False))

    def test_findings_name_lines_and_chunks_and_are_folded(self):
        plan = self.plan("allgather_direct", 4)
        lines = [["ring.c", 42]]
        plan["banyan"] = {"lines": lines}
        for gpu in plan["gpus"]:
            for block in gpu["threadblocks"]:
                ops = block["ops"]
                last = max(i for i, op in enumerate(ops) if op["name"] in ("wait", "rlxwait"))
                ops.pop(last)
                for op in ops:
                    op["line"] = 1
        done = self.banyan("check", self.write(plan), "--no-warnings")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stdout, r", ring.c:42\)")
        self.assertRegex(done.stdout, r"bytes \[\d+, \d+\) \(chunk \d\)")
        self.assertRegex(done.stdout, r"\n   And \d+ identical, at ranks? \d")
        self.assertRegex(done.stdout, r"not sound, \d+ findings of \d+ kinds?, 0 warnings\n$")
        report = json.loads(self.banyan("check", self.folder / "plan.json", "--json",
                                        "--no-warnings").stdout)
        findings = report["findings"]
        self.assertEqual([finding["number"] for finding in findings], list(range(len(findings))))
        shown = [finding["number"] for finding in findings
                 if finding["number"] == finding["like"] == finding["cause"]]
        self.assertTrue(shown)
        self.assertEqual([int(line.split(".")[0]) for line in done.stdout.splitlines()
                          if line[:1].isdigit()], shown)
        self.assertLess(len(shown), len(findings))
        at = [place for finding in findings for place in finding["places"]]
        self.assertEqual({(place.get("file"), place.get("line")) for place in at},
                         {("ring.c", 42), (None, None)})

    def test_several_plans_are_checked_and_the_worst_is_the_exit_code(self):
        ring, pairs, unsound = (self.emit("allreduce_ring", 2), self.emit("allgather_allpairs", 2),
                                self.unsound())
        text = self.succeed("check", ring, pairs)
        self.assertEqual(text, f"{ring}: sound, 0 findings, 0 warnings\n"
                               f"{pairs}: sound, 0 findings, 0 warnings\n")
        done = self.banyan("check", ring, unsound, pairs, "--no-warnings")
        self.assertEqual((done.returncode, done.stderr), (1, ""))
        verdicts = [line for line in done.stdout.splitlines() if line.endswith(" warnings")]
        self.assertEqual([line.split(": ")[1].split(",")[0] for line in verdicts],
                         ["sound", "not sound", "sound"])

    def test_several_plans_are_a_list(self):
        ring, unsound = self.emit("allreduce_ring", 2), self.unsound()
        done = self.banyan("check", "--json", ring, "/nowhere.json", unsound)
        self.assertEqual((done.returncode, done.stderr),
                         (2, "banyan check: there is no file /nowhere.json\n"))
        reports = json.loads(done.stdout)
        self.assertEqual([report.get("sound") for report in reports], [True, None, False])
        self.assertEqual(reports[1], {"plan": "/nowhere.json",
                                      "error": "there is no file /nowhere.json"})

    def test_a_single_plan_that_cannot_be_read_prints_nothing(self):
        self.assert_refused(self.banyan("check", "--json", "/nowhere.json"), "banyan check",
                            "there is no file /nowhere.json", code=2)

    def test_several_cases_of_reshards_are_a_list(self):
        good, bad = small_case.case(), small_case.case()
        bad["transfers"].pop(1)
        paths = [self.write(good, "good.json"), self.write(bad, "bad.json")]
        done = self.banyan("check", "--reshard", "--json", *paths)
        self.assertEqual((done.returncode, done.stderr), (1, ""))
        self.assertEqual([report["sound"] for report in json.loads(done.stdout)], [True, False])

    def test_a_case_is_played_on_several_nodes(self):
        """Ranks 2 and 3 of one node need the same: it crosses once, and rank 2 or 3 passes it on."""
        case = small_case.case()
        case["world_size"] = 4
        other = copy.deepcopy(case["ranks"][2])
        other["rank"] = 3
        for rank in (case["ranks"][2], other):
            for tensor in rank["dst"]:
                tensor["data_parallel_group_ranks"] = [2, 3]
        for tensor in other["dst"]:
            tensor["owner_rank"] = 3
            tensor["tensor_parallel_group_ranks"] = tensor["pipeline_parallel_group_ranks"] = [3]
        case["ranks"].append(other)
        case["transfers"] += [{**one, "task_id": one["task_id"] + 3, "dst_rank": 3}
                              for one in case["transfers"]]
        path = self.write(case, "nodes.json")
        self.assertEqual(self.succeed("check", "--reshard", path), f"{path}: sound, 0 findings\n")
        self.assertRegex(self.succeed("check", "--reshard", path, "--ranks-per-node", 2),
                         r": sound, 0 findings, 2 nodes, [3-9] waves played\n$")
        report = json.loads(self.succeed("check", "--reshard", path, "--ranks-per-node", 2, "--json"))
        self.assertEqual((report["nodes"], report["sound"]), (2, True))
        self.assert_refused(self.banyan("check", path, "--ranks-per-node", "2"), "banyan check",
                            "--ranks-per-node needs --reshard", code=2)

    def test_a_plan_is_asked_for(self):
        self.assert_refused(self.banyan("check"), "banyan check", "say which plans", code=2)


if __name__ == "__main__":
    unittest.main()
