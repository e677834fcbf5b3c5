"""The reference has every public function, struct and enumeration, with its prototype and its comment, as a manual page;
its HTML has no broken link. A name without a comment fails it."""

import html
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMENT = r"/\*(?:(?!\*/)[\s\S])*\*/"
problems = []


def words(text):
    """Return text without spaces, comment marks, backticks and what troff escapes."""
    return re.sub(r"\\f[A-Z]|\\&|\\|`|/\*|\*/|(?m:^)\s*\*(?![\w/])|\s|\\\(bu|(?m:^)\.(?:PP|IP)\b.*", "", text)


def make(root, out):
    return subprocess.run([root / "scripts/reference", out], capture_output=True, text=True)


def check_functions(man):
    count = 0
    for header in sorted((ROOT / "include/banyan").glob("*.h")):
        for comment, declaration in re.findall(rf"({COMMENT})\n(BANYAN_API [^;]*;)", header.read_text()):
            name = re.search(r"(\w+)\(", declaration)[1]
            page = man / f"{name}.3"
            count += 1
            if not page.exists():
                problems.append(f"{header.name}: {name} has no manual page")
                continue
            text = words(page.read_text())
            prototype = re.sub(r"^BANYAN_API|\s*__attribute__\(\(.*\)\)", "", declaration)
            first = re.split(r"\n \*\n|\n \* ?-|:\n", comment)[0]
            problems.extend(f"{name}.3 has not: {part.strip()}" for part in (prototype, first) if words(part) not in text)
    return count


def check_types(man):
    names = re.findall(r"(?m)^(?:typedef )?(?:struct|enum) (\w+) {",
                       "".join(header.read_text() for header in (ROOT / "include/banyan").rglob("*.h")))
    problems.extend(f"{name} has no manual page" for name in names if not (man / f"{name}.3").exists())
    problems.extend(f"{page.name} is not a page of a name" for page in man.iterdir() if not page.name.startswith("banyan_"))
    return len(names)


def check_links(folder):
    """Follow the links of the HTML to its own files and places."""
    texts = {path.name: path.read_text(errors="replace") for path in folder.glob("*.html")}
    places = {name: set(re.findall(r'\b(?:id|name)="([^"]+)"', text)) for name, text in texts.items()}
    links = [(name, html.unescape(link)) for name, text in texts.items() for link in re.findall(r'\b(?:href|src)="([^"]+)"', text)]
    for name, link in links:
        file, _, place = link.partition("#")
        if re.match("https?:|javascript:", link):
            continue
        if not (folder / (file or name)).exists() or place and place not in places.get(file or name, {place}):
            problems.append(f"{name} links to {link}, which does not exist")
    return len(links)


def check_refusal(folder):
    """A function and a member without a comment, and a comment without a declaration, are each an error with the name."""
    for name in ("include", "scripts"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "docs").mkdir()
    for name in ("docs/Doxyfile", "docs/README.md", "docs/layout.schema.json", "CMakeLists.txt"):
        shutil.copy(ROOT / name, folder / name)
    header = folder / "include/banyan/world.h"
    text = re.sub(rf"{COMMENT}\n(?=BANYAN_API int banyan_world_rank\()", "", header.read_text())
    text = re.sub(r" /\* rank 0's TCP port.*", "", text)
    header.write_text(text.replace("/* ---- directory", "/* A stray remark. */\n\n/* ---- directory"))
    done = make(folder, folder / "out")
    for what in ("banyan_world_rank", "port", "A stray remark"):
        if done.returncode == 0 or not re.search(rf"world.h.*\b{what}\b", done.stderr):
            problems.append(f"{what} is not refused: {done.stderr or 'no message'}")


if not shutil.which("doxygen"):
    print("skipped: doxygen is not installed")
    sys.exit(77)
with tempfile.TemporaryDirectory() as folder:
    out = pathlib.Path(folder) / "out"
    done = make(ROOT, out)
    if done.returncode != 0:
        sys.exit(f"scripts/reference fails:\n{done.stdout}{done.stderr}")
    functions, types = check_functions(out / "man/man3"), check_types(out / "man/man3")
    links = check_links(out / "html")
    check_refusal(pathlib.Path(folder) / "copy")
if functions < 300 or types < 90 or links < 5000:
    problems.append(f"only {functions} functions, {types} types and {links} links were found")
print("\n".join(problems) or f"{functions} functions and {types} types have manual pages; {links} links are good")
sys.exit(1 if problems else 0)
