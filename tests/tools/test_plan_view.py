"""banyan plan view: one page that needs nothing else, and that a browser draws."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

BANYAN = pathlib.Path(os.environ["BANYAN_BUILD"]) / "bin/banyan"
BROWSER = shutil.which("chromium")


def run(*arguments):
    return subprocess.run([BANYAN, *map(str, arguments)], capture_output=True, text=True, timeout=120)


class View(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.page = self.folder / "plan.html"

    def emit(self, name, ranks=4):
        path = self.folder / f"{name}.json"
        path.write_text(run("algo", "emit", name, "-n", ranks).stdout)
        return path

    def view(self, *arguments):
        done = run("plan", "view", *arguments, "-o", self.page)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return self.page.read_text()

    def data_of(self, page):
        return json.loads(re.search(r"^const data = (\{.*?\]\});$", page, re.M | re.S)[1])

    def drawn(self):
        """The page as the browser has it once its script has run."""
        command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={self.folder}/browser",
                   "--virtual-time-budget=5000", "--dump-dom", f"file://{self.page}"]
        return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout

    def test_the_page_has_plan_and_steps_and_asks_for_nothing(self):
        plan = self.emit("allreduce_ring")
        page = self.view(plan)
        data = self.data_of(page)
        self.assertEqual(data["plan"]["name"], "allreduce_ring")
        operations = sum(len(block["ops"]) for gpu in data["plan"]["gpus"] for block in gpu["threadblocks"])
        self.assertEqual(len(data["steps"]), operations + 4)
        for step in data["steps"]:
            self.assertLess(step[8], len(data["steps"]))
        links = set(re.findall(r"https?://[^\s\"']*", page)) - {"http://www.w3.org/2000/svg"}
        self.assertEqual(links, set())
        self.assertNotRegex(page, r"<(link|img|script) [^>]*(src|href)")

    def test_a_topology_gives_times(self):
        plan = self.emit("allreduce_ring")
        data = self.data_of(self.view(plan, "-t", "h200x4", "--size", "4M"))
        figures = json.loads(run("simulate", plan, "-t", "h200x4", "-s", "4M", "--json").stdout)
        self.assertEqual((data["topology"], data["message_bytes"]), ("h200x4", 4 << 20))
        self.assertAlmostEqual(max(step[7] for step in data["steps"]), figures["sizes"][0]["seconds"], places=8)

    def test_names_cannot_end_the_script(self):
        plan = self.emit("allreduce_oneshot")
        changed = json.loads(plan.read_text())
        changed["name"] = "</script><b>bold & \"loud\""
        plan.write_text(json.dumps(changed))
        page = self.view(plan)
        self.assertEqual(page.count("</script>"), 1)
        self.assertEqual(self.data_of(page)["plan"]["name"], changed["name"])

    @unittest.skipUnless(BROWSER, "there is no chromium to draw the page")
    def test_a_browser_draws_a_block_for_every_step(self):
        for name in ("allreduce_pipelined", "allreduce_packets", "allreduce_switch", "sendrecv_port",
                     "allreduce_hierarchical"):
            data = self.data_of(self.view(self.emit(name), "-t", "gb200-nvl72"))
            drawn = self.drawn()
            self.assertEqual(drawn.count('class="step"'), len(data["steps"]), name)
            self.assertIn(f"<title>{name}</title>", drawn)
            waits = [s for s in data["steps"] if s[8] >= 0 and
                     [s[0], s[1], s[2]] != [data["steps"][s[8]][i] for i in range(3)]]
            self.assertEqual(drawn.count('class="arrow"'), len(waits), name)
            self.assertGreater(len(waits), 0, name)

    def outputs_by_input(self, name):
        """Of every input chunk, as a click on it marks them: the output chunks that hold it."""
        self.view(self.emit(name), "-s", "64K")
        ask = """
          const all = {};
          for (const cell of cells.filter(c => c.chunk[1] === "i")) {
            chooseChunk(cell.chunk[0], cell.chunk[2]);
            all[`${cell.chunk[0]} ${cell.chunk[2]}`] = cells.filter(c => c.chunk[1] === "o" &&
              c.classList.contains("holds")).map(c => [c.chunk[0], c.chunk[2]]);
          }
          document.title = JSON.stringify(all);
          </script>"""
        self.page.write_text(self.page.read_text().replace("</script>", ask))
        found = json.loads(re.search(r"<title>(.*)</title>", self.drawn())[1])
        return {tuple(map(int, key.split())): sorted(map(tuple, held)) for key, held in found.items()}

    @unittest.skipUnless(BROWSER, "there is no chromium to draw the page")
    def test_a_chunk_is_followed_to_the_outputs_that_hold_it(self):
        ranks = range(4)
        for name in ("allreduce_ring", "allreduce_halving_doubling", "allreduce_packets", "allreduce_switch"):
            held = self.outputs_by_input(name)
            self.assertGreaterEqual(len(held), 4)
            for (_, chunk), outputs in held.items():
                self.assertEqual(outputs, [(r, chunk) for r in ranks], name)
        for name in ("allgather_bruck", "allgather_ring_direct"):
            for (rank, chunk), outputs in self.outputs_by_input(name).items():
                self.assertEqual((chunk, outputs), (0, [(r, rank) for r in ranks]), name)
        for (rank, chunk), outputs in self.outputs_by_input("alltoall_pairwise").items():
            self.assertEqual(outputs, [(chunk, rank)])
        for (rank, chunk), outputs in self.outputs_by_input("sendrecv_port").items():
            self.assertEqual(outputs, [((rank + 1) % 4, chunk)])

    def test_findings_are_listed_and_marked(self):
        plan = self.emit("allreduce_twoshot")
        changed = json.loads(plan.read_text())
        operations = changed["gpus"][1]["threadblocks"][0]["ops"]
        reduce = [op["name"] for op in operations].index("re")
        self.assertEqual(operations[reduce + 1]["name"], "nop")
        del operations[reduce + 1]
        self.assertEqual(self.data_of(self.view(plan, "--check"))["findings"], [])
        plan.write_text(json.dumps(changed))
        data = self.data_of(self.view(plan, "--check"))
        self.assertIn("race", {finding["rule"] for finding in data["findings"]})
        self.assertIn([1, 0, reduce, -1], data["findings"][0]["places"])
        self.assertEqual(self.data_of(self.view(plan))["checked"], False)
        if BROWSER:
            self.view(plan, "--check")
            drawn = self.drawn()
            places = {tuple(place) for finding in data["findings"] for place in finding["places"]}
            marked = [step for step in data["steps"] if (step[0], step[1], step[3], step[4]) in places]
            self.assertGreaterEqual(len(marked), 2)
            self.assertEqual(drawn.count('class="step found"'), len(marked))
            self.assertEqual(len(re.findall(r"<li[ >]", drawn)), len(data["findings"]))

    def test_a_plan_that_hangs_is_drawn_in_its_order(self):
        plan = self.emit("allreduce_ring", 2)
        changed = json.loads(plan.read_text())
        for gpu in changed["gpus"]:
            operations = gpu["threadblocks"][0]["ops"]
            gpu["threadblocks"][0]["ops"] = [op for op in operations if op["name"] != "signal"]
        plan.write_text(json.dumps(changed))
        done = run("plan", "view", plan, "-o", self.page)
        self.assertEqual(done.returncode, 0)
        self.assertIn("plan allreduce_ring hangs: rank 0, thread block 0, operation ", done.stderr)
        data = self.data_of(self.page.read_text())
        self.assertEqual(data["steps"], [])
        self.assertIn(data["hang"], done.stderr)
        if BROWSER:
            drawn = self.drawn()
            count = sum(len(gpu["threadblocks"][0]["ops"]) for gpu in changed["gpus"])
            self.assertEqual(drawn.count('class="step"'), count)
            self.assertIn("waits for a signal of rank 1", drawn)

    def test_what_cannot_be_drawn_is_a_sentence_and_no_page(self):
        done = run("plan", "view", self.emit("allreduce_ring", 8), "-t", "h200x4", "-o", self.page)
        self.assertEqual(done.returncode, 1)
        self.assertIn("has 8 ranks, and topology h200x4 has 4 processors", done.stderr)
        self.assertFalse(self.page.exists())
        self.assertEqual(run("plan", "view", self.emit("allreduce_ring")).returncode, 2)


if __name__ == "__main__":
    unittest.main()
