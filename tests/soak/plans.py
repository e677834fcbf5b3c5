"""Plans of built-in algorithms with random damage: what `banyan check` calls sound runs and computes
the right result; what it does not call sound runs without a crash or a hang."""

import copy
import json
import pathlib
import random
import re
import subprocess

LIMIT_S = 120


def places(value, path=()):
    """Every place in a JSON document."""
    items = value.items() if isinstance(value, dict) else \
        enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def parent_of(document, path):
    for key in path[:-1]:
        document = document[key]
    return document


def damage(document, draw: random.Random):
    """One change in place: a number, an operation left out, twice or elsewhere, another's value."""
    every = [p for p in places(document)]
    path = draw.choice(every)
    inside = parent_of(document, path)
    value = inside[path[-1]]
    kind = draw.randrange(6)
    if isinstance(value, bool):
        inside[path[-1]] = not value
    elif isinstance(value, int):
        inside[path[-1]] = draw.choice([value + 1, value - 1, 0, 2 * value, draw.randrange(20),
                                        2**31, 2**63, -1] if kind == 0 else
                                       [value + 1, value - 1, draw.randrange(4)])
    elif isinstance(inside, list) and kind < 2:
        del inside[path[-1]]
    elif isinstance(inside, list) and kind == 2:
        inside.insert(path[-1], copy.deepcopy(value))
    elif isinstance(inside, list) and len(inside) > 1:
        other = draw.randrange(len(inside))
        inside[path[-1]], inside[other] = inside[other], inside[path[-1]]
    else:
        alike = [p for p in every if type(parent_of(document, p)[p[-1]]) is type(value)
                 and p[-1] == path[-1]]
        other = draw.choice(alike)
        inside[path[-1]] = copy.deepcopy(parent_of(document, other)[other[-1]])


class Plans:
    def __init__(self, build: pathlib.Path, folder: pathlib.Path, kept: pathlib.Path, seed: int):
        self.banyan, self.folder, self.kept = build / "bin/banyan", folder, kept
        self.seed, self.draw = seed, random.Random(seed)
        listed = json.loads(self.call("algo", "list", "--json")[1])
        self.names = [one["name"] for one in listed]
        self.figures = {"plans": 0, "malformed": 0, "unsound": 0, "sound": 0, "runs": 0,
                        "crashes": 0, "hangs": 0, "wrong": 0, "contradictions": 0}

    def call(self, *words, **environment):
        """Exit code (None: it does not end), output, messages."""
        try:
            done = subprocess.run([self.banyan, *map(str, words)], capture_output=True, text=True,
                                  errors="replace", timeout=LIMIT_S, stdin=subprocess.DEVNULL,
                                  check=False,
                                  env={"PATH": "/usr/bin:/bin", "TMPDIR": str(self.folder),
                                       "BANYAN_TIMEOUT": "5", **environment})
        except subprocess.TimeoutExpired:
            return None, "", "does not end"
        return done.returncode, done.stdout, done.stderr

    def complain(self, what, path, said):
        self.figures[what] += 1
        kept = self.kept / f"soak-{what}-{self.seed}-{self.figures['plans']}.json"
        kept.write_bytes(path.read_bytes())
        print(f"{kept}: {what}: {said.strip()[-600:]}", flush=True)

    def undisturbed(self, path, code, said):
        """False when the program crashed or hung, which is counted."""
        if code is None:
            self.complain("hangs", path, said)
        elif code < 0 or code > 2 or "Sanitizer" in said or "runtime error" in said:
            self.complain("crashes", path, f"exit code {code}: {said}")
        else:
            return True
        return False

    def step(self):
        """One plan, damaged once to four times."""
        ranks = self.draw.randint(2, 4)
        code, text, _ = self.call("algo", "emit", self.draw.choice(self.names), "-n", ranks)
        if code != 0:
            return
        document = json.loads(text)
        for _ in range(self.draw.choice([1, 1, 1, 2, 4])):
            damage(document, self.draw)
        path = self.folder / "plan.json"
        path.write_text(json.dumps(document))
        self.figures["plans"] += 1
        code, _, said = self.call("check", path, "--no-warnings")
        if not self.undisturbed(path, code, said):
            return
        self.figures[("sound", "unsound", "malformed")[code]] += 1
        if code == 2:
            return
        self.figures["runs"] += 1
        more = ["--no-check"] if code == 1 else []
        # Bytes: an alignment that holds no whole elements of a wider type is refused.
        ran, out, said = self.call("run", path, "-s", "64:4K", "--step-factor", 8, "--iters", 2,
                                   "-d", "u8", *more)
        if not self.undisturbed(path, ran, said) or code == 1 or ran == 0:
            return
        is_wrong = re.search(r"element \d|byte \d", said)
        self.complain("wrong" if is_wrong else "contradictions", path, said + out)
