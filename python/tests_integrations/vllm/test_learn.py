"""Layouts learned from vLLM's own loader are those that it loads by, and are kept as files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from further import FURTHER
from further import write as write_further
from safetensors.torch import save_file
from setting import BUILD, FAMILIES, hold, oracle, torch, vllm, write_model
from vllm.engine.arg_utils import EngineArgs
from worker import described

import banyan
from banyan.integrations import _layout_cache as cache
from banyan.integrations.vllm import _learn, learned_layout


def setUpModule() -> None:
    _learn.start()


class Models(unittest.TestCase):
    """Rules, layout and bytes of tiny models, for tensor-parallel sizes of 1, 2 and 4."""

    def check(self, name: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            report = hold.Report()
            hold.hold_family(name, FAMILIES[name], Path(folder) / name, report)
        self.assertEqual(report.wrong, 0)
        self.assertGreaterEqual(report.right, 9)

    def test_llama(self) -> None:
        self.check("llama3")

    def test_qwen3(self) -> None:
        self.check("qwen3")

    def test_qwen3_moe_also_with_expert_parallelism(self) -> None:
        self.check("qwen3-moe")

    def test_quantized_blocks_are_copied(self) -> None:
        self.check("deepseek-v3-fp8")

    def test_deepseek_v3_and_its_draft_model(self) -> None:
        self.check("deepseek-v3")


class Learned(unittest.TestCase):
    def setUp(self) -> None:
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.folder = Path(made.name)
        change = mock.patch.dict(os.environ, {"BANYAN_LAYOUTS": str(self.folder / "layouts")})
        change.start()
        self.addCleanup(change.stop)

    def model(self, name: str) -> Path:
        folder = self.folder / name
        write_model(FAMILIES[name], folder)
        return folder

    def config(self, folder: Path) -> Any:
        case = oracle.Case(FAMILIES["llama3"], folder, "vllm", 1, False)
        return oracle.engine_config(case)

    def test_random_values_verify_every_byte(self) -> None:
        for name in ("llama3", "deepseek-v3", "nemotron-h"):
            with self.subTest(name):
                learned = _learn.learn_folder(self.model(name), 2, verify=True)
                self.assertEqual(learned[0][0].engine_release, vllm.__version__)
                self.assertEqual(len(learned), 2)

    def quantized(self, config_of: dict[str, Any], pack: Any) -> Path:
        """Write a Llama whose matrices are what pack(rows, columns) makes of them."""
        folder = self.model("llama3")
        held = hold.load_file(folder / "model.safetensors")
        tensors = {}
        for tensor_name, tensor in held.items():
            if "_proj" in tensor_name:
                for suffix, made in pack(*tensor.shape).items():
                    tensors[tensor_name.removesuffix("weight") + suffix] = made
            else:
                tensors[tensor_name] = tensor
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        config = json.loads((folder / "config.json").read_text())
        config |= {"quantization_config": config_of}
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    def test_packed_integers_are_copied(self) -> None:
        def awq(rows: int, columns: int) -> dict[str, torch.Tensor]:
            return {
                "qweight": torch.zeros(columns, rows // 8, dtype=torch.int32),
                "qzeros": torch.zeros(columns // 32, rows // 8, dtype=torch.int32),
                "scales": torch.zeros(columns // 32, rows, dtype=torch.bfloat16),
            }

        config = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}
        folder = self.quantized(config | {"version": "gemm"}, awq)
        ((_, learned),) = _learn.learn_folder(folder, 1, verify=True)
        self.assertEqual(learned.unused, ())
        types = {t.name.split(".")[-1]: t.dtype for t in learned.layout.tensors}
        self.assertEqual((types["qweight"], types["scales"]), ("int32", "bfloat16"))

    def test_scales_of_whole_matrices_are_copied(self) -> None:
        def fp8(rows: int, columns: int) -> dict[str, torch.Tensor]:
            return {
                "weight": torch.zeros(rows, columns, dtype=torch.float8_e4m3fn),
                "weight_scale": torch.zeros((), dtype=torch.float32),
                "input_scale": torch.zeros((), dtype=torch.float32),
            }

        config = {"quant_method": "fp8", "activation_scheme": "static"}
        folder = self.quantized(config | {"ignored_layers": ["lm_head"]}, fp8)
        ((_, learned),) = _learn.learn_folder(folder, 1, verify=True)
        names = [t.name for t in learned.layout.tensors]
        scales = [
            (p.local_start, p.name.split(".")[-2])
            for p in learned.layout.pieces
            if names[p.tensor] == "model.layers.0.self_attn.qkv_proj.weight_scale"
        ]
        self.assertEqual(scales, [((0,), "q_proj"), ((1,), "k_proj"), ((2,), "v_proj")])

    def test_matrices_that_the_engine_quantizes_are_copied(self) -> None:
        folder = self.model("llama3")
        config = EngineArgs(
            str(folder), skip_tokenizer_init=True, enforce_eager=True, quantization="fp8"
        ).create_engine_config()
        checkpoint = _learn.checkpoint_of(folder)
        learned = _learn.learn(config, checkpoint, verify=True)
        self.assertEqual(learned.unused, ())
        types = {t.name: t.dtype for t in learned.layout.tensors}
        self.assertEqual(types["model.layers.0.mlp.gate_up_proj.weight"], "bfloat16")
        plain = _learn.origin(self.config(folder), checkpoint)
        self.assertNotEqual(_learn.origin(config, checkpoint).file_name, plain.file_name)

    def test_families_without_rules(self) -> None:
        for name in FURTHER:
            with self.subTest(name):
                write_further(name, self.folder / name)
                learned = [
                    one for _, one in _learn.learn_folder(self.folder / name, 2, verify=True)
                ]
                unused = set.intersection(*(set(one.unused) for one in learned))
                tied = {"lm_head.weight"} if name.startswith("Cohere") else set()
                self.assertEqual(unused, tied)
                for one in learned:
                    layout = one.layout
                    held = {t.name for t in layout.tensors}
                    self.assertFalse(held & set(one.left_alone))

    def test_a_vocabulary_is_padded(self) -> None:
        learned = [one for _, one in _learn.learn_folder(self.model("llama3"), 2)]
        layout = learned[1].layout  # of 300 words, 160 and 140 with 20 rows of padding
        names = [t.name for t in layout.tensors]
        found = {names[n]: (str(box), fill) for n, box, fill in layout.padding}
        self.assertEqual(found["model.embed_tokens.weight"], ("[140:160, 0:128]", None))
        self.assertEqual(set(found), {"model.embed_tokens.weight", "lm_head.weight"})
        self.assertEqual(learned[0].layout.padding, [])

    def test_buffers_are_named_as_left_alone(self) -> None:
        ((_, learned),) = _learn.learn_folder(self.model("llama3"), 1)
        self.assertIn("model.layers.1.self_attn.attn._k_scale", learned.left_alone)
        held = {t.name for t in learned.layout.tensors}
        self.assertFalse(held & set(learned.left_alone))

    def test_a_checkpoint_that_lacks_a_tensor_leaves_a_hole(self) -> None:
        folder = self.model("llama3")
        checkpoint = _learn.checkpoint_of(folder)
        del checkpoint["model.layers.1.self_attn.k_proj.weight"]
        with self.assertRaisesRegex(
            banyan.Unsupported,
            r'parameter "model.layers.1.self_attn.qkv_proj.weight" \[128:192, 0:128\]: '
            "the loader fills it with nothing",
        ):
            _learn.learn(self.config(folder), checkpoint)

    def test_values_that_the_loader_computes_are_refused(self) -> None:
        folder = self.model("llama3")
        model = _learn.initialize(self.config(folder))

        def load(pairs: Any) -> None:
            model.load_weights((n, t * 2 if "o_proj" in n else t) for n, t in pairs)

        with self.assertRaisesRegex(
            banyan.Unsupported,
            r'parameter "model.layers.0.self_attn.o_proj.weight" .*: the loader computes it '
            r'\(mul of "model.layers.0.self_attn.o_proj.weight"\)',
        ):
            _learn._loader.learn(model, load, _learn.checkpoint_of(folder))

    def test_two_tensors_in_one_place_are_refused(self) -> None:
        folder = self.model("deepseek-v3")
        case = oracle.Case(FAMILIES["deepseek-v3"], folder, "vllm_mtp", 1, False)
        config: Any = oracle.engine_config(case)
        draft = config.speculative_config.draft_model_config
        with self.assertRaisesRegex(
            banyan.Unsupported,
            r'"model.embed_tokens.weight": the loader writes "model.layers.2.embed_tokens.weight"',
        ):
            _learn.learn(config, _learn.checkpoint_of(folder), model_config=draft)

    def test_a_layout_is_kept_and_found(self) -> None:
        folder = self.model("llama3")
        config, checkpoint = self.config(folder), _learn.checkpoint_of(folder)
        first = learned_layout(config, checkpoint)
        (path,) = cache.folder().iterdir()
        self.assertRegex(path.name, r"vllm-.*-llama-tp1-[0-9a-f]{16}-rank0.json")
        with mock.patch.object(_learn, "learn", side_effect=AssertionError("learned again")):
            again = learned_layout(config, checkpoint)
        self.assertEqual(described(first), described(again))

    def test_a_file_for_something_else_is_refused(self) -> None:
        folder = self.model("llama3")
        config, checkpoint = self.config(folder), _learn.checkpoint_of(folder)
        layout = learned_layout(config, checkpoint)
        (path,) = cache.folder().iterdir()
        origin = _learn.origin(config, checkpoint)
        release = vllm.__version__
        for change, message in (
            ({"engine_release": "0.31.9"}, f"release 0.31.9, and this is .* {release}"),
            ({"tensor_parallel_size": 4}, "tensor_parallel_size 4, and this is .*size 1"),
            ({"config_digest": "0f0f"}, f"digest 0f0f, and this is .* {origin.config_digest}"),
        ):
            other = cache.Origin(**{**vars(origin), **change})
            cache.save(path, {0: (other, layout)}, is_verified=True)
            with self.assertRaisesRegex(banyan.Mismatch, message):
                learned_layout(config, checkpoint)

    def command(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BUILD / "bin/banyan", *words],
            capture_output=True,
            text=True,
            env=os.environ | {"BANYAN_PYTHON": sys.executable},
            check=False,
        )

    def test_the_command_writes_a_file_by_which_reshard_moves(self) -> None:
        folder, out = self.model("qwen3-moe"), self.folder / "learned.json"
        words = ["layout", "learn", "--engine", "vllm", "--model", folder, "--tp", "2"]
        done = self.command(*words, "-o", out)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"rank 1: 20 tensors, 47 pieces, 2 boxes of padding")
        self.assertRegex(done.stdout, r"learned and verified from vllm .* in [0-9.]+ s")
        facts = [group["facts"] for group in json.loads(out.read_text())["ranks"]]
        self.assertEqual({f["model_type"] for f in facts}, {"qwen3_moe"})
        self.assertEqual({f["tensor_parallel_size"] for f in facts}, {2})
        moved = self.folder / "moved"
        done = self.command(
            "reshard", "--in", folder, "--out", moved, "--from", "tp=1", "--to", out
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        again = banyan.LayoutFile(out)
        case = oracle.Case(FAMILIES["qwen3-moe"], folder, "vllm", 2, False)
        held = [oracle.learn(case, rank) for rank in range(2)]
        for rank, one in enumerate(held):
            self.assertEqual(described(one.layout), described(again.layout(rank)))
            arrived = hold.load_file(moved / f"rank-{rank:05}/model.safetensors")
            self.assertEqual(set(arrived), set(one.values))
            for name, value in one.values.items():
                self.assertTrue(torch.equal(arrived[name], value), name)
        done = self.command(*words)  # into the folder of learned layouts
        self.assertEqual(done.returncode, 0, done.stderr)
        (path,) = cache.folder().iterdir()
        self.assertRegex(path.name, r"vllm-.*-qwen3_moe-tp2-[0-9a-f]{16}.json")

    def test_the_command_reports_what_is_wrong(self) -> None:
        done = self.command("layout", "learn", "--engine", "vllm", "--model", self.folder / "none")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("banyan layout learn: ", done.stderr)
        self.assertIn("none", done.stderr)
        self.assertNotIn("Traceback", done.stderr)

    def test_workers_of_an_engine_learn(self) -> None:
        folder = self.model("qwen3-moe")
        checkpoint = _learn.checkpoint_of(folder)
        (origin, first_rank), (_, second_rank) = _learn.learn_folder(folder, 2)
        learned = [first_rank, second_rank]
        engine = vllm.LLM(
            str(folder),
            skip_tokenizer_init=True,
            enforce_eager=True,
            tensor_parallel_size=2,
            max_model_len=64,
            dtype="bfloat16",
            worker_extension_cls="worker.Extension",
        )
        prompt = {"prompt_token_ids": list(range(3, 20))}
        greedy = vllm.SamplingParams(temperature=0, max_tokens=8, detokenize=False)

        def tokens() -> Any:
            return engine.generate([prompt], greedy, use_tqdm=False)[0].outputs[0].token_ids

        first = tokens()
        types = [str(dtype).removeprefix("torch.") for dtype, _ in checkpoint.values()]
        shapes = [list(shape) for _, shape in checkpoint.values()]
        for _ in range(2):
            began = time.monotonic()
            found = engine.collective_rpc("learned", args=(list(checkpoint), types, shapes))
            print(f"learned in two workers in {time.monotonic() - began:.2f} s", flush=True)
            self.assertEqual(found, [described(one.layout) for one in learned])
        stem = origin.file_name.removesuffix(".json")  # what the command would write
        names = sorted(path.name for path in cache.folder().iterdir())
        self.assertEqual(names, [f"{stem}-rank{rank}.json" for rank in range(2)])
        self.assertEqual(tokens(), first)


if __name__ == "__main__":
    unittest.main()
