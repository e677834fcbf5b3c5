"""Banyan's programs give the plans that MSCCL++'s language makes of the same algorithms.

tests/data/plans.sha256 has the SHA-256 of each plan's canonical form: the JSON document without Banyan's additions, with
the channel types of a thread block in the order of their names, as compact text with sorted keys. MSCCL++'s own files
give these digests too; that is checked where they lie beside the project, and `--write` computes them again from there.
"""

import hashlib
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
DIGESTS = ROOT / "tests/data/plans.sha256"
MSCCLPP = ROOT.parent / "shared/plans"
BUILD = pathlib.Path(os.environ.get("BANYAN_BUILD", ROOT / "build"))
PLANS = BUILD / "tests/plans"


def canonical(value):
    if isinstance(value, list):
        return [canonical(item) for item in value]
    if not isinstance(value, dict):
        return value
    # Banyan records the line of the program. MSCCL++ names the rank of some local operands of switch channels, which is
    # the operation's own rank.
    dropped = {"line", "banyan"} | ({"rank"} if "index" in value else set())
    made = {key: canonical(item) for key, item in value.items() if key not in dropped}
    if "ops" in made:  # a channel's number counts the channels of its type
        made.get("channels", []).sort(key=lambda channels: channels["channel_type"])
    return made


def digest_of(path):
    text = json.dumps(canonical(json.loads(path.read_text())), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def digests_of(folder):
    return {path.stem: digest_of(path) for path in folder.glob("*.json")}


def differences(plan):
    """How a plan differs from MSCCL++'s, if that is there."""
    if not (MSCCLPP / plan).exists() or not (PLANS / plan).exists():
        return ""
    return subprocess.run([BUILD / "bin/banyan", "plan", "diff", PLANS / plan, MSCCLPP / plan], capture_output=True,
                          text=True).stdout


def main():
    if "--write" in sys.argv:
        digests = sorted(digests_of(MSCCLPP).items())
        DIGESTS.write_text("".join(f"{digest}  {name}\n" for name, digest in digests))
        return 0
    wanted = {name: digest for digest, name in map(str.split, DIGESTS.read_text().splitlines())}
    failed = 0
    for source in (PLANS, MSCCLPP):
        if source == MSCCLPP and not source.is_dir():
            print(f"{source} is not there: its files were not compared")
            continue
        found = digests_of(source)
        for name in sorted(wanted.keys() | found.keys()):
            if wanted.get(name) != found.get(name):
                print(f"{source / name}.json: the digest is {found.get(name)}, not {wanted.get(name)}")
                print(differences(f"{name}.json"))
                failed += 1
        print(f"{source}: {len(found)} plans, {failed} differ")
    return 1 if failed or len(wanted) != 55 else 0


sys.exit(main())
