"""zsh completes command lines of banyan."""

import shutil
import sys
import unittest

from completion_case import READY, SHOW, Shell, ShellCase, start

START = f"""
fpath=({{share}}/zsh/site-functions $fpath)
autoload -Uz compinit && compinit -u -D
unset zle_bracketed_paste
bindkey -e
setopt no_always_last_prompt no_beep
LISTMAX=10000
{SHOW}
PS1='{READY}' PROMPT_EOL_MARK=''
"""


class Zsh(ShellCase, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        start(cls, lambda share: Shell(["zsh", "-f", "-i"], START.replace("{share}", str(share))))


if __name__ == "__main__":
    if not shutil.which("zsh"):
        print("skipped: zsh is not installed")
        sys.exit(77)
    unittest.main()
