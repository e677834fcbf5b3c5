"""banyan plan view --svg: a figure of vectors and text alone, as a page shows the same plan."""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

BANYAN = pathlib.Path(os.environ["BANYAN_BUILD"]) / "bin/banyan"
SVG = "{http://www.w3.org/2000/svg}"


def run(*arguments):
    return subprocess.run([BANYAN, *map(str, arguments)], capture_output=True, text=True, timeout=120)


class Figure(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def emit(self, name, ranks=4):
        path = self.folder / f"{name}.json"
        path.write_text(run("algo", "emit", name, "-n", ranks).stdout)
        return path

    def draw(self, *arguments):
        path = self.folder / "plan.svg"
        done = run("plan", "view", *arguments, "--svg", "-o", path)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        return xml.etree.ElementTree.parse(path).getroot()

    @staticmethod
    def texts(root):
        return [text.text for text in root.iter(SVG + "text")]

    @staticmethod
    def blocks(root):
        """Left, right and top of every operation, in the order of the steps."""
        found = [rect for rect in root.iter(SVG + "rect") if rect.get("class") == "step"]
        return [(float(r.get("x")), float(r.get("x")) + float(r.get("width")), float(r.get("y"))) for r in found]

    def test_a_figure_is_rectangles_paths_and_text_and_needs_nothing_else(self):
        for name in ("allreduce_ring", "allreduce_packets", "allreduce_switch", "sendrecv_port"):
            root = self.draw(self.emit(name), "-t", "gb200-nvl72")
            self.assertEqual({element.tag.removeprefix(SVG) for element in root.iter()}, {"svg", "rect", "path", "text"})
            attributes = {key for element in root.iter() for key in element.attrib}
            self.assertLessEqual({key for key in attributes if "href" in key or key == "style"}, set())
            self.assertNotRegex(xml.etree.ElementTree.tostring(root, encoding="unicode"), r"url\(|nan|inf[ \"]")
            self.assertIn("sans-serif", root.get("font-family"))
            left, top, width, height = map(float, root.get("viewBox").split())
            self.assertEqual((left, top, root.get("width")), (0, 0, f"{width}pt"))
            for x0, x1, y in self.blocks(root):
                self.assertTrue(0 <= x0 <= x1 <= width and 0 <= y <= height, (x0, x1, y))

    def test_operations_have_names_chunks_and_peers_on_them(self):
        texts = self.texts(self.draw(self.emit("allreduce_ring")))
        self.assertEqual(texts[0], "allreduce_ring: allreduce of 4 ranks")
        for text, count in (("rre", 12), ("get", 12), ("signal", 24 + 2), ("i3→s0", 1), ("i2,s0@3→s1", 1), ("→ 1", 6),
                            ("← 2", 6), ("block 0", 4), ("buffers", 4), ("rank 3", 2), ("input i", 1)):
            self.assertEqual(texts.count(text), count, text)

    def test_every_arrow_of_the_page_is_in_the_figure(self):
        for name in ("allreduce_ring", "allreduce_packets", "sendrecv_port", "allreduce_hierarchical"):
            plan = self.emit(name)
            page = self.folder / "plan.html"
            self.assertEqual(run("plan", "view", plan, "-t", "h200x4", "-o", page).returncode, 0)
            arrows = json.loads(re.search(r'^"arrows": (\[.*\]),$', page.read_text(), re.M)[1])
            root = self.draw(plan, "-t", "h200x4")
            heads = [path for path in root.iter(SVG + "path") if path.get("fill") != "none"]
            self.assertEqual(len(heads), len(arrows) + len({kind for kind, _, _ in arrows}), name)

    def test_lanes_are_to_time(self):
        plan, trace = self.emit("allreduce_ring"), self.folder / "trace.json"
        run("simulate", plan, "-t", "h200x4", "-s", "1M", "--trace", trace)
        events = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
        end = max(e["ts"] + e["dur"] for e in events)
        for arguments in (["-t", "h200x4", "-s", "1M"], ["--trace", trace]):
            root = self.draw(plan, *arguments)
            blocks = [b for b in self.blocks(root)]
            left, right = min(x for x, _, _ in blocks), max(x for _, x, _ in blocks)
            rows = sorted({y for _, _, y in blocks})
            self.assertEqual(len(rows), 4)
            for rank, row in enumerate(rows):
                drawn = sorted(x for x, _, y in blocks if y == row)
                begun = sorted(e["ts"] for e in events if e["pid"] == rank and e["name"] != "nop")
                begun = [left + ts / end * (right - left) for ts in begun]
                for want in begun:
                    self.assertLess(min(abs(x - want) for x in drawn), 0.02)
            self.assertIn("0 µs", self.texts(root))

    def test_ranks_part_and_width_select_the_drawing(self):
        plan = self.emit("allreduce_ring", 8)
        whole = self.blocks(self.draw(plan))
        two = self.draw(plan, "--ranks", "0:1")
        self.assertEqual(len(self.blocks(two)) * 4, len(whole))
        self.assertEqual({text for text in self.texts(two) if text.startswith("rank ")}, {"rank 0", "rank 1"})
        some = self.draw(plan, "--ranks", "7,0,2:3")
        self.assertEqual({text for text in self.texts(some) if text.startswith("rank ")},
                         {"rank 0", "rank 2", "rank 3", "rank 7"})
        quarter = self.draw(plan, "--part", "25:50", "--width", 500)
        self.assertEqual(quarter.get("width"), "500.0pt")
        self.assertTrue(len(whole) / 5 < len(self.blocks(quarter)) < len(whole) / 3)

    def test_findings_are_numbered_at_their_places_and_told_below(self):
        plan = self.emit("allreduce_twoshot")
        changed = json.loads(plan.read_text())
        operations = changed["gpus"][1]["threadblocks"][0]["ops"]
        del operations[[op["name"] for op in operations].index("re") + 1]
        plan.write_text(json.dumps(changed))
        root = self.draw(plan, "--check")
        texts = self.texts(root)
        self.assertGreater(len([rect for rect in root.iter(SVG + "rect") if rect.get("stroke") == "#b3261e"]), 1)
        findings = len([text for text in texts if text.startswith(("race: ", "reuse: "))])
        self.assertGreater(findings, 2)
        # The operation that was moved up against the other is in all of them.
        self.assertIn(f"0–{findings - 1}", texts)
        self.assertTrue(any(text.startswith("race: ") for text in texts))

    def test_a_name_is_text_whatever_is_in_it(self):
        plan = self.emit("allreduce_oneshot")
        changed = json.loads(plan.read_text())
        changed["name"] = "<b>bold & \"loud\""
        plan.write_text(json.dumps(changed))
        self.assertEqual(self.texts(self.draw(plan))[0], "<b>bold & \"loud\": allreduce of 4 ranks")

    def test_a_plan_that_hangs_is_drawn_with_its_dependencies(self):
        plan = self.emit("allreduce_ring", 2)
        changed = json.loads(plan.read_text())
        for gpu in changed["gpus"]:
            block = gpu["threadblocks"][0]
            block["ops"] = [op for op in block["ops"] if op["name"] != "signal"]
        plan.write_text(json.dumps(changed))
        texts = self.texts(self.draw(plan))
        self.assertIn("waits for a signal", " ".join(texts))
        self.assertIn("nop", texts)


if __name__ == "__main__":
    unittest.main()
