"""A few seconds of `make soak`, and the sample of `make mutants`: both still work."""

import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]


def output_of(*words):
    return subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True,
                          check=False, timeout=300)


class Soak(unittest.TestCase):
    def test_every_part_runs_and_finds_nothing(self):
        done = output_of(ROOT / "tests/soak/soak.py", "--build", os.environ["BANYAN_BUILD"],
                         "--seconds", 9, "--turn", 3, "--seed", 1, "--parts", "kills,inputs,plans")
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        for part in ("kills", "inputs", "plans"):
            self.assertRegex(done.stdout, rf"(?m)^{part} .* [1-9]\d* (jobs|batches|plans), ")
        self.assertIn("found: 0", done.stdout)


class Mutants(unittest.TestCase):
    def test_a_seed_names_its_changes(self):
        lists = [output_of(ROOT / "scripts/mutants", "--list", "--count", 40, "--seed", seed,
                           "--folder", "plan,simulate").stdout for seed in (1, 1, 2)]
        self.assertEqual(lists[0], lists[1])
        self.assertNotEqual(lists[0], lists[2])
        places = [line for line in lists[0].splitlines() if line.startswith("src/")]
        self.assertEqual(len(places), 40)
        for place in places:
            path, line = place.split(":")
            before = lists[0].split(f"{place}\n    - ")[1].splitlines()[0]
            self.assertEqual((ROOT / path).read_text().splitlines()[int(line) - 1].strip(), before)


if __name__ == "__main__":
    unittest.main()
