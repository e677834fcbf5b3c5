"""banyan plan-scale: what planning costs a rank of a large world."""

import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import small_model

BANYAN = pathlib.Path(os.environ["BANYAN_BUILD"]) / "bin/banyan"


class PlanScale(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.model = small_model.dense()
        self.path = small_model.write(self.model, pathlib.Path(folder.name) / "small.json")

    def run_scale(self, *arguments):
        return subprocess.run([BANYAN, "plan-scale", "--model", self.path, *arguments],
                              capture_output=True, text=True, timeout=300)

    def measure(self, *arguments):
        done = self.run_scale("--json", *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)

    def test_all_ranks_together_receive_the_whole_destination(self):
        found = self.measure("--from", "tp=2,pp=2", "--to", "tp=4", "--disjoint",
                             "--ranks-sampled", "8")
        self.assertEqual(found["ranks"], 8)
        ranks = sorted(found["sampled"], key=lambda rank: rank["rank"])
        self.assertEqual([rank["rank"] for rank in ranks], list(range(8)))
        received = [rank["transfer_bytes"] for rank in ranks]
        self.assertEqual(received[:4], [0] * 4)
        # Norms lie whole on every rank, all else is cut in four.
        norms = {name: tensor for name, tensor in self.model.items() if "norm" in name}
        self.assertEqual(sum(received), small_model.size(self.model) + 3 * small_model.size(norms))

    def test_every_sampled_rank_has_its_costs(self):
        found = self.measure("--from", "tp=4,dp=64", "--to", "tp=8,dp=16", "--disjoint",
                             "--ranks-sampled", "9")
        self.assertEqual((found["ranks"], len(found["sampled"])), (384, 9))
        for rank in found["sampled"]:
            self.assertGreater(rank["seconds"], rank["owner_seconds"])
            # A sanitizer's allocator does not say what is allocated.
            if not os.environ.get("BANYAN_SANITIZE"):
                self.assertGreater(rank["bytes"], rank["owner_bytes"])
            self.assertGreater(rank["transfers"], 0)
        self.assertEqual(found["slowest_seconds"], max(r["seconds"] for r in found["sampled"]))
        self.assertEqual(found["most_bytes"], max(r["bytes"] for r in found["sampled"]))

    def test_what_two_ranks_of_a_node_need_crosses_the_network_once(self):
        arguments = ("--from", "tp=4", "--to", "tp=2,dp=2", "--disjoint", "--ranks-per-node", "4")
        links = self.measure(*arguments)["links"]
        size = small_model.size(self.model)
        self.assertEqual((links["nodes"], links["least_network_bytes"]), (2, size))
        self.assertEqual((links["in"]["bytes"], links["out"]["bytes"]), (size, size))
        self.assertEqual((links["in"]["links"], links["node_pairs"]["links"]), (4, 1))
        # The other copy of the two halves, and all norms three times more.
        norms = {name: tensor for name, tensor in self.model.items() if "norm" in name}
        self.assertEqual(links["inside"]["bytes"], size + 2 * small_model.size(norms))
        alone = self.measure(*arguments, "--each-rank-fetches")["links"]
        self.assertEqual(alone["in"]["bytes"], 2 * size + 2 * small_model.size(norms))
        self.assertEqual((alone["inside"]["bytes"], alone["least_network_bytes"]), (0, size))
        done = self.run_scale(*arguments)
        for part in ("cards, inwards", "node to node", "crosses the network at least"):
            self.assertIn(part, done.stdout)

    def test_what_is_quantized_crosses_the_network_once(self):
        # Columns of one part of each matrix are whole blocks of 32: the sender quantizes.
        model = small_model.dense(hidden=128, wide=256)
        path = small_model.write(model, self.path.with_name("blocks.json"))
        arguments = ("--model", path, "--from", "tp=4", "--to", "tp=2,dp=2", "--disjoint",
                     "--ranks-per-node", "4")
        matrices = sum(math.prod(tensor["shape"]) for tensor in model.values()
                       if len(tensor["shape"]) > 1)
        vectors = small_model.size(model) - 2 * matrices
        for transform in ("mxfp8", "mxfp8-at-sender"):
            links = self.measure(*arguments, "--transform", transform)["links"]
            self.assertEqual(links["in"]["bytes"], matrices + matrices // 32 + vectors)
            alone = self.measure(*arguments, "--transform", transform, "--each-rank-fetches")["links"]
            self.assertGreater(alone["in"]["bytes"], 1.9 * links["in"]["bytes"])

    def test_the_table_names_ranks_and_layouts(self):
        done = self.run_scale("--from", "tp=2", "--to", "tp=4")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for part in ("small: tp=2 on 2 ranks to tp=4 on 4", "4 of 4 ranks", "slowest", "median"):
            self.assertIn(part, done.stdout)

    def test_wrong_calls_are_refused_with_a_message(self):
        for arguments, part, code in [
                (["--from", "tp=2"], "--to SPEC is missing", 2),
                (["--from", "tp=2", "--to", "tp=x"], "--to: ", 1),
                (["--from", "tp=7", "--to", "tp=2"], ": --from: ", 1),
                (["--from", "tp=2", "--to", "tp=7"], ": --to: ", 1),
                (["--from", "tp=2", "--to", "dp=1048577"], "1048577 ranks", 1),
                (["--from", "tp=2", "--to", "tp=2", "more"], "\"more\"", 2),
                (["--from", "tp=2", "--to", "tp=2", "--rules", "/nowhere"], "/nowhere", 1)]:
            done = self.run_scale(*arguments)
            self.assertEqual((done.returncode, done.stdout), (code, ""), arguments)
            self.assertRegex(done.stderr, "^banyan plan-scale: .*\n$")
            self.assertIn(part, done.stderr)


if __name__ == "__main__":
    done = unittest.main(argv=[sys.argv[0], "-v"], exit=False)
    sys.exit(not done.result.wasSuccessful())
