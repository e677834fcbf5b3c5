"""bash with bash-completion completes command lines of banyan."""

import pathlib
import shutil
import sys
import unittest

from completion_case import READY, SHOW, Shell, ShellCase, start

BASH_COMPLETION = pathlib.Path("/usr/share/bash-completion/bash_completion")
START = f"""
unset HISTFILE
. {BASH_COMPLETION}
bind 'set bell-style none'
bind 'set completion-query-items 0'
bind 'set page-completions off'
bind 'set enable-bracketed-paste off'
bind 'set show-all-if-ambiguous on'
{SHOW}
PS1='{READY}'
"""


class Bash(ShellCase, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        start(cls, lambda share: Shell(["bash", "--norc", "--noprofile", "-i"], START,
                                       XDG_DATA_DIRS=str(share)))

    def test_only_json_files_are_plans(self):
        self.complete_to("banyan plan show tr", "plan", "show", "trX")


if __name__ == "__main__":
    if not shutil.which("bash") or not BASH_COMPLETION.exists():
        print("skipped: bash-completion is not installed")
        sys.exit(77)
    unittest.main()
