"""The size of heads is never guessed: it is known, asked for, or not needed."""

import json
import math
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import safetensors

BANYAN = pathlib.Path(os.environ["BANYAN_BUILD"]) / "bin/banyan"
HIDDEN, HEADS, KEY_VALUE_HEADS, HEAD, LAYERS = 4096, 16, 8, 64, 1
CONFIG = {"model_type": "llama", "hidden_size": HIDDEN, "num_attention_heads": HEADS,
          "num_key_value_heads": KEY_VALUE_HEADS, "head_dim": HEAD}


def llama():
    """Wide, with few heads of 64 and no norm that shows their size."""
    shapes = {"model.embed_tokens.weight": [128, HIDDEN]}
    for layer in range(LAYERS):
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in {
            "input_layernorm": [HIDDEN],
            "self_attn.q_proj": [HEADS * HEAD, HIDDEN],
            "self_attn.k_proj": [KEY_VALUE_HEADS * HEAD, HIDDEN],
            "self_attn.v_proj": [KEY_VALUE_HEADS * HEAD, HIDDEN],
            "self_attn.o_proj": [HIDDEN, HEADS * HEAD],
            "post_attention_layernorm": [HIDDEN],
            "mlp.gate_proj": [16, HIDDEN],
            "mlp.up_proj": [16, HIDDEN],
            "mlp.down_proj": [HIDDEN, 16],
        }.items()}
    return shapes | {"model.norm.weight": [HIDDEN], "lm_head.weight": [128, HIDDEN]}


class Heads(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        draw = random.Random(15)
        self.tensors = {name: ("BF16", shape, draw.randbytes(2 * math.prod(shape)))
                        for name, shape in llama().items()}
        self.source = self.folder / "in"
        safetensors.write_folder(self.source, self.tensors, 1)

    def reshard(self, source, out, *arguments):
        return subprocess.run([BANYAN, "reshard", "--in", source, "--out", self.folder / out,
                               *arguments], capture_output=True, text=True, timeout=120)

    def assert_done(self, done):
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def rows(self, name, first, count):
        row = 2 * HIDDEN
        return self.tensors[name][2][first * row:(first + count) * row]

    def assert_packed_for_vllm(self, saved):
        """Each of 8 ranks has two heads of queries, one of keys and one of values."""
        ranks = sorted(path for path in saved.iterdir() if path.is_dir())
        self.assertEqual(len(ranks), 8)
        for rank, folder in enumerate(ranks):
            held = safetensors.read_folder(folder)
            for layer in range(LAYERS):
                at = f"model.layers.{layer}.self_attn."
                expected = (self.rows(at + "q_proj.weight", 2 * HEAD * rank, 2 * HEAD) +
                            self.rows(at + "k_proj.weight", HEAD * rank, HEAD) +
                            self.rows(at + "v_proj.weight", HEAD * rank, HEAD))
                dtype, shape, data = held[at + "qkv_proj.weight"]
                self.assertEqual((dtype, shape), ("BF16", [4 * HEAD, HIDDEN]))
                self.assertTrue(data == expected, f"rank {rank}, layer {layer}")

    def move_through_megatron(self, *first_options, head=""):
        self.assert_done(self.reshard(self.source, "trained", "--from", "tp=1" + head, "--to",
                                      "tp=2,packing=megatron" + head, *first_options))
        self.assert_done(self.reshard(self.folder / "trained", "served", "--to",
                                      "tp=8,packing=vllm"))
        self.assert_packed_for_vllm(self.folder / "served")

    def test_a_saved_set_keeps_the_size_that_config_json_gives(self):
        (self.source / "config.json").write_text(json.dumps(CONFIG))
        self.move_through_megatron()

    def test_a_saved_set_keeps_the_size_that_the_spec_gives(self):
        self.move_through_megatron(head=",head=64")

    def test_a_configuration_can_lie_elsewhere(self):
        config = self.folder / "llama.json"
        config.write_text(json.dumps({"text_config": CONFIG}))
        self.move_through_megatron("--config", config)

    def test_an_unknown_size_is_asked_for(self):
        done = self.reshard(self.source, "out", "--from", "tp=1", "--to", "tp=2,packing=megatron")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("the size of its heads is unknown: give head=N in the spec", done.stderr)
        self.assertFalse((self.folder / "out").exists())

    def test_a_contradiction_is_reported_with_both_values(self):
        (self.source / "config.json").write_text(json.dumps(CONFIG))
        done = self.reshard(self.source, "out", "--from", "tp=1", "--to", "tp=1,head=128")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("by the spec's head=128, and head_dim is 64 in config.json", done.stderr)

    def test_a_configuration_of_other_heads_is_refused(self):
        for head in [None, 32, 128]:
            config = {key: value for key, value in CONFIG.items() if key != "head_dim"}
            (self.source / "config.json").write_text(
                json.dumps(config | ({"head_dim": head} if head else {})))
            done = self.reshard(self.source, "out", "--from", "tp=1", "--to",
                                "tp=2,packing=megatron")
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            rows, known = HEADS * HEAD, head or HIDDEN // HEADS
            self.assertIn(f"{rows} elements are {rows // known} heads of {known}, and "
                          f"num_attention_heads is {HEADS}", done.stderr)
            self.assertFalse((self.folder / "out").exists())

    def test_nothing_is_asked_for_that_is_not_needed(self):
        self.assert_done(self.reshard(self.source, "out", "--from", "tp=1", "--to", "tp=1",
                                      "--join"))
        self.assertEqual(safetensors.read_folder(self.folder / "out"), self.tensors)

    def test_tensors_can_be_left_out(self):
        done = self.reshard(self.source, "out", "--from", "tp=1", "--to", "tp=1", "--join", "--skip",
                            "**.mlp.**,lm_head.weight")
        self.assert_done(done)
        self.assertEqual(safetensors.read_folder(self.folder / "out"),
                         {name: tensor for name, tensor in self.tensors.items()
                          if ".mlp." not in name and name != "lm_head.weight"})
        done = self.reshard(self.source, "none", "--from", "tp=1", "--to", "tp=1", "--skip", "lm_heat*")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn('--skip: no tensor of the model fits "lm_heat*"', done.stderr)


if __name__ == "__main__":
    unittest.main()
