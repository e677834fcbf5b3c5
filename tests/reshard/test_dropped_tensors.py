"""Models that lack one of their tensors: each is refused by name, or the tensor is optional."""

import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "models"))
import data

BANYAN = pathlib.Path(os.environ["BANYAN_BUILD"]) / "bin/banyan"
# Engines compute the first, and take the others from the model's embedding and output layer.
OPTIONAL = re.compile(
    r"rotary_emb\.inv_freq$|layers\.\d+\.(embed_tokens|shared_head\.head)\.weight$")
# The draft layers, which vLLM's main model leaves out.
DRAFT = {family: re.compile(r"model\.layers\.2\." if family != "qwen3-next" else r"mtp\.")
         for family in ("deepseek-v3", "deepseek-v3-fp8", "glm4-moe", "qwen3-next")}
PACKINGS = "vllm vllm_mtp megatron megatron_local megatron_grouped".split()


class Dropped(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.model = pathlib.Path(folder.name) / "model.json"

    def save(self, kept, dropped, packing="hf", config=True):
        tensors = {name: tensor for name, tensor in kept["tensors"].items() if name != dropped}
        known = {"config.json": kept["config"]} if config else {}
        self.model.write_text(json.dumps({**known, **tensors}))
        return subprocess.run(
            [BANYAN, "layout", "save", "--model", self.model, "--spec", f"packing={packing}", "-o",
             "/dev/null"], capture_output=True, text=True, timeout=60, check=False)

    def refuse(self, kept, dropped, packing="hf", config=True):
        done = self.save(kept, dropped, packing, config)
        self.assertEqual((done.returncode, done.stdout), (1, ""), (dropped, packing))
        return done.stderr

    def read(self, family):
        return json.loads((data.DATA / f"{family}.json").read_text())

    def test_every_tensor_of_every_family_is_needed_or_optional(self):
        refused = 0
        for path in sorted(data.DATA.glob("*.json")):
            kept = self.read(path.stem)
            for name in kept["tensors"]:
                expert = re.search(r"experts\.(\d+)\.", name)
                if expert and expert[1] not in ("0", "3", "7"):
                    continue
                with self.subTest(model=path.stem, dropped=name):
                    if OPTIONAL.search(name):
                        self.assertEqual(self.save(kept, name).returncode, 0)
                        continue
                    refused += 1
                    self.assertRegex(self.refuse(kept, name), r'tensor "(model|mtp|lm_head|backbone)')
        self.assertGreater(refused, 600)

    def test_every_packing_refuses_a_layer_that_lacks_an_expert(self):
        kept = self.read("qwen3-moe")
        for expert in (0, 3, 7):
            lacking = {name: tensor for name, tensor in kept["tensors"].items()
                       if f"layers.1.mlp.experts.{expert}." not in name}
            self.assertEqual(len(kept["tensors"]) - len(lacking), 3)
            for packing in ["hf", *PACKINGS]:
                if packing == "vllm_mtp":
                    continue
                with self.subTest(expert=expert, packing=packing):
                    message = self.refuse({**kept, "tensors": lacking}, None, packing)
                    self.assertIn(f'needs a tensor "model.layers.1.mlp.experts.{expert}.', message)

    def test_every_packing_refuses_partners_that_are_missing(self):
        dense = self.read("llama3-tied-bias")
        for name, missing in {
            "model.layers.1.mlp.up_proj.weight": "mlp.up_proj.weight",
            "model.layers.0.self_attn.q_proj.bias": "self_attn.q_proj.bias",
            "model.layers.0.self_attn.v_proj.bias": "self_attn.v_proj.bias",
        }.items():
            for packing in ["hf", *PACKINGS]:
                if packing == "vllm_mtp":
                    continue
                for config in (True, False):
                    with self.subTest(dropped=name, packing=packing, config=config):
                        self.assertRegex(self.refuse(dense, name, packing, config),
                                         f'needs a tensor "[^"]*{re.escape(missing)}')

    def test_every_packing_needs_its_tensors(self):
        """Each tensor is dropped in one packing, which changes from tensor to tensor."""
        draw, refused = random.Random(15), dict.fromkeys(PACKINGS, 0)
        for path in sorted(data.DATA.glob("*.json")):
            kept = self.read(path.stem)
            has_place = [packing for packing in PACKINGS
                         if self.save(kept, None, packing).returncode == 0]
            self.assertIn("vllm", has_place)
            for name in kept["tensors"]:
                packing = draw.choice(has_place)
                is_draft = bool(DRAFT[path.stem].match(name)) if path.stem in DRAFT else False
                skips = {"vllm": is_draft, "vllm_mtp": not is_draft}.get(packing, False)
                if skips or OPTIONAL.search(name):
                    continue
                with self.subTest(model=path.stem, dropped=name, packing=packing):
                    self.assertRegex(self.refuse(kept, name, packing),
                                     "needs a tensor|has none of the model's")
                    refused[packing] += 1
        self.assertGreater(min(refused.values()), 20, refused)

    def test_a_model_that_lacks_a_layer_is_refused(self):
        for family, layers in {"llama3": 2, "llama4": 4, "gemma3": 2}.items():
            kept = self.read(family)
            for layer in range(layers):
                lacking = {**kept, "tensors": {
                    name: tensor for name, tensor in kept["tensors"].items()
                    if not re.search(rf"\blayers\.{layer}\.", name)}}
                self.assertLess(len(lacking["tensors"]), len(kept["tensors"]))
                known = f" is {layers} in config.json"
                with self.subTest(model=family, layer=layer):
                    for packing in ("hf", "vllm"):
                        self.assertIn(f"the model has no tensor of layer {layer}, and "
                                      f"num_hidden_layers{known}",
                                      self.refuse(lacking, None, packing))
                    # Nothing but config.json tells that the last layer is missing.
                    if layer < layers - 1:
                        self.assertIn(f"the model has no tensor of layer {layer}, and has layer "
                                      f"{layers - 1}", self.refuse(lacking, None, config=False))

    def test_a_layer_that_is_left_out_on_purpose_is_not_missing(self):
        kept = self.read("llama3")
        self.model.write_text(json.dumps({"config.json": kept["config"], **kept["tensors"]}))
        saved = self.model.with_name("saved.json")
        subprocess.run([BANYAN, "layout", "save", "--model", self.model, "--spec", "tp=1", "--skip",
                        "model.layers.0.**", "-o", saved], timeout=60, check=True)
        self.assertNotIn("layers.0.", saved.read_text())
        subprocess.run([BANYAN, "layout", "save", "--model", saved, "--spec", "tp=1", "-o",
                        "/dev/null"], timeout=60, check=True)

    def test_a_packing_without_any_tensor_of_the_model_is_refused(self):
        kept = self.read("llama3")
        self.assertIn(f'the packing "vllm_mtp" has none of the model\'s {len(kept["tensors"])} '
                      "tensors", self.refuse(kept, None, "vllm_mtp"))

    def test_formats_without_rules_are_refused(self):
        kept = self.read("llama3")
        for style, suffixes in {"awq": ["qweight", "qzeros", "scales"],
                                "compressed": ["weight", "weight_scale"],
                                "lora": ["weight", "lora_A.weight", "lora_B.weight"]}.items():
            tensors = {}
            for name, tensor in kept["tensors"].items():
                names = [name]
                if name.endswith("_proj.weight"):
                    names = [name[:-len("weight")] + suffix for suffix in suffixes]
                tensors |= dict.fromkeys(names, tensor)
            for packing in ["hf", *PACKINGS]:
                if packing == "vllm_mtp":
                    continue
                with self.subTest(style=style, packing=packing):
                    self.assertRegex(self.refuse({**kept, "tensors": tensors}, None, packing),
                                     "no rule matches the names of|it needs a tensor")

    def test_the_check_of_rules_names_missing_tensors(self):
        kept = self.read("qwen3-moe")
        missing = "model.layers.1.mlp.experts.4.up_proj.weight"
        self.save(kept, missing)
        done = subprocess.run([BANYAN, "rules", "check", "--model", self.model],
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout.count(f'needs a tensor "{missing}" beside it'), 2)
        self.assertIn("2 of 46 tensors have no rule, or one that is undecided or incomplete",
                      done.stderr)

    def test_a_model_whose_configuration_has_no_gate_needs_none(self):
        kept = self.read("llama3")
        kept["tensors"] = {name: tensor for name, tensor in kept["tensors"].items()
                           if "gate_proj" not in name}
        self.assertIn("gate_proj", self.refuse(kept, None))
        kept["config"]["hidden_act"] = "relu2"
        self.assertEqual(self.save(kept, None).returncode, 0)


if __name__ == "__main__":
    unittest.main()
