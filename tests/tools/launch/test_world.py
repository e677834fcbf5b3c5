"""banyan world info: nodes, cards, and the transport of every peer."""

import os
import pathlib
import re
import subprocess
import unittest

BUILD = pathlib.Path(os.environ["BANYAN_BUILD"])
BANYAN = BUILD / "bin/banyan"
HAS_UCX = (BUILD / "lib/libbanyan_ucx.so").exists()


def info(ranks, node, *options):
    """Run it with ranks whose node is a shell expression of $BANYAN_RANK."""
    script = f'BANYAN_NODE=node$(({node})) exec "{BANYAN}" world info {" ".join(options)}'
    return subprocess.run(
        [BANYAN, "launch", "-n", str(ranks), "--", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
    )


class WorldInfo(unittest.TestCase):
    def test_one_node_is_reached_by_shared_memory(self):
        done = info(3, "0")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("3 ranks on 1 node, transports shm\n", done.stdout)
        for rank in range(3):
            self.assertRegex(done.stdout, rf"(?m)^ +{rank}  shm 0-2 \(.*us\)$")
        self.assertEqual(len(re.findall(r"(?m)^ +\d +0 +\d+  \S", done.stdout)), 3, done.stdout)

    @unittest.skipUnless(HAS_UCX, "this build has no UCX module")
    def test_other_nodes_are_reached_by_ucx(self):
        done = info(4, "BANYAN_RANK/2")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("4 ranks on 2 nodes, transports shm,ucx\n", done.stdout)
        self.assertRegex(done.stdout, r"(?m)^ +0  shm 0-1 \(.*us\), ucx 2-3 \(.*us\)$")
        self.assertRegex(done.stdout, r"(?m)^ +3  ucx 0-1 \(.*us\), shm 2-3 \(.*us\)$")

    def test_unreachable_ranks_are_listed(self):
        done = info(2, "BANYAN_RANK", "--transport", "shm")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"(?m)^ +0  unreachable 1$")

    def test_an_unknown_transport_is_refused(self):
        done = info(2, "0", "--transport", "pigeons")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn('there is no transport "pigeons"', done.stderr)


if __name__ == "__main__":
    unittest.main()
