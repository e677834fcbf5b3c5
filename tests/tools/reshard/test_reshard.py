"""banyan reshard: moves a small model, checks it, reports; refuses wrong input with a message."""

import json
import os
import pathlib
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import small_case
import small_model

BUILD = pathlib.Path(os.environ["BANYAN_BUILD"])
BANYAN = BUILD / "bin/banyan"
TRANSFERS = BUILD / "tests/transfers"
SVG = "{http://www.w3.org/2000/svg}"


class WithFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_banyan(self, *arguments, **options):
        return subprocess.run([BANYAN, "reshard", *map(str, arguments)], capture_output=True,
                              text=True, timeout=300, **options)

    def assert_refused(self, done, part, code=1):
        self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
        self.assertRegex(done.stderr, "^banyan reshard: .*\n$")
        self.assertIn(part, done.stderr)


class Reshard(WithFolder):
    def setUp(self):
        super().setUp()
        self.model = small_model.dense()
        self.path = small_model.write(self.model, self.folder / "small.json")
        self.norms = small_model.elements({n: t for n, t in self.model.items() if "norm" in n})

    def move(self, source, destination, *arguments):
        return self.run_banyan("--model", self.path, "--from", source, "--to", destination,
                               *arguments)

    def measure(self, *arguments):
        done = self.move(*arguments, "--json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)

    def test_a_rank_that_fails_is_named_once(self):
        done = self.run_banyan("--model", self.path, "--from", "tp=2", "--to", "dp=2",
                               "--memory", "ordinary",
                               env={**os.environ, "BANYAN_USER_MEMORY": "foo"})
        self.assert_refused(done, 'BANYAN_USER_MEMORY is "foo"')
        self.assertEqual(done.stderr.count("rank "), 1, done.stderr)

    def test_every_destination_element_is_moved_and_checked(self):
        whole = small_model.elements(self.model)
        for source, destination, copies, variants in [
                ("tp=2,pp=2", "tp=4", 4, ["", "--disjoint", "--memory=ordinary", "--checksums"]),
                ("tp=4", "tp=2,pp=2", 2, ["--disjoint --memory=ordinary"]),
                ("tp=1", "tp=2,dp=2", 4, ["", "--disjoint"]), ("fsdp=3", "tp=2", 2, [""]),
                ("tp=4", "tp=1", 1, [""]), ("pp=4", "pp=2,tp=2", 2, [""])]:
            for more in (variant.split() for variant in variants):
                found = self.measure(source, destination, "--iters", "2", *more)
                replicated = 2 if "dp=2" in destination else 1
                elements = replicated * (whole - self.norms) + copies * self.norms
                self.assertEqual(found["verified_elements"], elements, (source, destination))
                self.assertEqual(found["bytes"], 2 * elements)
                self.assertEqual(found["tensors"], len(self.model))
                self.assertEqual(len(found["iteration_seconds"]), 2)
                self.assertLessEqual(found["best_seconds"], found["median_seconds"])
                self.assertGreater(found["memcpy_gb_per_s"], 0)

    def test_matrices_become_mxfp8(self):
        whole = small_model.elements(self.model)
        for transform in ("mxfp8", "mxfp8-at-sender"):
            # In the last, half of the ranks have nothing of the vocabulary but padding.
            for source, destination in (("tp=2,pp=2", "tp=4"), ("tp=2", "tp=2,packing=vllm"),
                                        ("tp=2", "tp=4,packing=megatron")):
                found = self.measure(source, destination, "--disjoint", "--transform", transform)
                copies = 4 if destination.startswith("tp=4") else 2
                self.assertEqual(found["verified_elements"], whole + (copies - 1) * self.norms)

    def rule_file(self, text):
        path = self.folder / "my.rules"
        path.write_text(text)
        return path

    def test_values_that_an_engine_computes_are_computed_on_the_way(self):
        rules = self.rule_file("packing mine\nmodel.norm.weight\n    in mine A map negative_exp "
                               "dtype F32\nmodel.layers.{layer}.input_layernorm.weight\n    in mine "
                               "{layer}.B map negative_exp\ninclude builtin\n")
        for more in ([], ["--disjoint"], ["--backend", "pipeline"], ["--memory", "ordinary"]):
            self.measure("tp=2", "tp=2,dp=2,packing=mine", "--rules", rules, *more)
        self.measure("tp=2,packing=mine", "tp=4,packing=mine", "--rules", rules)
        self.assert_refused(self.move("tp=2,packing=mine", "tp=2", "--rules", rules),
                            "this rank its own values: no value map is undone")

    def test_mxfp8_leaves_skipped_and_computed_tensors_alone(self):
        rules = self.rule_file("packing mine\nmodel.norm.weight\n    in mine A computed\n"
                               "include builtin\n")
        whole = self.measure("tp=2", "tp=4", "--transform", "mxfp8", "--disjoint")
        found = self.measure("tp=2", "tp=4,packing=mine", "--transform", "mxfp8", "--disjoint",
                             "--rules", rules, "--skip", "model.norm.weight,**.mlp.up_proj.*")
        left = 4 * 64 + small_model.elements(
            {n: t for n, t in self.model.items() if "mlp.up_proj" in n})
        self.assertEqual(found["verified_elements"], whole["verified_elements"] - left)
        rules = self.rule_file("packing mine\nmodel.layers.{layer}.mlp.up_proj.weight\n    in mine "
                               "{layer}.up computed\ninclude builtin\n")
        self.assert_refused(self.move("tp=2", "tp=2,packing=mine", "--transform", "mxfp8", "--rules",
                                      rules, "--skip", "**.up_proj.*"),
                            "has elements that are to be left alone, whose scales every run writes")

    def test_a_block_that_the_sender_would_have_to_cut_is_refused(self):
        arguments = ["tp=2,packing=megatron", "fsdp=3", "--transform"]
        self.assertEqual(self.move(*arguments, "mxfp8").returncode, 0)
        self.assert_refused(self.move(*arguments, "mxfp8-at-sender"), "MXFP8 block")

    def test_a_spec_that_does_not_divide_is_refused_with_a_transform_too(self):
        self.assert_refused(self.move("tp=2", "tp=3", "--transform", "mxfp8"), "--to: ")

    def test_other_backends_move_the_same(self):
        expected = self.measure("tp=2", "tp=4", "--disjoint")
        others = [["pipeline"], ["pipeline", "--memory", "ordinary"]]
        if shutil.which("mpirun") and not os.environ.get("BANYAN_SANITIZE"):
            others.append(["mpi"])
        for backend, *more in others:
            found = self.measure("tp=2", "tp=4", "--disjoint", "--backend", backend, *more)
            for field in ("bytes", "transfers", "verified_elements", "pair_bytes"):
                self.assertEqual(found[field], expected[field])
            self.assertEqual(found["backend"], backend)

    def test_pairs_add_up(self):
        found = self.measure("tp=2,pp=2", "tp=4", "--disjoint")
        self.assertEqual(found["ranks"], 8)
        self.assertEqual(sum(pair[2] for pair in found["pair_bytes"]), found["bytes"])
        self.assertEqual(found["bytes_between_ranks"], found["bytes"])
        self.assertTrue(all(pair[0] < 4 <= pair[1] for pair in found["pair_bytes"]))

    def test_elements_that_a_rank_holds_already_stay_there(self):
        found = self.measure("tp=4", "tp=4")
        self.assertEqual(found["bytes_between_ranks"], 0)
        self.assertTrue(all(pair[0] == pair[1] for pair in found["pair_bytes"]))

    def test_the_table_has_the_moved_bytes(self):
        done = self.move("tp=2,pp=2", "tp=4", "--disjoint")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for part in ("small: tp=2,pp=2 on 4 ranks to tp=4 on 4 others", "tensors", "transfers",
                     "best", "median", "GB/s", "of memcpy", "destination elements is right"):
            self.assertIn(part, done.stdout)

    def test_the_picture_shows_every_rank_and_amount(self):
        picture = self.folder / "flows.svg"
        done = self.move("tp=2", "tp=4", "--disjoint", "--svg", picture)
        self.assertEqual(done.returncode, 0, done.stderr)
        root = xml.etree.ElementTree.parse(picture).getroot()
        texts = [text.text for text in root.iter(SVG + "text")]
        for rank in range(6):
            self.assertTrue(any(text.startswith(f"rank {rank} · ") for text in texts), texts)
        bands = [title.text for title in root.iter(SVG + "title")]
        # A shard of four lies in one of two; what all ranks hold whole may come from either.
        self.assertIn(len(bands), range(4, 9))
        for band in bands:
            self.assertRegex(band, r"^rank \d to rank \d: [\d.]+ (B|KiB)$")
        self.assertEqual([path.name for path in self.folder.iterdir() if path.suffix != ".json"],
                         ["flows.svg"])

    def test_a_picture_for_a_pipe_goes_into_the_pipe(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        with subprocess.Popen(["timeout", "60", "cat", pipe], stdout=subprocess.PIPE) as reader:
            done = self.move("tp=1", "tp=2", "--svg", pipe)
            picture = reader.stdout.read()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(pipe.is_fifo())
        self.assertEqual(xml.etree.ElementTree.fromstring(picture).tag, SVG + "svg")

    def test_a_result_that_cannot_be_written_is_a_failure(self):
        for arguments in ([], ["--json"]):
            with open("/dev/full", "w") as full:
                done = subprocess.run([BANYAN, "reshard", "--model", self.path, "--from", "tp=1",
                                       "--to", "tp=2", *arguments], stdout=full,
                                      stderr=subprocess.PIPE, text=True, timeout=300)
            self.assertEqual(done.returncode, 1)
            self.assertIn("cannot write to stdout: No space left", done.stderr)

    def test_a_picture_that_cannot_be_written_is_refused_before_the_ranks_start(self):
        for path, why in (("/nowhere/picture.svg", "No such file or directory"),
                          (self.folder, "Is a directory")):
            done = self.move("tp=1", "tp=2", "--svg", path)
            self.assertEqual((done.returncode, done.stdout, done.stderr),
                             (1, "", f"banyan reshard: cannot write {path}: {why}\n"))

    def test_names_in_the_picture_are_escaped(self):
        path = small_model.write(self.model, self.folder / "a<b&c.json")
        picture = self.folder / "flows.svg"
        done = self.run_banyan("--model", path, "--from", "tp=1", "--to", "tp=1", "--svg", picture)
        self.assertEqual(done.returncode, 0, done.stderr)
        texts = [text.text for text in
                 xml.etree.ElementTree.parse(picture).getroot().iter(SVG + "text")]
        self.assertIn("a<b&c", texts)

    def test_wrong_input_gives_one_message(self):
        broken = self.folder / "broken.json"
        broken.write_text('{"a": {"shape": [1, 2')
        unknown = small_model.write({"what.is.this": {"shape": [3], "dtype": "BF16"}},
                                    self.folder / "unknown.json")
        model = ["--model", self.path]
        specs = ["--from", "tp=2", "--to", "tp=4"]
        for arguments, part, code in [
                ([], "--model FILE is missing, or --in DIR and --out DIR", 2),
                (model, "--from SPEC is missing", 2),
                ([*model, "--from", "tp=2"], "--to SPEC is missing", 2),
                ([*model, *specs, "extra"], "\"extra\"", 2),
                ([*model, *specs, "--iters", "0"], "--iters wants a number", 2),
                ([*model, *specs, "--memory", "paper"], "symmetric|ordinary", 2),
                ([*model, *specs, "--backend", "pigeon"], "pigeon", 1),
                ([*model, *specs, "--rules", "/nowhere"], "/nowhere", 1),
                ([*model, *specs, "--svg", "/nowhere/picture.svg"], "/nowhere/picture.svg", 1),
                (["--model", "/nowhere.json", *specs], "/nowhere.json", 1),
                (["--model", broken, *specs], "broken.json", 1),
                (["--model", unknown, *specs], "what.is.this", 1),
                ([*model, "--from", "tp=2,xp=3", "--to", "tp=2"], "xp", 1),
                ([*model, "--from", "tp=2", "--to", "tp=7"], ": --to: ", 1),
                ([*model, "--from", "tp=7", "--to", "tp=2"], ": --from: ", 1),
                ([*model, "--from", "tp=2", "--to", "tp=999999999"], "999999999 ranks", 1),
                ([*model, "--from", "tp=2147483647", "--to", "tp=2147483647", "--disjoint"],
                 "4294967294 ranks", 1)]:
            with self.subTest(arguments=arguments):
                self.assert_refused(self.run_banyan(*arguments), part, code)

    def test_help_names_every_option(self):
        done = self.run_banyan("--help")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for option in ("--model", "--from", "--to", "--disjoint", "--backend", "--iters", "--json",
                       "--svg", "--checksums", "--memory", "--rules"):
            self.assertIn(option, done.stdout)

    def start_long(self, **options):
        started = subprocess.Popen(
            [BANYAN, "reshard", "--model", self.path, "--from", "tp=2", "--to", "tp=2",
             "--iters", "1000000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            **options)
        self.addCleanup(started.communicate)
        return started

    def ranks_of(self, started):
        children = pathlib.Path(f"/proc/{started.pid}/task/{started.pid}/children")
        end = time.monotonic() + 20
        while time.monotonic() < end:
            # The launcher's first child looks after the others.
            found = [int(text) for text in children.read_text().split()]
            if len(found) == 3:
                time.sleep(0.3)
                return found[1:]
            time.sleep(0.01)
        self.fail("the ranks did not start")

    def assert_gone(self, processes):
        end = time.monotonic() + 10
        while any(pathlib.Path(f"/proc/{process}").exists() for process in processes):
            self.assertLess(time.monotonic(), end, "processes are left")
            time.sleep(0.02)

    def test_a_killed_rank_ends_the_job(self):
        started = self.start_long()
        ranks = self.ranks_of(started)
        os.kill(ranks[1], signal.SIGKILL)
        _, errors = started.communicate(timeout=30)
        self.assertEqual(started.returncode, 137)
        self.assertIn("rank 1", errors)
        self.assert_gone(ranks)

    def test_a_killed_command_leaves_nothing(self):
        started = self.start_long()
        ranks = self.ranks_of(started)
        started.kill()
        started.wait(timeout=30)
        self.assert_gone(ranks)

    def test_progress_is_shown_on_a_terminal_only(self):
        master, terminal = pty.openpty()
        started = subprocess.Popen(
            [BANYAN, "reshard", "--model", self.path, "--from", "tp=1", "--to", "tp=1",
             "--iters", "20000"], stdout=subprocess.PIPE, stderr=terminal)
        os.close(terminal)
        bar = re.compile(rb"moving +\[#*\.*\] +\d+ %  [\d,]+/s  .* left")
        seen = b""
        end = time.monotonic() + 60
        try:
            while time.monotonic() < end and not bar.search(seen) and (
                    part := os.read(master, 4096)):
                seen += part
        except OSError:
            pass
        started.terminate()
        started.communicate(timeout=30)
        os.close(master)
        self.assertRegex(seen, bar)


class Check(WithFolder):
    def check(self, case, *options):
        path = self.folder / "case.json"
        path.write_text(case if isinstance(case, str) else json.dumps(case))
        return subprocess.run([BANYAN, "check", "--reshard", path, *options], capture_output=True,
                              text=True, timeout=60)

    def rules(self, damage):
        case = small_case.case()
        damage(case)
        done = self.check(case, "--json")
        self.assertEqual((done.returncode, done.stderr), (1, ""), done.stdout)
        report = json.loads(done.stdout)
        self.assertFalse(report["sound"])
        return [(finding["rule"], finding["rank"]) for finding in report["findings"]]

    def test_a_case_that_is_sound_is(self):
        done = self.check(small_case.case())
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertTrue(done.stdout.endswith("case.json: sound, 0 findings\n"), done.stdout)

    def test_a_transfer_that_is_missing_leaves_a_hole(self):
        self.assertEqual(self.rules(lambda case: case["transfers"].pop(1)), [("unwritten", 2)])

    def test_a_transfer_that_comes_twice_is_reported(self):
        self.assertEqual(self.rules(lambda case: case["transfers"].append(case["transfers"][2])),
                         [("twice", 2)])

    def test_a_transfer_that_is_shifted_brings_the_wrong_elements_and_leaves_a_hole(self):
        def shift(case):
            case["transfers"][1]["dst_slice"][0] = [3, 7]
        self.assertEqual(self.rules(shift), [("source", 2), ("twice", 2), ("unwritten", 2)])

    def test_a_sender_that_holds_something_else_is_reported(self):
        def swap(case):
            case["transfers"][1]["src_rank"] = 0
        self.assertEqual(self.rules(swap), [("source", 2)])

    def test_cases_that_cannot_be_planned_are_not_sound(self):
        def rename(case):
            case["ranks"][2]["dst"][1]["resolved_name"] = "elsewhere"
        self.assertIn(("unplanned", 0), self.rules(rename))

    def test_the_golden_cases_are_sound(self):
        for path in sorted(TRANSFERS.glob("*.json")):
            done = self.check(path.read_text())
            self.assertEqual(done.returncode, 0, f"{path.name}: {done.stdout}{done.stderr}")

    def test_a_file_that_is_not_a_case_is_reported(self):
        self.assertEqual(self.check("{").returncode, 2)


class Verify(WithFolder):
    def verify(self, *cases):
        return self.run_banyan("verify", *cases)

    def write(self, name, case):
        path = self.folder / name
        path.write_text(json.dumps(case))
        return path

    def test_a_case_passes_with_a_line(self):
        done = self.verify(self.write("small.json", small_case.case()))
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertEqual(done.stdout, "small.json: passed: 3 ranks, 53 elements as 3 transfers give "
                                      "them\n1 passed, 0 failed\n")

    def test_a_transfer_that_says_otherwise_fails(self):
        case = small_case.case()
        first, second = case["transfers"][:2]
        first["src_rank"], second["src_rank"] = second["src_rank"], first["src_rank"]
        done = self.verify(self.write("swapped.json", case),
                           self.write("small.json", small_case.case()))
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"^swapped.json: failed: rank 2: task \d from rank \d: element "
                                      r"0 of fc\[\d:\d, 0:6\] is wrong\nsmall.json: passed: .*\n"
                                      r"1 passed, 1 failed\n$")

    def test_a_destination_that_the_case_does_not_cover_fails(self):
        case = small_case.case()
        case["transfers"].pop()
        done = self.verify(self.write("short.json", case))
        self.assertEqual(done.returncode, 1)
        self.assertIn("rank 2 holds 53 elements, but the case's transfers give it 48", done.stdout)

    def test_a_tensor_that_nobody_has_fails(self):
        case = small_case.case()
        case["ranks"][2]["dst"][1]["resolved_name"] = "elsewhere"
        done = self.verify(self.write("missing.json", case))
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, "missing.json: failed: .*elsewhere.*\n0 passed, 1 failed")

    def test_a_file_that_is_no_case_fails(self):
        broken = self.folder / "broken.json"
        broken.write_text("{")
        done = self.verify(broken, self.folder / "nowhere.json")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, "broken.json: failed: .*\nnowhere.json: failed: .*\n"
                                      "0 passed, 2 failed\n")

    def test_without_cases_it_is_a_wrong_call(self):
        self.assertEqual(self.verify().returncode, 2)

    def test_the_json_has_every_case(self):
        good = small_case.case()
        short = small_case.case()
        short["transfers"].pop()
        paths = [self.write("small.json", good), self.write("short.json", short),
                 self.folder / "nowhere.json"]
        done = self.verify("--json", *paths)
        self.assertEqual((done.returncode, done.stderr), (1, ""))
        report = json.loads(done.stdout)
        self.assertEqual((report["passed"], report["failed"]), (1, 2))
        self.assertEqual(report["cases"][0], {"case": "small.json", "passed": True, "ranks": 3,
                                              "elements": 53, "transfers": 3})
        self.assertEqual([case["passed"] for case in report["cases"]], [True, False, False])
        self.assertIn("there is no file", report["cases"][2]["error"])

    def test_the_golden_cases_pass(self):
        cases = sorted(TRANSFERS.glob("*.json"))
        done = self.verify(*cases)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertTrue(done.stdout.endswith(f"\n{len(cases)} passed, 0 failed\n"))


if __name__ == "__main__":
    done = unittest.main(argv=[sys.argv[0], "-v"], exit=False)
    sys.exit(not done.result.wasSuccessful())
