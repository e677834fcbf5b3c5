"""A static function's name stands in one file of src and tools: a backtrace or a search tells which it is."""

import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEFINED = re.compile(r"^static\s+(?!inline)(?:[\w\s*]+?[\s*])(\w+)\([^;{]*\)\s*\{", re.M)

files = collections.defaultdict(set)
for folder in ("src", "tools"):
    for path in sorted((ROOT / folder).rglob("*.c")):
        for match in DEFINED.finditer(path.read_text()):
            files[match[1]].add(str(path.relative_to(ROOT)))
shared = {name: where for name, where in files.items() if len(where) > 1}
for name, where in sorted(shared.items()):
    print(f"{name} is defined in {', '.join(sorted(where))}")
if not shared:
    print(f"{len(files)} static functions have names of their own")
sys.exit(1 if shared else 0)
