"""Names of static functions and of types stand in one file each: a backtrace, a debugger or a search finds the right one."""

import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
STATIC = re.compile(r"^static\s+(?!inline)(?:[\w\s*]+?[\s*])(\w+)\([^;{]*\)\s*\{", re.M)
TYPE = re.compile(r"^(?:typedef )?(?:struct|enum|union) (\w+) \{", re.M)


def defined(pattern, folders, endings):
    """The files of the folders in which each name is defined."""
    files = collections.defaultdict(set)
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in endings:
                for match in pattern.finditer(path.read_text()):
                    files[match[1]].add(str(path.relative_to(ROOT)))
    return files


# The library and the command line are two programs, whose types may have equal names.
kinds = {
    "static functions": defined(STATIC, ["src", "tools"], {".c"}),
    "types of src": defined(TYPE, ["src"], {".c", ".h", ".cu", ".cuh"}),
    "types of tools": defined(TYPE, ["tools"], {".c", ".h"}),
}
wrong = 0
for kind, files in kinds.items():
    shared = {name: where for name, where in files.items() if len(where) > 1}
    wrong += len(shared)
    for name, where in sorted(shared.items()):
        print(f"{name} is defined in {', '.join(sorted(where))}")
    if not shared:
        print(f"{len(files)} {kind} have names of their own")
sys.exit(1 if wrong else 0)
