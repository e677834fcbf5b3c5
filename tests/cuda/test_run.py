"""banyan run --gpu: a plan is run between GPUs, every element checked, and timed. Emulated ones where there are none."""

import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["BANYAN_BUILD"])


def gpus():
    """The driver's GPUs; -1 where there is no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return -1
    count = ctypes.c_int(0)
    known = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return count.value if known else 0


class RunOnGpus(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def banyan(self, *words, **variables):
        return subprocess.run([BUILD / "bin/banyan", *map(str, words)], capture_output=True, text=True,
                              timeout=100, env=os.environ | variables)

    def emit(self, algorithm, *options):
        path = self.folder / f"{algorithm}.json"
        done = self.banyan("algo", "emit", algorithm, "-n", 2, "-o", path, *options)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return path

    def measure(self, path, *options):
        done = self.banyan("run", path, "--gpu", "--json", "--iters", 3, *options)
        self.assertEqual((done.returncode, done.stderr), (0, self.shared()))
        return json.loads(done.stdout)

    def shared(self):
        """What two ranks say on stderr."""
        return f"banyan run: 2 ranks share 1 GPU\n" if GPUS == 1 else ""

    def test_every_element_is_checked_in_all_kinds_of_memory(self):
        for algorithm, outputs in [("allreduce_twoshot", 2), ("allgather_direct", 2), ("reducescatter_direct", 1)]:
            for placement in [[], ["--in-place"]]:
                path = self.emit(algorithm, *placement)
                for memory in ["symmetric", "ordinary"]:
                    for apart in [[], ["--out-of-place"]] if placement else [[]]:
                        report = self.measure(path, "--size", "1200:9600", "--step-factor", 8, "--dtype", "bf16",
                                              "--memory", memory, *apart)
                        self.assertEqual((report["device"], report["memory"], report["in_place"]),
                                         ("cuda", memory, bool(placement and not apart)))
                        self.assertEqual([size["bytes"] for size in report["sizes"]], [1200, 9600])
                        for size in report["sizes"]:
                            self.assertEqual((size["wrong_elements"], size["first_wrong"]), (0, None))
                            self.assertEqual(size["checked_elements"], 2 * outputs * size["bytes"] // 2)
                            self.assertGreater(size["seconds"], 0)

    def test_a_wrong_element_is_found(self):
        path = self.emit("allreduce_packets")
        plan = json.loads(path.read_text())
        for block in plan["gpus"][1]["threadblocks"]:
            for operation in block["ops"]:
                if "reduce_op" in operation:
                    operation["reduce_op"] = "max"
        path.write_text(json.dumps(plan))
        done = self.banyan("run", path, "--gpu", "--no-check", "--size", "4K")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"banyan run: rank 1: element [\d,]+ of the output is \S+, not \S+, at 4,096 bytes")

    def test_the_table_names_gpus_and_a_trace_is_recorded(self):
        path, trace = self.emit("allreduce_packets"), self.folder / "trace.json"
        done = self.banyan("run", path, "--gpu", "--size", "1K:4K", "--trace", trace)
        self.assertEqual((done.returncode, done.stderr), (0, self.shared()))
        self.assertEqual(done.stdout.split("\n")[0], "allreduce_packets: allreduce, 2 GPUs, f32, symmetric memory")
        self.assertIn("7,168 output elements were checked in two runs of each size: all are right", done.stdout)
        self.assertGreater(len(json.loads(trace.read_text())["traceEvents"]), 6)

    def test_a_trace_can_be_drawn(self):
        for algorithm in "allreduce_packets", "allreduce_pipelined":  # the latter has loops
            path, trace = self.emit(algorithm), self.folder / "trace.json"
            done = self.banyan("run", path, "--gpu", "--size", "4K", "--trace", trace)
            self.assertEqual((done.returncode, done.stderr), (0, self.shared()))
            done = self.banyan("plan", "view", path, "--trace", trace, "-o", self.folder / "page.html")
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_wrong_calls_are_refused_with_one_message(self):
        path = self.emit("allreduce_packets")
        for options, variables, part in [
                (["--shuffle", 3], {}, "--shuffle is for plans on the host"),
                (["--workers", 2], {}, "--workers is for plans on the host"),
                ([], {"BANYAN_EMULATED_DEVICES": "0", "CUDA_VISIBLE_DEVICES": ""}, "module cuda: ")]:
            done = self.banyan("run", path, "--gpu", "--size", "1K", *options, **variables)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(part, done.stderr)

    def test_ranks_share_a_gpu(self):
        path, table = self.emit("allreduce_twoshot"), self.folder / "table.json"
        one = {"BANYAN_EMULATED_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}
        for words in [["run", path, "--size", "4K"], ["tune", "-n", 2, "-o", table, "--seconds", 2, "--size", "8:64"],
                      ["mixed", "--local-tp", 2, "--local-dp", 1, "--rows", 4, "--hidden", 64, "--mode", "one_shot",
                       "--no-autotune"]]:
            done = self.banyan(*words, "--gpu", **one)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"banyan {words[0]}: 2 ranks share 1 GPU\n", done.stderr)


GPUS = gpus()

if __name__ == "__main__":
    if GPUS == 0:
        print("skipped: there is a driver, and no GPU")
        sys.exit(77)
    if GPUS < 0:
        if not (BUILD / "emulated").is_dir():
            print("skipped: there is no driver, and no emulated one in this build")
            sys.exit(77)
        os.environ["BANYAN_MODULE_PATH"] = str(BUILD / "emulated")
    done = unittest.main(argv=[sys.argv[0], "-v"], exit=False)
    sys.exit(not done.result.wasSuccessful())
