"""``python -m banyan.compat mscclpp FOLDER``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

USAGE = """usage: banyan compat mscclpp FOLDER [options]

Run programs that were written for other systems.

  mscclpp FOLDER  run scripts of MSCCL++'s language and check their plans
"""


def main(argv: Sequence[str]) -> int:
    """Run the command that ``argv`` names."""
    if argv and argv[0] == "mscclpp":
        from .mscclpp import folder_command

        return folder_command(argv[1:])
    asked = bool(argv) and argv[0] in ("help", "-h", "--help")
    print(USAGE, end="", file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
