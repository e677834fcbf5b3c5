"""banyan rules: what there is, and what becomes of a model's tensors."""

import json
import re
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import small_model

BANYAN = pathlib.Path(os.environ["BANYAN_BUILD"]) / "bin/banyan"
RULES = pathlib.Path(__file__).resolve().parents[3] / "rules"


def rules(*arguments):
    return subprocess.run([BANYAN, "rules", *arguments], capture_output=True, text=True, timeout=60)


class Rules(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.model = self.write({})

    def write(self, more):
        """A small model with further tensors or a config.json."""
        path = self.folder / "model.json"
        path.write_text(json.dumps(small_model.dense(layers=1) | more))
        return path

    def rule_file(self, text):
        path = self.folder / "my.rules"
        path.write_text(text)
        return path

    def assert_done(self, done, *parts):
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for part in parts:
            self.assertIn(part, done.stdout)

    def assert_refused(self, done, *parts, code=1):
        self.assertEqual(done.returncode, code)
        for part in parts:
            self.assertIn(part, done.stderr)

    def test_packings_are_listed_with_their_releases(self):
        done = rules("list")
        self.assert_done(done, "megatron_grouped")
        self.assertRegex(done.stdout, r"(?m)^vllm +vLLM-0\.32\.0$")
        for path in RULES.glob("*.rules"):
            self.assertRegex(done.stdout, rf"(?m)^{path.stem} +\S")

    def test_built_in_files_are_those_of_the_source_tree(self):
        for path in sorted(RULES.glob("*.rules")):
            done = rules("show", path.stem)
            self.assert_done(done)
            self.assertEqual(done.stdout, path.read_text())
            self.assert_done(rules("check", RULES / "builtin.rules"), "is sound")
        self.assert_refused(rules("show", "nothing"), 'no built-in rule file "nothing"')

    def test_names_cannot_command_a_terminal(self):
        name = "a\x1b[31m\nb"
        done = rules("check", "--model", self.write({name: {"shape": [4], "dtype": "F32"}}))
        self.assertEqual(done.returncode, 1)
        self.assertIn("a\\x1b[31m\\x0ab", done.stdout)
        self.assertNotIn("\x1b", done.stdout + done.stderr)

    def test_each_tensors_rule_is_told(self):
        done = rules("check", "--model", self.model, "--spec", "tp=2,packing=vllm")
        self.assert_done(done, "14 tensors: each has a rule, and the layouts of all ranks are sound")
        self.assertRegex(done.stdout, r"(?m)^model\.layers\.0\.self_attn\.q_proj\.weight +"
                         r"model\.layers\.\{layer\}\.self_attn\.q_proj\.\* "
                         r"\(builtin:attention\.rules:\d+\), in .*qkv_proj")

    def test_a_tensor_without_a_rule_is_told_with_the_nearest_one(self):
        model = self.write({"model.layers.0.self_attn.r_proj.weight": {"shape": [4], "dtype": "F32"},
                            "visual.patch": {"shape": [4], "dtype": "F32"}})
        done = rules("check", "--model", model)
        self.assert_refused(done, "2 of 16 tensors have no rule")
        self.assert_done(rules("check", "--model", model, "--skip", "visual.**,**.r_proj.*"),
                         "16 tensors: each has a rule")
        self.assertRegex(done.stdout, r'r_proj\.weight +NO RULE: the nearest rule is '
                         r'"model.layers.\{layer\}.self_attn.\w+.*, which has "\w+" where the name '
                         r'has "r_proj"')
        done = subprocess.run([BANYAN, "reshard", "--model", model, "--from", "tp=1", "--to", "tp=2"],
                              capture_output=True, text=True, timeout=60)
        self.assert_refused(done, "no rule matches the names of 2 tensors", "r_proj.weight",
                            "visual.patch")

    def test_the_nearest_rule_has_the_name_most_like_it(self):
        near = {"model.layers.0.self_attn.q_porj.weight": "model.layers.{layer}.self_attn.q_proj.weight",
                "model.layers.0.mlp.experts.down_proj_blocks": "model.layers.{layer}.mlp.experts.down_proj_bias",
                "model.layers.0.mlp.up_prj.weight": "model.layers.{layer}.mlp.up_proj.*",
                "model.norn.weight": "model.norm.weight"}
        model = self.write({name: {"shape": [4], "dtype": "F32"} for name in near})
        done = rules("check", "--model", model)
        self.assert_refused(done, "4 of 18 tensors have no rule")
        for name, pattern in near.items():
            self.assertRegex(done.stdout, re.escape(name) + " +NO RULE: the nearest rule is "
                             + re.escape(f'"{pattern}"'))

    def test_a_condition_that_fails_is_the_reason(self):
        path = self.rule_file("model.norm.weight\n    when model_type = other\n**.layers.**\n"
                              "model.embed_tokens.weight\nlm_head.weight\n")
        model = self.write({"config.json": {"model_type": "mine"}})
        done = rules("check", path, "--model", model)
        self.assert_refused(done, "1 of 14 tensors have no rule")
        self.assertIn('condition "when model_type = other" does not hold', done.stdout)
        done = rules("check", path, "--model", self.write({}))
        self.assertIn("UNDECIDED: ", done.stdout)
        config = self.folder / "config.json"
        config.write_text('{"model_type": "other"}')
        self.assert_done(rules("check", path, "--model", self.model, "--config", config),
                         "14 tensors: each has a rule")

    def test_own_rules_come_before_the_built_in_ones_that_they_include(self):
        path = self.rule_file("model.norm.weight\n    in vllm my.norm\ninclude builtin\n")
        done = rules("check", path, "--model", self.model, "--spec", "tp=2,packing=vllm")
        self.assert_done(done, f"model.norm.weight ({path}:1), in my.norm", "builtin:mlp.rules")
        self.assert_refused(rules("check", self.rule_file("include my.rules\n")),
                            "is included too deeply: does it include itself?")
        self.assert_refused(rules("check", self.rule_file("include none.rules\n")), "none.rules")

    def test_a_value_map_is_one_that_there_is(self):
        text = "packing mine\nmodel.norm.weight\n    in mine A map {}\ninclude builtin\n"
        self.assert_refused(rules("check", self.rule_file(text.format("exp"))),
                            'my.rules:3: "exp" is not a value map: there is negative_exp')
        self.assert_refused(rules("check", self.rule_file(text.format(""))),
                            'my.rules:3: "map" should be followed by a value map')

    def test_names_with_a_prefix_are_matched_without_it(self):
        path = self.rule_file("packing mine\nprefix text. is model. in mine my.text. with "
                              "text.norm.weight\n"
                              "model.*.weight\n    in mine model.*.w\n")
        model = self.folder / "prefixed.json"
        model.write_text(json.dumps({"text.norm.weight": {"shape": [4], "dtype": "F32"}}))
        for packing, name in [("mine", "my.text.norm.w"), ("hf", "text.norm.weight")]:
            out = self.folder / f"{packing}.json"
            done = subprocess.run([BANYAN, "layout", "save", "--model", model, "--rules", path,
                                   "--spec", f"packing={packing}", "-o", out],
                                  capture_output=True, text=True, timeout=60)
            self.assert_done(done)
            held = json.loads(out.read_text())["ranks"][0]["tensors"]
            self.assertEqual([tensor["name"] for tensor in held], [name])
        self.assert_done(rules("check", path, "--model", model, "--spec", "packing=mine"),
                         "text.norm.weight", f"model.*.weight ({path}:3)")
        model.write_text(json.dumps({"text.other.weight": {"shape": [4], "dtype": "F32"}}))
        self.assert_refused(rules("check", path, "--model", model), "1 of 1 tensors have no rule")

    def test_misuse_is_refused(self):
        self.assert_refused(rules(), "usage: banyan rules list|show|check", code=2)
        self.assert_refused(rules("drop"), 'there is no command "drop"', code=2)
        self.assert_refused(rules("check", "--spec", "tp=2"), "need --model FILE", code=2)


if __name__ == "__main__":
    unittest.main()
