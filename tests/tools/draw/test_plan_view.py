"""banyan plan view: one page that needs nothing else, and that a browser draws."""

import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
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
        command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={self.folder}/browser",
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

    def test_a_dash_is_stdout(self):
        plan = self.emit("allreduce_ring")
        for kind in [[], ["--svg"]]:
            page = self.view(plan, *kind)
            done = subprocess.run([BANYAN, "plan", "view", plan, *kind, "-o", "-"], capture_output=True, text=True,
                                  timeout=120, cwd=self.folder)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(done.stdout, page)
        self.assertFalse((self.folder / "-").exists())

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
            for kind in ("signal", "packets", "put", "get"):
                arrows = [arrow for arrow in data["arrows"] if arrow[0] == kind]
                self.assertEqual(drawn.count(f'class="arrow {kind}"'), len(arrows), (name, kind))
            self.assertGreater(len(data["arrows"]), 0, name)

    @unittest.skipUnless(BROWSER, "there is no chromium to draw the page")
    def test_many_arrows_are_shown_for_the_operation_under_the_pointer(self):
        data = self.data_of(self.view(self.emit("allreduce_twoshot", 24)))
        self.assertGreater(len(data["arrows"]), 1000)
        self.assertEqual(self.drawn().count('class="arrow '), 0)
        wait = next(i for i, step in enumerate(data["steps"]) if self.name_of(data, step) == "wait")
        expected = sorted(a for a, (kind, start, end) in enumerate(data["arrows"])
                          if (kind != "get" and start == wait) or (kind != "put" and end == wait))
        self.assertGreater(len(expected), 1)
        shown = self.asked(f"""
          const over = element => element.dispatchEvent(new MouseEvent("mousemove", {{ bubbles: true }}));
          const drawn = () => Object.keys(lines).map(Number).sort((a, b) => a - b);
          const sets = [];
          over(rects[{wait}]); sets.push(drawn());
          over(chart); sets.push(drawn());
          arrowMode.value = "all"; draw(); sets.push(drawn().length);
          arrowMode.value = "none"; draw(); over(rects[{wait}]); sets.push(drawn().length);
          document.title = JSON.stringify(sets);""")
        self.assertEqual(shown, [expected, [], len(data["arrows"]), 0])

    def name_of(self, data, step):
        return data["operations"]["/".join(str(step[i]) for i in (0, 1, 3, 4))]["name"]

    @unittest.skipUnless(BROWSER, "there is no chromium to draw the page")
    def test_names_of_operations_are_explained(self):
        data = self.data_of(self.view(self.emit("allreduce_ring")))
        used = {operation["name"] for operation in data["operations"].values()}
        listed = self.asked("""
          const words = [...document.querySelectorAll("#words dt")].map(
            word => [word.textContent, word.nextSibling.textContent, describe(data.steps.find(s => whatOf(s) === word.textContent))]);
          document.title = JSON.stringify(words);""")
        self.assertEqual({word for word, _, _ in listed}, used)
        for word, text, tip in listed:
            self.assertRegex(text, r"^[A-Z].*\.$", word)
            self.assertIn(f": {word}\n{text}", tip)

    def test_every_name_of_the_format_is_explained(self):
        root = pathlib.Path(__file__).resolve().parents[3]
        plan = json.loads((root / "tests/fuzz/corpus/plan/every-operation").read_text())
        operations = [op for gpu in plan["gpus"] for block in gpu["threadblocks"] for op in block["ops"]]
        names = {op["name"] for op in operations + [inner for op in operations for inner in op.get("ops", [])]}
        words = re.search(r"^const WORDS = \{(.*?)^\};", (root / "tools/draw/plan_page.html").read_text(), re.M | re.S)[1]
        self.assertEqual(set(re.findall(r"^  (\w+): \"", words, re.M)), names | {"launch"})

    def test_arrows_lead_from_signals_to_waits_and_from_data_to_buffers(self):
        """A ring of four: each signals the next one, which then reads a chunk."""
        data = self.data_of(self.view(self.emit("allreduce_ring")))
        steps, lanes = data["steps"], data["lanes"]
        names = [data["operations"]["/".join(map(str, (s[0], s[1], s[3], s[4])))]["name"] for s in steps]
        signals = [(a, b) for kind, a, b in data["arrows"] if kind == "signal"]
        self.assertEqual(sorted(b for _, b in signals), [i for i, name in enumerate(names) if name == "wait"])
        for a, b in signals:
            self.assertEqual((names[a], steps[b][0]), ("signal", (steps[a][0] + 1) % 4))
            self.assertLessEqual(steps[a][7], steps[b][7])
        reads = [(a, b) for kind, a, b in data["arrows"] if kind == "get"]
        self.assertEqual(sorted(b for _, b in reads), [i for i, name in enumerate(names) if name in ("rre", "get")])
        for lane, b in reads:
            self.assertEqual(lanes[lane][:2], ["buffers", (steps[b][0] + 3) % 4])

    def test_packets_lead_to_their_readers(self):
        data = self.data_of(self.view(self.emit("allreduce_packets")))
        pairs = {(data["steps"][a][0], data["steps"][b][0]) for kind, a, b in data["arrows"] if kind == "packets"}
        self.assertEqual(pairs, {(a, b) for a in range(4) for b in range(4) if a != b})
        self.assertEqual(len(data["arrows"]), 12)

    def test_semaphores_lead_from_thread_block_to_thread_block(self):
        data = self.data_of(self.view(self.emit("allreduce_pipelined"), "-s", "64M"))
        within = [(data["steps"][a], data["steps"][b]) for kind, a, b in data["arrows"] if kind == "signal" and
                  data["steps"][a][0] == data["steps"][b][0]]
        self.assertGreater(len(within), 0)
        for a, b in within:
            # The semaphore begins with what four iterations need.
            self.assertEqual((a[1] != b[1], b[5] - a[5]), (True, 4))

    def asked(self, script):
        """Return the page's title after a script of the test, which runs after the page's own."""
        self.page.write_text(self.page.read_text().replace("</script>", f"{script}\n</script>"))
        return json.loads(html.unescape(re.search(r"<title>(.*?)</title>", self.drawn(), re.S)[1]))

    @unittest.skipUnless(BROWSER, "there is no chromium to draw the page")
    def test_pointing_at_an_operation_tells_its_chunks_and_peers(self):
        data = self.data_of(self.view(self.emit("allreduce_ring")))
        shown = self.asked("""
          document.title = JSON.stringify(data.steps.map((step, i) => {
            rects[i].dispatchEvent(new MouseEvent("mousemove", { bubbles: true }));
            const shown = tip.style.display === "block" ? tip.textContent : null;
            chart.dispatchEvent(new MouseEvent("mousemove", { bubbles: true }));
            return [shown, tip.style.display];
          }));""")
        places = {tuple(step[:5]): i for i, step in enumerate(data["steps"])}
        self.assertEqual({hidden for _, hidden in shown}, {"none"})
        reduce, _ = shown[places[(1, 0, 0, 5, -1)]]
        self.assertRegex(reduce, r"^rank 1, thread block 0, operation 5: rre\nRead reduce: .*\.\n"
                                 r"from input\[3\], scratch\[0\] of rank 0\nto scratch\[1\]\nreduced by sum\n\d+ to \d+$")
        self.assertIn("memory channel: rank 3", shown[places[(2, 0, 0, 2, -1)]][0])

    @unittest.skipUnless(BROWSER, "there is no chromium to draw the page")
    def test_a_click_on_a_step_shows_the_steps_before_it(self):
        data = self.data_of(self.view(self.emit("allreduce_ring")))
        last = len(data["steps"]) - 1
        chain, at = [], last
        while at >= 0:
            chain.append(at)
            at = data["steps"][at][8]
        marked = self.asked(f"""
          const click = () => rects[{last}].dispatchEvent(new MouseEvent("click", {{ bubbles: true }}));
          const shown = name => [...rects.keys()].filter(i => rects[i].classList.contains(name));
          click();
          const once = [shown("path"), shown("dim").length];
          click();
          document.title = JSON.stringify([...once, shown("path"), shown("dim")]);""")
        self.assertEqual(marked, [sorted(chain), len(data["steps"]) - len(chain), [], []])
        self.assertGreater(len({data["steps"][i][0] for i in chain}), 1)

    def positions(self):
        return self.asked("document.title = JSON.stringify(rects.map(r => [+r.getAttribute('x'), "
                          "+r.getAttribute('width'), r.getAttribute('y')]));")

    def assert_to_time(self, data, positions):
        """Where blocks begin and end is where their times are between the first and the last."""
        end = max(step[7] for step in data["steps"])
        right = max(x + width for x, width, _ in positions)
        for step, (x, width, _) in zip(data["steps"], positions, strict=True):
            self.assertAlmostEqual(x / right, step[6] / end, delta=0.004)
            self.assertAlmostEqual((x + width) / right, step[7] / end, delta=0.004)
        lanes = {(y, step[9]) for step, (_, _, y) in zip(data["steps"], positions)}
        self.assertEqual(len({y for y, _ in lanes}), len(lanes))

    @unittest.skipUnless(BROWSER, "there is no chromium to draw the page")
    def test_lanes_are_to_time_with_a_simulation(self):
        data = self.data_of(self.view(self.emit("allreduce_hierarchical"), "-t", "h200x4"))
        self.assert_to_time(data, self.positions())

    @unittest.skipUnless(BROWSER, "there is no chromium to draw the page")
    def test_lanes_are_to_time_with_a_trace(self):
        plan = self.emit("allreduce_ring", 2)
        trace = self.folder / "trace.json"
        self.assertEqual(run("run", plan, "-s", "1K:64K", "--iters", 2, "--trace", trace).returncode, 0)
        data = self.data_of(self.view(plan, "--trace", trace))
        events = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
        last = max(e["args"]["run"] for e in events)
        taken = [e for e in events if e["args"]["run"] == last]
        self.assertLess(len(taken), len(events))
        began = min(e["ts"] for e in taken)
        self.assertEqual(sorted((e["pid"], e["args"]["operation"], round(e["ts"] - began, 3)) for e in taken),
                         sorted((s[0], s[3], round(s[6] * 1e6, 3)) for s in data["steps"]))
        self.assertEqual(len([a for a in data["arrows"] if a[0] == "signal"]),
                         len([e for e in taken if e["name"] == "wait"]))
        self.assert_to_time(data, self.positions())

    def outputs_by_input(self, name):
        """For every input chunk: the output chunks that a click on it marks."""
        self.view(self.emit(name), "-s", "64K")
        ask = """
          const all = {};
          for (const cell of cells.filter(c => c.chunk[1] === "i")) {
            cell.dispatchEvent(new MouseEvent("click", { bubbles: true }));
            all[`${cell.chunk[0]} ${cell.chunk[2]}`] = cells.filter(c => c.chunk[1] === "o" &&
              c.classList.contains("holds")).map(c => [c.chunk[0], c.chunk[2]]);
          }
          document.title = JSON.stringify(all);"""
        found = self.asked(ask)
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

    @unittest.skipUnless(BROWSER, "there is no chromium to draw the page")
    def test_a_followed_chunk_takes_its_own_arrows_only(self):
        """Rank 0 puts chunk c to rank c, who reduces it, and from whom all others get the sum."""
        data = self.data_of(self.view(self.emit("allreduce_twoshot")))
        arrows = self.asked("""
          cells.find(c => c.chunk.join() === "0,i,1").dispatchEvent(new MouseEvent("click", { bubbles: true }));
          document.title = JSON.stringify([...lines.keys()].filter(a => lines[a].classList.contains("path")));""")
        taken = [data["arrows"][a] for a in arrows]
        puts = [(data["steps"][step][0], data["lanes"][lane][1]) for kind, step, lane in taken if kind == "put"]
        gets = [(data["lanes"][lane][1], data["steps"][step][0]) for kind, lane, step in taken if kind == "get"]
        self.assertEqual((puts, sorted(gets)), ([(0, 1)], [(1, 0), (1, 2), (1, 3)]))

    def test_a_trace_of_a_loop_has_every_operation_of_every_iteration(self):
        plan, trace = self.emit("allreduce_pipelined", 2), self.folder / "trace.json"
        self.assertEqual(run("run", plan, "-s", "1M", "--iters", 1, "--trace", trace).returncode, 0)
        data = self.data_of(self.view(plan, "--trace", trace))
        simulated = self.data_of(self.view(plan, "-t", "h200x4", "-s", "1M"))
        def places(steps):
            return sorted(tuple(step[:6]) for step in steps if step[3] >= 0)
        self.assertGreater(max(step[5] for step in data["steps"]), 0)
        self.assertEqual(places(data["steps"]), places(simulated["steps"]))
        def arrows_of(of, kind):
            return sorted((of["steps"][a][:6], of["steps"][b][:6]) for k, a, b in of["arrows"] if k == kind)
        self.assertEqual(arrows_of(data, "signal"), arrows_of(simulated, "signal"))

    def test_operations_have_the_lines_of_their_program(self):
        plan = json.loads(self.emit("allreduce_ring").read_text())
        plan["banyan"] = {"lines": [["ring.c", 41], ["a <b> c.c", 42]]}
        plan["gpus"][0]["threadblocks"][0]["ops"][0]["line"] = 2
        path = self.folder / "lines.json"
        path.write_text(json.dumps(plan))
        operations = self.data_of(self.view(path))["operations"]
        self.assertTrue(operations["0/0/0/-1"]["about"].endswith("\nin a <b> c.c:42\n"))
        self.assertNotIn("\nin ", operations["1/0/0/-1"]["about"])

    def test_findings_are_listed_and_marked(self):
        plan = self.emit("allreduce_twoshot")
        changed = json.loads(plan.read_text())
        operations = changed["gpus"][1]["threadblocks"][0]["ops"]
        reduce = [op["name"] for op in operations].index("re")
        self.assertEqual(operations[reduce + 1]["name"], "nop")
        del operations[reduce + 1]
        sound = self.data_of(self.view(plan, "--check"))["findings"]
        self.assertEqual([finding for finding in sound if not finding["warning"]], [])
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
            self.assertIn(f">0. {data['findings'][0]['rule']}: ", drawn)
            shown = self.asked("""
              document.querySelector("#findings li").dispatchEvent(new MouseEvent("click", { bubbles: true }));
              document.title = JSON.stringify([...rects.keys()].filter(i => !rects[i].classList.contains("dim")));""")
            places = {tuple(place) for place in data["findings"][0]["places"]}
            self.assertEqual(shown, [i for i, step in enumerate(data["steps"])
                                     if (step[0], step[1], step[3], step[4]) in places])

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
        self.assertEqual({step[8] for step in data["steps"]}, {-1})
        self.assertIn(data["hang"], done.stderr)
        if BROWSER:
            drawn = self.drawn()
            count = sum(len(gpu["threadblocks"][0]["ops"]) for gpu in changed["gpus"])
            self.assertEqual(drawn.count('class="step"'), count)
            self.assertIn("waits for a signal of rank 1", drawn)

    def test_a_plan_that_cannot_be_drawn_gives_a_message_and_no_page(self):
        done = run("plan", "view", self.emit("allreduce_ring", 8), "-t", "h200x4", "-o", self.page)
        self.assertEqual(done.returncode, 1)
        self.assertIn("has 8 ranks, and topology h200x4 has 4 processors", done.stderr)
        self.assertFalse(self.page.exists())
        ring = self.emit("allreduce_ring")
        trace = self.folder / "trace.json"
        run("simulate", self.emit("allreduce_twoshot"), "-t", "h200x4", "-s", "64K", "--trace", trace)
        (self.folder / "empty.json").write_text("{}")
        for arguments, why, code in (
                ([], "give the output file", 2),
                (["-o", self.page, "--trace", "t.json", "-t", "h200x4"], "two sources of times", 2),
                (["-o", self.page, "--ranks", "0"], "add --svg", 2),
                (["-o", self.folder / "plan.svg"], "plan.svg would be a page: add --svg for a figure", 2),
                (["-o", self.page, "--trace", "/nowhere"], "cannot read the trace /nowhere", 1),
                (["-o", self.page, "--trace", self.folder / "empty.json"], "has no operations", 1),
                (["-o", self.page, "--trace", trace], "is not a trace of this plan", 1),
                (["-o", self.page, "--svg", "--ranks", "0:4"], "ranks from 0 to 3", 1),
                (["-o", self.page, "--svg", "--ranks", "one"], 'not "one"', 1),
                (["-o", self.page, "--svg", "--part", "50:50"], "two numbers from 0 to 100", 1)):
            done = run("plan", "view", ring, *arguments)
            self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
            self.assertIn(why, done.stderr)
            self.assertFalse(self.page.exists())


if __name__ == "__main__":
    result = unittest.main(argv=[sys.argv[0], "-v"], exit=False).result
    sys.exit(not result.wasSuccessful() or (77 if result.skipped else 0))
