"""Links between the pages of the repository go to files and headings that exist, and so do the files that they name;
docs/README.md lists every page. The pages that headers, sources and help name exist."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def headings(path):
    """As GitHub names them: a heading that is there twice has a number the second time."""
    seen, names = {}, set()
    for title in re.findall(r"^#+ (.*)", path.read_text(), re.M):
        name = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        names.add(f"{name}-{seen[name]}" if name in seen else name)
        seen[name] = seen.get(name, 0) + 1
    return names


def what_is_wrong(page, target):
    file, _, heading = target.partition("#")
    path = page.parent / file if file else page
    if not path.exists():
        return f"{path.relative_to(ROOT)} does not exist"
    if heading and heading not in headings(path):
        return f"{path.relative_to(ROOT)} has no heading {heading}"
    return None


def missing_files(text):
    """Names such as `src/copy/direct/direct.c`. One with a capital folder (tests/LAYER) is a pattern for the reader."""
    named = re.findall(r"`((?:src|include|tests|examples|scripts|rules|bench|tools|cmake)/[\w./*-]+)`", text)
    return [name for name in named if not re.search(r"/[A-Z]+/", name) and not any(ROOT.glob(name.rstrip("/")))]


INDEX = ROOT / "docs/README.md"
pages = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
count, problems, listed = 0, [], {INDEX}
for page in pages:
    problems += [f"{page.relative_to(ROOT)} names {name}, which does not exist"
                 for name in missing_files(page.read_text())]
    # Code is no link: an index into an array may stand before a call's arguments.
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        wrong = None if target.startswith("http") else what_is_wrong(page, target)
        count += 1
        if page == INDEX and not target.startswith("http"):
            listed.add((page.parent / target.partition("#")[0]).resolve())
        if wrong:
            problems.append(f"{page.relative_to(ROOT)} links to {target}: {wrong}")
problems += [f"docs/README.md does not list {page.relative_to(ROOT)}"
             for page in pages if (ROOT / "docs") in page.parents and page not in listed]
for folder in ("include", "src", "tools", "tests", "examples", "rules"):
    for path in sorted((ROOT / folder).rglob("*")):
        if path.suffix in (".h", ".c", ".cu", ".cuh", ".py", ".rules"):
            problems += [f"{path.relative_to(ROOT)} names {name}, which does not exist"
                         for name in re.findall(r"\bdocs/[\w/.-]*\w", path.read_text()) if not (ROOT / name).exists()]
print("\n".join(problems) or f"{count} links are good")
sys.exit(1 if problems else 0)
