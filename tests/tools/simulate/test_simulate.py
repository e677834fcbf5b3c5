"""banyan simulate and banyan topo: what they print, and what they refuse."""

import json
import os
import pathlib
import subprocess
import tempfile
import time
import unittest

BUILD = pathlib.Path(os.environ["BANYAN_BUILD"])
BANYAN = BUILD / "bin/banyan"


def run(*arguments):
    return subprocess.run([BANYAN, *map(str, arguments)], capture_output=True, text=True, timeout=300)


class Command(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def emit(self, name, ranks):
        path = self.folder / f"{name}-{ranks}.json"
        path.write_text(self.printed("algo", "emit", name, "-n", ranks))
        return path

    def printed(self, *arguments):
        done = run(*arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def refused(self, part, *arguments, code=1):
        done = run(*arguments)
        self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
        self.assertIn(part, done.stderr)


class Simulate(Command):
    def test_times_bandwidths_links_and_path_are_told(self):
        plan = self.emit("allreduce_ring", 4)
        figures = json.loads(self.printed("simulate", plan, "-t", "h200x4", "--size", "64K:16M", "--json"))
        self.assertEqual([size["bytes"] for size in figures["sizes"]], [2 ** n for n in range(16, 25)])
        before = 0
        for size in figures["sizes"]:
            self.assertGreater(size["seconds"], before)
            before = size["seconds"]
            self.assertAlmostEqual(size["algorithm_gb_per_s"], size["bytes"] / before / 1e9, places=5)
            self.assertAlmostEqual(size["bus_gb_per_s"], 1.5 * size["algorithm_gb_per_s"], places=5)
        up = [link for link in figures["links"] if link["to"] and link["from"].startswith("gpu")]
        self.assertEqual({link["bytes"] for link in up}, {2 ** 24 * 3 // 2})
        for link in figures["links"]:
            self.assertTrue(0 < link["full"] <= link["busy"] <= 1.0000001, link)
        path = figures["critical_path"]
        self.assertEqual(path[0]["what"], "launch")
        self.assertAlmostEqual(path[-1]["ended_s"], before, places=6)

    def test_the_table_has_the_same(self):
        plan = self.emit("allreduce_ring", 4)
        text = self.printed("simulate", plan, "-t", "h200x4", "--size", "1M")
        self.assertIn("allreduce_ring: allreduce of 4 ranks on h200x4\n", text)
        self.assertRegex(text, r"\n       1,048,576 +\d+\.\d\d +\d+\.\d{3} +\d+\.\d{3}\n")
        self.assertRegex(text, r"gpu0 -> \w+ +1\.50 MiB +\d+\.\d% +\d+\.\d%\n")
        self.assertRegex(text, r"\nrre +3 +\d+\.\d\d +\d+\.\d%\n")

    def test_an_algorithm_needs_no_file(self):
        options = ("-t", "h200x4", "-s", "64K", "--json")
        plan = self.folder / "plan.json"
        plan.write_text(self.printed("algo", "emit", "allgather_direct", "-n", 4, "--instances", 2))
        compiled = json.loads(self.printed("simulate", "--algo", "allgather_direct", "--instances", 2, *options))
        self.assertEqual([size.pop("instances") for size in compiled["sizes"]], [2])
        self.assertEqual(compiled, json.loads(self.printed("simulate", plan, *options)))
        self.refused("--algo goes without a file", "simulate", plan, "--algo", "allgather_direct", *options, code=2)
        self.refused("--instances are those of --algo", "simulate", plan, "--instances", 2, *options, code=2)
        self.refused("no built-in algorithm is called none; banyan algo list names them", "simulate", "--algo", "none",
                     *options)

    def instances(self, *words):
        sizes = json.loads(self.printed("simulate", "--json", *words))["sizes"]
        return {size["bytes"]: size["instances"] for size in sizes}

    def test_an_algorithm_has_the_tuned_number_of_instances(self):
        words = ("--algo", "allreduce_packets", "-t", "h200x4")
        self.assertEqual(self.instances(*words, "-s", "2K:1M", "--step-factor", 8),
                         {2048: 2, 16384: 16, 131072: 64, 1048576: 64})
        self.assertRegex(self.printed("simulate", *words, "-s", "4K"), r"\n +4,096 .*  8 instances\n")
        # A row counts a rank's input, of which the output of an all-gather has four.
        self.assertEqual(self.instances("--algo", "allgather_direct", "-t", "h200x4", "-s", "32M:64M"),
                         {2 ** 25: 64, 2 ** 26: 128})
        self.assertEqual(self.instances("--algo", "allreduce_ring", "-t", "h200x4", "-s", "4K"), {4096: 1})
        self.assertEqual(self.instances("--algo", "allreduce_packets", "-t", "ethernet16", "-s", "4K"), {4096: 1})
        self.assertEqual(self.instances("--algo", "allreduce_packets", "-t", "gb200-nvl72", "-s", "72K"), {73728: 1})
        self.assertEqual(self.instances(*words, "-s", "4K", "--instances", 3), {4096: 3})
        table = self.folder / "tuning.json"
        rows = [{"collective": "allreduce", "device": "cuda", "ranks": 4, "ranks_per_node": 0, "dtype": dtype,
                 "registered": False, "up_to_bytes": up_to, "algorithm": name, "instances": instances, "unit_bytes": 0}
                for dtype, up_to, name, instances in [(None, 8192, "allreduce_ring", 5), (None, None, "allreduce_ring", 9),
                                                      ("BF16", None, "allreduce_ring", 7)]]
        table.write_text(json.dumps({"format": "banyan tuning", "version": 1, "rows": rows}))
        ring = ("--algo", "allreduce_ring", "-t", "h200x4", "-s", "8K:16K", "--tuning", table)
        self.assertEqual(self.instances(*ring), {8192: 5, 16384: 9})
        self.assertEqual(self.instances(*ring, "--dtype", "bf16"), {8192: 7, 16384: 7})
        self.refused("--tuning is for --algo", "simulate", "plan.json", "-t", "h200x4", "--tuning", table, code=2)
        self.refused("--tuning and --instances contradict", "simulate", *ring, "--instances", 2, code=2)
        self.refused("there is no file /nowhere", "simulate", *words, "--tuning", "/nowhere")

    def test_a_topology_may_be_a_file(self):
        plan = self.emit("sendrecv_port", 2)
        shown = self.printed("topo", "show", "h200x4", "--json")
        path = self.folder / "mine.json"
        slower = json.loads(shown)
        slower["name"] = "mine"
        for link in slower["links"]:
            link["bytes_per_s"] /= 100
        path.write_text(json.dumps(slower))
        fast, slow = (json.loads(self.printed("simulate", plan, "-t", name, "-s", "64M", "--json"))
                      for name in ("h200x4", path))
        self.assertEqual((fast["topology"], slow["topology"]), ("h200x4", "mine"))
        self.assertGreater(slow["sizes"][0]["seconds"], 4 * fast["sizes"][0]["seconds"])
        self.assertTrue(any(step["proxy"] for step in slow["critical_path"]))

    def test_a_trace_does_not_take_the_place_of_a_link(self):
        plan = self.emit("allreduce_ring", 2)
        link, path = self.folder / "link", self.folder / "trace.json"
        link.symlink_to(path)
        for before in ["", "x" * 100000]:
            path.write_text(before)
            self.printed("simulate", plan, "-t", "h200x4", "-s", "1K", "--trace", link)
            self.assertTrue(link.is_symlink())
            self.assertTrue(json.loads(path.read_text())["traceEvents"])
        full = self.folder / "full"
        full.symlink_to("/dev/full")
        self.refused("cannot write the trace", "simulate", plan, "-t", "h200x4", "-s", "1K", "--trace", full)
        self.assertTrue(full.is_symlink() and full.is_char_device())

    def test_a_trace_is_json_with_every_rank(self):
        plan = self.emit("allreduce_packets", 4)
        path = self.folder / "trace.json"
        self.printed("simulate", plan, "-t", "h200x4", "-s", "1K:4K", "--trace", path)
        events = json.loads(path.read_text())["traceEvents"]
        self.assertEqual({event["pid"] for event in events}, set(range(4)))
        self.assertLessEqual({"ppkt", "launch"}, {event.get("name") for event in events})

    def test_a_plan_that_cannot_be_simulated_gives_a_message(self):
        plan = self.emit("allreduce_ring", 8)
        self.refused("has 8 ranks, and topology h200x4 has 4 processors", "simulate", plan, "-t", "h200x4")
        self.refused("there is no file nowhere, and no topology of that name", "simulate", plan, "-t", "nowhere")
        self.refused("say which machine", "simulate", plan, code=2)
        self.refused("say which plan", "simulate", "-t", "h200x4", code=2)
        wrong = self.folder / "wrong.json"
        wrong.write_text('{"name": "wrong", "kinds": {}, "processors": [{"name": "p", "kind": "k"}]}')
        self.refused(f"{wrong}: processors[0] is of a kind \"k\"", "simulate", plan, "-t", wrong)
        self.refused("cannot write /nowhere/trace", "simulate", plan, "-t", "h200x8", "--trace", "/nowhere/trace")
        piped = self.emit("allreduce_pipelined", 4)
        piped.write_text(piped.read_text().replace('"unit_size": 131072', '"unit_size": 3'))
        began = time.monotonic()
        self.refused("at most 33554432 are simulated", "simulate", piped, "-t", "h200x4")
        self.refused("at most 100 are simulated", "simulate", piped, "-t", "h200x4", "-s", 4096, "--max-steps", 100)
        self.assertLess(time.monotonic() - began, 10)
        self.printed("simulate", piped, "-t", "h200x4", "-s", 4096)
        self.refused('"f4" names no element type', "simulate", plan, "-t", "h200x8", "--dtype", "f4")
        self.refused("cannot write the trace /dev/full", "simulate", plan, "-t", "h200x8", "--trace", "/dev/full")

    def test_a_plan_that_is_refused_at_some_sizes_is_refused_before_the_first(self):
        path = self.emit("allreduce_ring", 4)
        plan = json.loads(path.read_text())
        short = plan | {"buffer_alignment": 2}
        path.write_text(json.dumps(short))
        self.refused("aligns to 2 bytes", "simulate", path, "-t", "h200x4")
        self.printed("simulate", path, "-t", "h200x4", "--dtype", "bf16")
        plan["gpus"][1]["threadblocks"][0]["ops"] = [op for op in plan["gpus"][1]["threadblocks"][0]["ops"]
                                                     if op["name"] != "signal"]
        path.write_text(json.dumps(plan))
        self.refused("hangs", "simulate", path, "-t", "h200x4")

    def test_sizes_that_come_to_one_message_are_simulated_once(self):
        plan = self.emit("allreduce_ring", 4)
        sizes = [size["bytes"] for size in
                 json.loads(self.printed("simulate", plan, "-t", "h200x4", "--size", "1:9", "--json"))["sizes"]]
        self.assertEqual(sizes, [4, 8])
        self.assertEqual(len(self.printed("simulate", plan, "-t", "h200x4", "--size", "1:2").splitlines()),
                         len(self.printed("simulate", plan, "-t", "h200x4", "--size", "1").splitlines()))
        far = json.loads(self.printed("simulate", plan, "-t", "h200x4", "--size", "16:16384G",
                                      "--step-factor", 1 << 20, "--json"))["sizes"]
        self.assertEqual([size["bytes"] for size in far], [1 << 4, 1 << 24, 1 << 44])


class Reshard(Command):
    MODEL = pathlib.Path(__file__).resolve().parents[3] / "examples/models/qwen3-0.6b.json"
    JOB = ("--model", MODEL, "--from", "tp=2,pp=2", "--to", "tp=4")

    def test_both_services_are_told(self):
        figures = json.loads(self.printed("simulate", *self.JOB, "-t", "h200x8", "--disjoint", "--json"))
        self.assertEqual((figures["ranks"], figures["local_bytes"]), (8, 0))
        direct, pipeline = figures["forecasts"]
        self.assertEqual((direct["service"], pipeline["service"]), ("direct", "pipeline"))
        self.assertEqual((direct["rounds"], pipeline["slot_bytes"]), (0, 16 << 20))
        self.assertGreater(pipeline["rounds"], 1)
        for forecast in figures["forecasts"]:
            up = [link["bytes"] for link in forecast["links"] if link["to"] == "nvswitch"]
            self.assertLessEqual(abs(sum(up) - figures["bytes"]), 64 * figures["transfers"])
            self.assertGreater(forecast["seconds"], figures["most_sent"] / 397e9)
            self.assertAlmostEqual(forecast["critical_path"][-1]["ended_s"], forecast["seconds"], places=5)
        self.assertEqual({step["what"] for step in direct["critical_path"]}, {"copy"})
        self.assertIn("send", {step["what"] for step in pipeline["critical_path"]})

    def test_the_table_has_the_same(self):
        text = self.printed("simulate", *self.JOB, "-t", "h200x4", "--service", "pipeline",
                            "--slot-bytes", "1M", "--optimal-rounds")
        self.assertIn("tp=2,pp=2 on 4 ranks to tp=4 on 4 of them, on h200x4\n", text)
        self.assertRegex(text, r"\n[\d,]+ transfers between \d+ pairs of ranks, .*; .* stay at their rank\n")
        self.assertRegex(text, r"\npipeline +\d.*; rank \d is the last\n +\d+ batches in \d+ rounds, slots of 1.00 MiB\n")
        self.assertRegex(text, r"\nsend +\d+ +\d+\.\d\d +\d+\.\d%\n")
        self.assertNotIn("direct", text)

    def test_a_trace_has_all_moves(self):
        trace = self.folder / "trace.json"
        figures = json.loads(self.printed("simulate", *self.JOB, "-t", "h200x4", "--service", "pipeline",
                                          "--trace", trace, "--json"))
        events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
        batches = figures["forecasts"][0]["batches"]
        for what in ("pack", "send", "unpack"):
            self.assertEqual(sum(event["name"] == what for event in events), batches)

    def test_a_case_is_planned_and_simulated(self):
        case = BUILD / "tests/transfers/dense_tp1_to_tp4_dis.json"
        figures = json.loads(self.printed("simulate", "--reshard", case, "-t", "h200x8", "--json"))
        self.assertGreater(figures["bytes"], 0)
        self.assertEqual(len(figures["forecasts"]), 2)

    def test_wrong_arguments_are_refused(self):
        self.refused("--from SPEC is missing", "simulate", "--model", self.MODEL, "-t", "h200x4", code=2)
        self.refused("--topology FILE or NAME", "simulate", *self.JOB, code=2)
        self.refused("go without a file", "simulate", "x.json", *self.JOB, "-t", "h200x4", code=2)
        self.refused("direct or pipeline", "simulate", *self.JOB, "-t", "h200x4", "--service", "mpi", code=2)
        self.refused("of one --service", "simulate", *self.JOB, "-t", "h200x4", "--trace", "t.json", code=2)
        self.refused("are for reshards", "simulate", "x.json", "-t", "h200x4", "--slot-bytes", "1M", code=2)
        self.refused("8 ranks, and topology h200x4 has 4", "simulate", *self.JOB, "--disjoint", "-t", "h200x4")
        self.refused("no_such.json", "simulate", "--reshard", "no_such.json", "-t", "h200x4")


class Topologies(Command):
    def test_those_that_come_along_are_listed_and_shown(self):
        names = [line.split()[0] for line in self.printed("topo", "list").splitlines()[1:]]
        self.assertIn("h200x4", names)
        for name in names:
            self.assertIn(f"{name}: ", self.printed("topo", "show", name))
            self.assertEqual(json.loads(self.printed("topo", "show", name, "--json"))["name"], name)
        self.refused("no topology of that name: there are ", "topo", "show", "nowhere")
        self.refused("there is no command", "topo", "make", code=2)

    def test_the_list_is_printed_as_json(self):
        listed = json.loads(self.printed("topo", "list", "--json"))
        self.assertEqual([entry["name"] for entry in listed],
                         [line.split()[0] for line in self.printed("topo", "list").splitlines()[1:]])
        four = next(entry for entry in listed if entry["name"] == "h200x4")
        self.assertEqual((four["processors"], four["switches"], four["links"]), (4, 1, 8))

    def test_links_are_shown_with_their_numbers(self):
        for entry in json.loads(self.printed("topo", "list", "--json")):
            lines = self.printed("topo", "show", entry["name"]).splitlines()
            at = next(i for i, line in enumerate(lines) if line.split()[:2] == ["links", "GB/s"])
            self.assertEqual(sum(int(line.split()[0].replace(",", "")) for line in lines[at + 1:]),
                             entry["links"])
        self.assertIn("       8     397.0      200 ns  gpu{g} <-> nvswitch\n",
                      self.printed("topo", "show", "h200x4"))
        topology = json.loads(self.printed("topo", "show", "h200x4", "--json"))
        topology["links"] = [{"for": {"g": 4}, "from": "gpu{g}", "to": "nvswitch", "latency_ns": 90,
                              "bytes_per_s": 1e9, "both_ways": False},
                             {"for": {"g": 4}, "from": "nvswitch", "to": "gpu{g}",
                              "latency_ns": 200, "bytes_per_s": 2e9}]
        path = self.folder / "mine.json"
        path.write_text(json.dumps(topology))
        self.assertIn("       4       1.0       90 ns  gpu{g} -> nvswitch\n"
                      "       8       2.0      200 ns  nvswitch <-> gpu{g}\n",
                      self.printed("topo", "show", path))

    def test_this_machine_is_measured(self):
        path = self.folder / "here.json"
        ranks, largest = 17, 2 ** 26  # that of fewer would be too much of so many
        if os.environ.get("BANYAN_SANITIZE"):  # with which so many are slow
            ranks, largest = 3, 2 ** 27
        done = run("topo", "probe", "-n", ranks, "-o", path)
        self.assertEqual(done.returncode, 0, done.stderr)  # which warns of processors that are moved
        self.assertIn(f"{ranks} processors, 1 switch, {2 * ranks} links\n", self.printed("topo", "show", path))
        kind = json.loads(path.read_text())["kinds"]["process"]
        self.assertTrue(kind["shared_memory"])
        touched = 0
        for rates in kind["block"]:
            self.assertGreater(rates["working_set_bytes"], touched)
            touched = rates["working_set_bytes"]
            self.assertTrue(all(0 < rate <= 1e15 for key, rate in rates.items() if key != "working_set_bytes"), rates)
        self.assertEqual(touched, largest)
        plan = self.emit("allreduce_twoshot", 3)
        sizes = json.loads(self.printed("simulate", plan, "-t", path, "-s", "1K:1M", "--json"))["sizes"]
        self.assertTrue(all(size["seconds"] > 0 for size in sizes))
        self.refused("cannot write /nowhere/here.json", "topo", "probe", "-o", "/nowhere/here.json")


if __name__ == "__main__":
    unittest.main()
