"""banyan mixed: a grid's collectives are checked in every mode, timed, drawn, and tuned."""

import json
import os
import pathlib
import re
import sys
import unittest
import xml.dom.minidom

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from collective_case import BANYAN, CollectiveCase

FUSED = {"one_shot", "two_shot"}


class Mixed(CollectiveCase):
    def measure(self, *options):
        return json.loads(self.succeed("mixed", "--json", "--max-bytes", "64K", *options))

    def test_every_mode_of_a_mixed_grid_is_right_and_timed(self):
        picture, table = self.folder / "mixed.svg", self.folder / "table.json"
        report = self.measure("--local-tp", 2, "--local-dp", 2, "--rows", "1:4", "--hidden", 101,
                              "--svg", picture, "--save-autotune", table)
        self.assertEqual((report["ranks"], report["nodes"], report["dtype"]), (4, 1, "BF16"))
        cells = report["measurements"]
        self.assertEqual({cell["op"] for cell in cells},
                         {"allreduce_allgather", "reducescatter_allreduce"})
        self.assertEqual({cell["mode"] for cell in cells}, FUSED | {"single", "separate"})
        self.assertEqual({cell["rows"] for cell in cells}, {1, 2, 4})
        for cell in cells:
            outputs = 2 if cell["op"] == "allreduce_allgather" else 1
            self.assertEqual(cell["checked_elements"], 4 * outputs * cell["rows"] * 101)
            self.assertEqual(cell["wrong_elements"], 0)
            self.assertEqual(cell["bytes"], cell["rows"] * 101 * 2)
            self.assertGreater(cell["ns"], 0)
        chosen = [(cell["op"], cell["rows"]) for cell in cells if cell["chosen"]]
        self.assertEqual(len(chosen), 6)
        xml.dom.minidom.parse(str(picture))
        rows = json.loads(table.read_text())["rows"]
        self.assertEqual(rows[0]["bytes"], 1024)

        again = self.measure("--local-tp", 2, "--local-dp", 2, "--rows", "1:1", "--hidden", 512,
                             "--autotune", table, "--mode", "auto")
        best = min((row["ns"] + (min(row["ns"] // 8, 40000) if row["mode"] != "separate" else 0), i)
                   for i, row in enumerate(rows)
                   if row["op"] == "allreduce_allgather" and row["bytes"] == 1024)[1]
        used = [cell["mode"] for cell in again["measurements"]
                if cell["op"] == "allreduce_allgather"]
        self.assertEqual(used, [rows[best]["mode"]])

    def test_nodes_have_a_mode_of_their_own(self):
        report = self.measure("--local-tp", 2, "--inter-tp", 2, "--rows", "3:3", "--hidden", 7,
                              "--dtype", "f32", "--no-autotune")
        cells = report["measurements"]
        self.assertEqual({(cell["op"], cell["mode"]) for cell in cells},
                         {("allreduce", mode) for mode in FUSED | {"two_shot_nodes", "single"}})
        self.assertEqual({cell["wrong_elements"] for cell in cells}, {0})
        self.assertEqual(report["nodes"], 2)

    def test_a_table_for_people_marks_the_choice(self):
        text = self.succeed("mixed", "--local-dp", 2, "--rows", "2:2", "--hidden", 64, "--dtype",
                            "f16", "--no-autotune")
        self.assertIn("allgather, µs", text)
        self.assertIn("reducescatter, µs", text)
        self.assertRegex(text, r"\d\*")
        self.assertIn("*: the fastest mode of the line", text)
        self.assertIn("output elements were checked: all are right", text)
        unmarked = self.succeed("mixed", "--local-tp", 2, "--rows", "1:1", "--hidden", 64,
                                "--no-autotune", "--mode", "single")
        self.assertNotIn("*", unmarked)
        self.assertNotIn("+:", unmarked)

    def test_a_star_marks_the_fastest_of_a_line_and_a_plus_another_choice(self):
        words = ["--local-tp", 2, "--local-dp", 2, "--rows", "1:64", "--hidden", 256]
        text = self.succeed("mixed", *words, "--no-autotune")
        lines = re.findall(r"^ +\d+ +\S+ [KMGi]*B +(\d.*)$", text, re.MULTILINE)
        self.assertGreater(len(lines), 6)
        for line in lines:
            cells = line.replace("-", "inf").split()
            times = [float(cell.rstrip("*+")) for cell in cells]
            starred = [time for time, cell in zip(times, cells) if cell.endswith("*")]
            self.assertEqual(starred, [min(times)], line)
            self.assertLessEqual(line.count("+"), 1)
        self.assertEqual("+: the mode that the default chose instead" in text,
                         any("+" in line for line in lines))
        cells = self.measure(*words)["measurements"]
        for op, rows in {(cell["op"], cell["rows"]) for cell in cells}:
            line = [cell for cell in cells if (cell["op"], cell["rows"]) == (op, rows)]
            self.assertEqual([cell["ns"] for cell in line if cell["fastest"]],
                             [min(cell["ns"] for cell in line)])

    def test_nodes_alone_are_tensor_parallel_and_one_rank_is_asked_for(self):
        for words, ranks in [(["--nodes", 2], 2), (["--local-tp", 1], 1)]:
            report = self.measure(*words, "--rows", "1:1", "--hidden", 64, "--no-autotune")
            self.assertEqual(report["ranks"], ranks)

    def test_nothing_is_tuned_below_the_least_size(self):
        text = self.succeed("mixed", "--local-tp", 2, "--rows", "1:1", "--hidden", 64,
                            "--max-bytes", 512)
        self.assertNotIn("autotuning", text)

    def test_a_picture_shows_every_mode_of_a_single_size(self):
        picture = self.folder / "mixed.svg"
        cells = self.measure("--local-tp", 2, "--local-dp", 2, "--rows", "2:2", "--hidden", 64,
                             "--no-autotune", "--svg", picture)["measurements"]
        self.assertEqual(picture.read_text().count("<circle"), len(cells))
        self.assertIn("chosen by default", picture.read_text())

    def test_an_nccl_that_does_not_start_is_left_out(self):
        emulated = BANYAN.parents[1] / "emulated"
        if not (emulated / "libnccl.so.2").exists():
            self.skipTest("this build has no emulated GPUs")
        gpus = {**os.environ, "BANYAN_MODULE_PATH": str(emulated),
                "BANYAN_NCCL": str(emulated / "libnccl.so.2")}
        words = ["mixed", "--gpu", "--local-tp", 2, "--local-dp", 2, "--rows", "1:1", "--hidden", 64,
                 "--max-bytes", "64K", "--json"]
        untuned = [*words, "--no-autotune"]
        for failing, expected in [({}, FUSED | {"single", "separate", "single_nccl", "separate_nccl"}),
                                  ({"EMULATED_NCCL_FAILS": "1"}, FUSED | {"single", "separate"})]:
            report = json.loads(self.succeed(*untuned, env={**gpus, **failing}))
            self.assertEqual({cell["mode"] for cell in report["measurements"]}, expected)
            self.assertEqual({cell["wrong_elements"] for cell in report["measurements"]}, {0})
        gpus["EMULATED_NCCL_FAILS"] = "1"
        named = self.banyan(*untuned, "--mode", "separate_nccl", env=gpus)
        self.assert_refused(named, "banyan mixed", "NCCL does not start")
        gpus["BANYAN_NCCL"] = "/nowhere/libnccl.so.2"
        named = self.banyan(*untuned, "--mode", "separate_nccl", env=gpus)
        self.assert_refused(named, "banyan mixed", "has not found NCCL's library")
        gpus["BANYAN_NCCL"] = str(emulated / "libnccl.so.2")
        times = {"one_shot": 9, "single": 5, "separate_nccl": 4}
        rows = [{"op": "allreduce_allgather", "bytes": 1024, "mode": mode, "ns": ns}
                for mode, ns in times.items()]
        table = self.write({"format": "banyan mixed tuning", "version": 1, "local_tp": 2,
                            "local_dp": 2, "inter_tp": 1, "inter_dp": 1, "dtype": "BF16",
                            "device": "cuda", "rows": rows}, "table.json")
        report = json.loads(self.succeed(*words, "--autotune", table, "--mode", "auto", "--op",
                                         "allreduce_allgather", env=gpus))
        self.assertEqual([(cell["mode"], cell["chosen"]) for cell in report["measurements"]],
                         [("single", True)])

    def test_wrong_calls_are_refused(self):
        table = self.folder / "table.json"
        self.measure("--local-tp", 2, "--rows", "1:1", "--hidden", 64, "--save-autotune", table)
        for words, part, code in [
                ([], "a grid is missing: --local-tp N or --local-dp N", 2),
                (["--nodes", 1], "a grid is missing: --local-tp N or --local-dp N", 2),
                (["--local-tp", 2, "--nodes", 3, "--inter-tp", 2], "--nodes 3 is not", 2),
                (["--nodes", 4, "--inter-dp", 3], "--nodes 4 is not a multiple of --inter-dp 3", 2),
                (["--local-tp", 2, "--rows", "0:4"],
                 '--rows wants rows, more than 0 and ascending, such as 1:4096 or 64, not "0:4"', 2),
                (["--local-tp", 2, "--rows", "4:1"], "--rows wants rows", 2),
                (["--local-tp", 2, "--dtype", "f31"], "names no element type", 2),
                (["--local-tp", 2, "--mode", "best"],
                 'no mode "best"; there are auto, one_shot, two_shot,', 2),
                (["--local-tp", 2, "--op", "gather"],
                 'no mixed collective "gather"; there are allreduce, allgather, reducescatter,', 2),
                (["--local-tp", 2, "--rows", "256G:256G", "--hidden", 1 << 24, "--dtype", "f32"],
                 "more than 1 TiB", 2),
                (["--local-tp", 2, "--dtype", "i32"], "I32", 1),
                (["--local-tp", 2, "--op", "allgather"],
                 "a grid of tp 2 × dp 1 does not allow allgather, but allreduce\n", 1),
                (["--local-dp", 2, "--mode", "two_shot_nodes"], "two_shot_nodes", 1),
                (["--local-tp", 3, "--autotune", table], "local_tp 2, and the grid has 3", 1),
                (["--local-tp", 2, "--no-autotune", "--save-autotune", table],
                 "nothing to write with --no-autotune", 2),
                (["--local-tp", 2, "--no-autotune", "--autotune", table],
                 f"--autotune {table} is not used with --no-autotune", 2),
                (["--local-tp", 2, "--svg", "one", "--save-autotune", "one"],
                 "--svg and --save-autotune both write one", 2),
                (["--local-tp", 2, "--svg", ""], '--svg wants a value: FILE, not ""', 2),
                (["--local-tp", 2, "--save-autotune="],
                 '--save-autotune wants a value: FILE, not ""', 2),
                (["--local-tp", 2, "--svg", "-"], '--svg wants a file\'s name, not "-"', 2),
                (["--local-tp", 2, "--save-autotune", "/nowhere/t.json"],
                 "cannot write /nowhere/t.json", 1),
                (["--local-tp", 2, "--svg", "/nowhere/m.svg"], "cannot write /nowhere/m.svg", 1)]:
            self.assert_refused(self.banyan("mixed", "--rows", "1:1", *words), "banyan mixed", part,
                                code)


if __name__ == "__main__":
    result = unittest.main(argv=[sys.argv[0], "-v"], exit=False).result
    sys.exit(not result.wasSuccessful() or (77 if result.skipped else 0))
