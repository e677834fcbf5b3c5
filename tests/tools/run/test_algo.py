"""banyan algo: the built-in algorithms are listed, and emitted as plans that do what they say."""

import json
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from collective_case import BANYAN, CollectiveCase

COLLECTIVES = ["allreduce", "allgather", "reducescatter", "alltoall", "sendrecv", "broadcast",
               "reduce"]


class Algo(CollectiveCase):
    def listed(self):
        return json.loads(self.succeed("algo", "list", "--json"))

    def test_every_collective_has_algorithms_with_and_without_staging(self):
        for collective in COLLECTIVES:
            kinds = {entry["reaches_peers_buffers"] for entry in self.listed()
                     if entry["collective"] == collective}
            self.assertEqual(kinds, {False, True}, collective)

    def test_the_table_equals_the_json(self):
        lines = self.succeed("algo", "list").split("\n")[1:-1]
        self.assertEqual(
            [line.split(None, 3) for line in lines],
            [[entry["name"], entry["collective"],
              "buffers" if entry["reaches_peers_buffers"] else "scratch", entry["about"]]
             for entry in self.listed()])

    def test_output_that_finds_no_space_says_so_however_long_it_is(self):
        for ranks in (2, 64):
            with open("/dev/full", "w") as full:
                done = subprocess.run([BANYAN, "algo", "emit", "allreduce_ring", "-n", str(ranks)],
                                      stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stderr),
                             (1, "banyan: cannot write to stdout: No space left on device\n"))

    def test_every_algorithm_is_emitted_and_computes_its_collective(self):
        for entry in self.listed():
            name = entry["name"]
            path = self.folder / f"{name}.json"
            self.assertEqual(self.succeed("algo", "emit", name, "-n", 3, "-o", path), "")
            plan = json.loads(path.read_text())
            self.assertEqual((plan["name"], plan["collective"], len(plan["gpus"])),
                             (name, entry["collective"], 3))
            self.succeed("run", path, "--size", "5000", "--iters", 1)

    def test_options_change_the_plan(self):
        plain = self.plan("allreduce_pipelined", 4)
        self.assertFalse(plain["inplace"])
        self.assertTrue(self.plan("allreduce_pipelined", 4, "--in-place")["inplace"])
        self.assertIn('"unit_size": 8192',
                      json.dumps(self.plan("allreduce_pipelined", 4, "--unit", "8K")))
        self.assertIn('"min"', json.dumps(self.plan("allreduce_pipelined", 4, "--op", "min")))
        self.assertEqual(self.plan("reduce_tree", 4, "--root", 3)["banyan"]["root"], 3)
        self.assertEqual(self.plan("sendrecv_packets", 4, "--shift", 3)["banyan"]["shift"], 3)
        more = self.plan("allreduce_ring", 4, "--instances", 3)["gpus"][0]["threadblocks"]
        self.assertEqual(len(more), 3 * len(self.plan("allreduce_ring", 4, "--instances", 1)
                                            ["gpus"][0]["threadblocks"]))
        self.assertNotEqual(self.plan("allreduce_hierarchical", 4, "--ranks-per-node", 2),
                            self.plan("allreduce_hierarchical", 4, "--ranks-per-node", 4))

    def test_a_dash_is_stdout(self):
        words = ["algo", "emit", "allreduce_ring", "-n", 2]
        written = self.succeed(*words, "-o", "-", cwd=self.folder)
        self.assertEqual(written, self.succeed(*words))
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_impossible_parameters_are_refused(self):
        for words, part, code in [
                (["allreduce_ring"], "--ranks N is missing", 2),
                (["-n", 4], "say which algorithm", 2),
                (["allreduce_ring", "-n", "0"], "--ranks wants a number from 1", 2),
                (["allreduce_ring", "-n", "4", "--op", "avg"], "--op takes one of sum|min|max", 2),
                (["allreduce_ring", "-n", "4", "--unit", "-1"], "--unit wants bytes", 2),
                (["allreduce_ring", "-n", "4", "-o", ""], '--out wants a value: FILE, not ""', 2),
                (["allreduce_spring", "-n", "4"], "; banyan algo list names them", 1),
                (["reduce_tree", "-n", "4", "--root", "4"], "4", 1),
                (["reduce_tree", "-n", "4", "-o", "/nowhere/plan.json"], "there is no folder /nowhere", 1)]:
            self.assert_refused(self.banyan("algo", "emit", *words), "banyan algo emit", part, code)
        self.assert_refused(self.banyan("algo", "invent"), "banyan algo", '"invent"', 2)


if __name__ == "__main__":
    done = unittest.main(argv=[sys.argv[0], "-v"], exit=False)
    sys.exit(not done.result.wasSuccessful())
