"""docs/environment.md lists every variable that Banyan reads, and no other."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

read = set()
for folder in ("src", "tools"):
    for path in (ROOT / folder).rglob("*.[ch]"):
        text = path.read_text()
        read |= set(re.findall(r'(?:getenv|variable_or)\("(\w+)"', text))
        read |= set(re.findall(r'"(BANYAN_(?!ERR_|OK"|LOG_|\w+_INIT")[A-Z0-9_]+)"', text))
for path in (ROOT / "python/banyan").rglob("*.py"):
    read |= set(re.findall(r'environ\.get\("(BANYAN_\w+)"', path.read_text()))
listed = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/environment.md").read_text(), re.M))
problems = [f"{name} is read but not in docs/environment.md" for name in sorted(read - listed)]
problems += [f"docs/environment.md lists {name}, which nothing reads"
             for name in sorted(listed - read) if name.startswith("BANYAN_")]
print("\n".join(problems) or f"{len(listed)} variables are documented")
sys.exit(1 if problems else 0)
