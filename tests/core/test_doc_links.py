"""Links between the README and docs go to files and headings that are there."""

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


count, problems = 0, []
for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        wrong = None if target.startswith("http") else what_is_wrong(page, target)
        count += 1
        if wrong:
            problems.append(f"{page.relative_to(ROOT)} links to {target}: {wrong}")
print("\n".join(problems) or f"{count} links are good")
sys.exit(1 if problems else 0)
