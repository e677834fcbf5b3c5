"""Every command and command of a command has a manual page, with its usage and each of its options."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
BANYAN = pathlib.Path(os.environ.get("BANYAN_BUILD", ROOT / "build")) / "bin/banyan"
problems = []


def help_of(*command):
    return subprocess.run([BANYAN, *command, "--help"], capture_output=True, text=True, check=True).stdout


def commands():
    """Every command, with the commands that the last list of its help names."""
    yield ()
    names = re.findall(r"(?m)^  ([a-z][a-z-]*) ", help_of().split("\n\n")[1])
    for name in names:
        yield (name,)
        text, found, _ = help_of(name).partition(f"\n\n  banyan {name} help COMMAND ")
        for sub in re.findall(r"(?m)^  ([a-z]+) ", text.split("\n\n")[-1]) if found else ():
            yield (name, sub)


if not shutil.which("help2man"):
    print("skipped: help2man is not installed")
    sys.exit(77)
with tempfile.TemporaryDirectory() as folder:
    subprocess.run([ROOT / "scripts/command-pages", BANYAN, folder], check=True)
    found = list(commands())
    for command in found:
        name = "-".join(("banyan", *command))
        path = pathlib.Path(folder) / f"{name}.1"
        if not path.exists():
            problems.append(f"{name} has no manual page")
            continue
        text = re.sub(r"\\f[A-Z]|\\[&,/]|\\|(?m:^)\.(?:B|br)\b", "", path.read_text())
        if "??" in text:
            problems.append(f"{name}.1 has lost a character")
        if not re.search(rf"(?m)^{name} - [a-z]", text):
            problems.append(f"{name}.1 has another name, or no summary")
        synopsis = "".join(text.split(".SH DESCRIPTION")[0].split())
        usage = help_of(*command).split("\n\n")[0].removeprefix("usage:").replace("…", "...").split("\n")
        problems.extend(f"{name}.1 has not in its synopsis: {line}" for line in usage if "".join(line.split()) not in synopsis)
        options = re.findall(r"(?m)^  (?:-\w, |    )(--[a-z-]+)", help_of(*command))
        problems.extend(f"{name}.1 lacks {option}" for option in options if option not in text)
if len(found) < 31:
    problems.append(f"only {len(found)} commands were found")
print("\n".join(problems) or f"{len(found)} commands have manual pages")
sys.exit(1 if problems else 0)
