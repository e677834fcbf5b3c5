"""Banyan's programs give the plans that MSCCL++'s language makes of the same algorithms.

tests/data/plans.sha256 has the digest of each plan (plan_digest.py). MSCCL++'s own files give these digests too; that is
checked where they lie beside the project, and `--write` computes them again from there.
"""

import os
import pathlib
import subprocess
import sys

from plan_digest import digest, read_digests

ROOT = pathlib.Path(__file__).resolve().parents[2]
DIGESTS = ROOT / "tests/data/plans.sha256"
MSCCLPP = ROOT.parent / "shared/plans"
BUILD = pathlib.Path(os.environ.get("BANYAN_BUILD", ROOT / "build"))
PLANS = BUILD / "tests/plans"


def digests_of(folder):
    return {path.stem: digest(path.read_text()) for path in folder.glob("*.json")}


def differences(plan):
    """How a plan differs from MSCCL++'s, if that is there."""
    if not (MSCCLPP / plan).exists() or not (PLANS / plan).exists():
        return ""
    return subprocess.run([BUILD / "bin/banyan", "plan", "diff", PLANS / plan, MSCCLPP / plan], capture_output=True,
                          text=True).stdout


def main():
    if "--write" in sys.argv:
        digests = sorted(digests_of(MSCCLPP).items())
        DIGESTS.write_text("".join(f"{value}  {name}\n" for name, value in digests))
        return 0
    wanted = read_digests(DIGESTS)
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
