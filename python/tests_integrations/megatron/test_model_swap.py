"""Megatron-LM's own test of whole models on 2 to 8 GPUs, on ours.

It runs on machines with GPUs and Transformer Engine, if BANYAN_TEST_DEVICE=cuda.
"""

from __future__ import annotations

import importlib.util
import os
import re
import unittest

from sources import TESTS, call, checkout, skip

#: Without Gloo, and on fewer than four GPUs without cases whose source needs more: they fail there.
CASES = "not gloo"
FEW = "not gloo and not [2-2- and not [4-"


class ModelSwap(unittest.TestCase):
    def test_their_test(self) -> None:
        counts = []
        for ours in ("", "1"):
            options = ["--noconftest", "-q", "-W", "ignore", "-p", "no:cacheprovider"]
            words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={GPUS}"]
            words += ["-m", "pytest", *options, "-p", "upstream_plugin", "-k", CASES]
            test = str(MEGATRON / TESTS / "test_model_swap.py")
            done = call(MEGATRON, [*words, test], timeout=3000, BANYAN_TEST_OURS=ours)
            ends = re.findall(r"(\d+ (?:passed|failed|skipped|errors?))\b", done.stdout)
            print(f"test_model_swap.py with {'ours' if ours else 'theirs'}: {ends}", flush=True)
            self.assertEqual(done.returncode, 0, done.stdout[-6000:] + done.stderr[-6000:])
            counts.append(sorted(ends))
        self.assertEqual(*counts)


if __name__ == "__main__":
    if os.environ.get("BANYAN_TEST_DEVICE") != "cuda":
        skip("BANYAN_TEST_DEVICE is not cuda")
    import torch

    GPUS = min(torch.cuda.device_count(), 8)
    if GPUS < 2:
        skip(f"{GPUS} GPUs, and the test needs 2 to 8")
    if GPUS < 4:
        CASES = FEW
    if importlib.util.find_spec("transformer_engine") is None:
        skip("Transformer Engine is not installed")
    MEGATRON = checkout()
    unittest.main()
