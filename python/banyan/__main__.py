"""The command line, ``banyan`` or ``python -m banyan``: runs the command in the package."""

from __future__ import annotations

import os
import sys

from ._command import _environment, _executable


def main() -> None:
    """Become the command, with this process's arguments."""
    path = _executable()
    os.execve(path, ["banyan", *sys.argv[1:]], _environment())


if __name__ == "__main__":
    main()
