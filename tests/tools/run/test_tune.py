"""banyan tune: measures, writes a table that communicators take, and adds to it."""

import json
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from collective_case import CollectiveCase


# Far more than the measurements take: they end when all is measured, however busy the machine is.
ENOUGH = 250


class Tune(CollectiveCase):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "tuning.json"

    def rows(self, ranks):
        rows = json.loads(self.path.read_text())["rows"]
        return [row for row in rows if row["ranks"] == ranks and row["device"] == "host"]

    def tune(self, ranks, *options):
        return self.succeed("tune", "-n", ranks, "--size", "64:256", "-o", self.path, *options)

    def assert_printed(self, text, rows):
        self.assertEqual(
            [line.split() for line in text.split("\n")[3:3 + len(rows)]],
            [[row["collective"], "registered" if row["registered"] else "ordinary",
              str(row["ranks_per_node"] or "any"), row["dtype"] or "any",
              "any" if row["up_to_bytes"] is None else f"{row['up_to_bytes']:,}", row["algorithm"]]
             for row in rows])

    def test_rows_that_came_along_are_told_from_measured_ones(self):
        text = self.tune(8, "--seconds", ENOUGH, "--collective", "allreduce")
        eight = self.rows(8)
        self.assertEqual({row["ranks_per_node"] for row in eight}, {0, 8})
        self.assert_printed(text, eight)

    def test_a_table_is_measured_printed_and_added_to(self):
        text = self.tune(2, "--seconds", ENOUGH)
        two = self.rows(2)
        self.assertEqual({(row["collective"], row["registered"]) for row in two},
                         {(collective, registered) for registered in [False, True] for collective in
                          ["allreduce", "allgather", "reducescatter", "alltoall", "sendrecv",
                           "broadcast", "reduce"]} - {("reduce", True)})
        self.assert_printed(text, two)
        self.tune(3, "--seconds", ENOUGH)
        self.assertEqual(self.rows(2), two)
        self.assertNotEqual(self.rows(3), [])
        text = self.tune(2, "--seconds", ENOUGH, "--dtype", "bf16")
        self.assertEqual([row for row in self.rows(2) if row["dtype"] is None], two)
        self.assertIn("BF16", {row["dtype"] for row in self.rows(2)})
        self.assertRegex(text, r"\n\w+ +(ordinary|registered) +2 +BF16 ")

    def test_times_are_printed_beside_the_next_best(self):
        text = self.tune(2, "--seconds", ENOUGH, "--collective", "allgather")
        lines = text[text.index("fastest algorithm"):].splitlines()[1:-2]
        self.assertEqual([(line.split()[1], line.split()[2]) for line in lines],
                         [("ordinary", "32"), ("ordinary", "128"), ("registered", "32"),
                          ("registered", "128")])
        for line in lines:
            found = re.match(r"allgather +\w+ +\d+ +(\d+\.\d+)  allgather_\w+ "
                             r"\((\d+\.\d+): allgather_\w+\)$", line)
            self.assertTrue(found, line)
            self.assertLessEqual(float(found[1]), float(found[2]))

    def test_the_json_has_the_table_and_all_times(self):
        report = json.loads(self.tune(2, "--seconds", ENOUGH, "--collective", "allgather", "--json"))
        self.assertEqual((report["ranks"], report["device"], report["file"]),
                         (2, "host", str(self.path)))
        self.assertEqual(report["rows"], self.rows(2))
        algorithms = {entry["name"] for entry in json.loads(self.succeed("algo", "list", "--json"))
                      if entry["collective"] == "allgather" and not entry["reaches_peers_buffers"]}
        ordinary = [time for time in report["times"]
                    if not time["registered"] and time["message_bytes"] == 128]
        tried = {time["algorithm"] for time in ordinary}
        self.assertGreater(len(tried), 2)
        self.assertLessEqual(tried, algorithms)
        fastest = min(ordinary, key=lambda time: time["seconds"])
        row = next(row for row in report["rows"] if not row["registered"]
                   and row["collective"] == "allgather"
                   and row["ranks_per_node"] == 2  # others are of several nodes, and came along
                   and (row["up_to_bytes"] is None or row["up_to_bytes"] >= 128))
        self.assertEqual(row["algorithm"], fastest["algorithm"])

    def test_too_little_time_is_told_and_changes_nothing(self):
        self.tune(2, "--seconds", ENOUGH, "--collective", "allreduce")
        two = self.rows(2)
        done = self.banyan("tune", "-n", 2, "-s", "64:256", "-o", self.path, "--seconds", 1e-6)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("no size of allreduce in ordinary memory was measured in its share of the 1e-06 s", done.stderr)
        self.assertEqual(self.rows(2), two)

    def test_a_file_that_is_no_table_is_refused_and_kept(self):
        self.path.write_text('{"format": "something else"}')
        done = self.banyan("tune", "-n", 2, "--seconds", 1, "-o", self.path)
        self.assert_refused(done, "banyan tune", "something else")
        self.assertEqual(self.path.read_text(), '{"format": "something else"}')

    def test_wrong_calls_are_refused(self):
        for words, part, code in [
                (["-o", self.path], "--ranks N is missing", 2),
                (["-n", 2], "--out FILE is missing", 2),
                (["-n", 2, "-o", self.path, "--dtype", "f31"], '"f31" names no element type', 2),
                (["-n", 2, "-o", self.path, "--seconds", "0"], "--seconds wants seconds", 2),
                (["-n", 2, "-o", self.path, "--size", "8:4"], "--size wants bytes", 2),
                (["-n", 2, "-o", "/nowhere/t.json"], "cannot write /nowhere/t.json", 1)]:
            self.assert_refused(self.banyan("tune", *words), "banyan tune", part, code)
        self.assertFalse(self.path.exists())


if __name__ == "__main__":
    done = unittest.main(argv=[sys.argv[0], "-v"], exit=False)
    sys.exit(not done.result.wasSuccessful())
