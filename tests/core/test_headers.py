"""Every public header stands alone, in C and in C++, and every public function says what it does."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
found = []


def compiles(header, compiler, standard, language):
    done = subprocess.run(
        [compiler, f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only",
         f"-I{ROOT}/include", "-x", language, "-"],
        input=f"#include <banyan/{header.name}>\nint main(void);\n", capture_output=True, text=True)
    if done.returncode != 0:
        found.append(f"{header.name} does not stand alone in {standard}:\n{done.stderr}")


def undocumented(header):
    """Public functions with no comment above their group: a run of declarations without a blank line
    shares the comment in front of it."""
    for group in re.split(r"\n\s*\n", header.read_text()):
        names = re.findall(r"\b(banyan_\w+)\(", re.sub(r"/\*.*?\*/", "", group, flags=re.S))
        if "BANYAN_API" in group and "/*" not in group and names:
            yield from names


for path in sorted((ROOT / "include/banyan").glob("*.h")):
    compiles(path, "gcc", "c17", "c")
    compiles(path, "g++", "c++17", "c++")
    found += [f"{path.name}: {name} has no comment" for name in undocumented(path)]
print("\n".join(found) or "all headers stand alone and are documented")
sys.exit(1 if found else 0)
