"""Hold Banyan's packings for Megatron-Core against Megatron-Core itself: megatron_forward.py BANYAN [FAMILY ...]

For each family, Banyan packs a tiny model for two ranks. Megatron-Core builds the model of each
rank, whose parameters must have the names and shapes that Banyan gave, and runs it over Gloo. Its
logits must be those of transformers with the model as it was.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import traceback
from typing import Any

import tiny
import torch
import transformers
from families import FAMILIES
from megatron_layouts import (
    DENSE,
    EXPERTS,
    FEW_HEADS,
    FURTHER,
    HYBRID,
    LACKING,
    LATENT,
    PACKINGS,
    digest,
    is_refused,
    parallels,
    read_kept,
    spec_of,
    write_kept,
)
from safetensors.torch import load_file, save_file

WORLD = 2
VOCAB = 300
TOLERANCE = 1e-4  # of the largest logit: float32, in another order of additions


@dataclasses.dataclass
class Job:
    """One model in one parallel layout."""

    family: str
    spec: str
    model: str  # folder
    folder: str  # of the case: what each rank holds, then what it found
    parallel: dict[str, int]  # tp, pp, ep
    engine: bool
    refused: bool  # Banyan must refuse it
    message: str = ""  # of Banyan, when it refused

    @property
    def sizes(self) -> dict[str, int]:
        """Return the options of Megatron-Core."""
        tp, ep = self.parallel.get("tp", 1), self.parallel.get("ep", 1)
        return {
            "tensor_model_parallel_size": tp,
            "pipeline_model_parallel_size": self.parallel.get("pp", 1),
            "expert_model_parallel_size": ep,
            "expert_tensor_parallel_size": self.parallel.get("etp", 1 if ep > 1 else tp),
        }


def write_model(family: str, folder: pathlib.Path) -> None:
    """Write the tiny model in float32, with values at which it computes well."""
    base, key_heads = FEW_HEADS.get(family, (FURTHER.get(family, family), 0))
    mtp = FAMILIES[base].mtp if family in FURTHER else ""
    made = dataclasses.replace(FAMILIES[base], mtp=mtp, inv_freq=False)
    if key_heads:
        made = dataclasses.replace(made, config={**made.config, "num_key_value_heads": key_heads})
    tiny.write_model(made, folder)
    path = folder / "model.safetensors"
    tensors = {name: 0.1 * t.float() for name, t in load_file(path).items()}
    tensors |= {name: 1 + t for name, t in tensors.items() if name.endswith("norm.weight")}
    if mtp:
        tensors[f"{mtp}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors[f"{mtp}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file(tensors, path, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config |= {"dtype": "float32", "num_nextn_predict_layers": int(bool(mtp))}
    if config.get("topk_method") == "noaux_tc" and config["n_group"] > 1:
        # Megatron-Core rates a group by its best topk / topk_group experts, DeepSeek-V3 by two.
        config |= {"n_group": 2, "topk_group": 1}
    if config["model_type"] == "llama4_text":
        # Megatron-Core normalizes queries and keys in layers without RoPE, too.
        config["no_rope_layers"] = [1] * config["num_hidden_layers"]
    if config["model_type"] == "gpt_oss":
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    config.pop("torch_dtype", None)
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def pack(banyan: str, job: Job) -> str:
    """Let Banyan write what each rank holds; return its message when it refuses."""
    command = [banyan, "reshard", "--in", job.model, "--out", f"{job.folder}/packed",
               "--from", "tp=1", "--to", job.spec]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


def unpack(banyan: str, job: Job) -> str:
    """Let Banyan make the model again of what each rank holds; return what is wrong with it.

    Tensors that Megatron-Core has once and the model twice are in its layout, not in the folder.
    """
    layout, joined = f"{job.folder}/whole.json", f"{job.folder}/joined"
    for arguments in (
            ["layout", "save", "--model", job.model, "--spec", "tp=1", "-o", layout],
            ["reshard", "--in", f"{job.folder}/packed", "--out", joined, "--to", layout, "--join"]):
        done = subprocess.run([banyan, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            return done.stderr.strip()
    before, after = (load_file(f"{folder}/model.safetensors") for folder in (job.model, joined))
    wrong = [name for name in sorted(before.keys() | after.keys())
             if name not in before or name not in after or
             not torch.equal(before[name], after[name])]
    if job.parallel == parallels(job.family)[0]:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            joined, dtype=torch.float32, attn_implementation="eager", local_files_only=True)
        if not torch.equal(logits(model, job.model, joined), torch.load(f"{job.model}/logits")):
            wrong.append("the logits of transformers")
    return f"not the same after the way back: {', '.join(wrong)}" if wrong else ""


def further_logits(model: Any, folder: str, ids: torch.Tensor) -> torch.Tensor:
    """Return the logits of the layer that predicts a further token, which transformers lacks."""
    count = model.config.num_hidden_layers
    tensors = {name.removeprefix(f"model.layers.{count}."): t
               for name, t in load_file(f"{folder}/model.safetensors").items()
               if name.startswith(f"model.layers.{count}.")}
    config = transformers.AutoConfig.from_pretrained(folder, num_hidden_layers=count + 1)
    layer = transformers.AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="eager",
        local_files_only=True).eval()
    layer.model.layers = layer.model.layers[count:]
    layer.config.num_hidden_layers = 1
    layer.model.norm.weight.data = tensors["shared_head.norm.weight"]

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return torch.nn.functional.rms_norm(
            x, (x.shape[-1],), tensors[f"{name}.weight"], config.rms_norm_eps)

    following = torch.cat([ids[:, 1:], torch.zeros_like(ids[:, :1])], 1)
    both = torch.cat([norm(model.model.embed_tokens(following), "enorm"),
                      norm(model.model(ids).last_hidden_state, "hnorm")], -1)
    return layer(inputs_embeds=both @ tensors["eh_proj.weight"].T, use_cache=False).logits


def logits(model: Any, folder: str, weights: str) -> torch.Tensor:
    """Return the logits that transformers computes for the model's ids."""
    ids = torch.load(f"{folder}/ids")
    with torch.no_grad():
        found = model.eval()(ids).logits
        if getattr(model.config, "num_nextn_predict_layers", 0):
            found = torch.cat([found, further_logits(model, weights, ids)], 1)
    return found


def differing(model: torch.nn.Module, given: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Return the parameters whose shapes differ: Megatron-Core's shape and the given one."""
    wanted = {name: list(t.shape) for name, t in model.named_parameters()}
    wanted |= {name: list(t.shape) for name, t in model.named_buffers() if "expert_bias" in name}
    have = {name: list(t.shape) for name, t in given.items()}
    return {name: (wanted.get(name), have.get(name)) for name in sorted(wanted.keys() | have.keys())
            if wanted.get(name) != have.get(name)}


def forward(model: torch.nn.Module, hidden: int, ids: torch.Tensor, stage: int, last: int) -> Any:
    """Run the rank's stage of the model; return the logits at the last one."""
    import torch.distributed as dist

    length = ids.shape[1]
    mask = torch.triu(torch.ones(1, 1, length, length, dtype=torch.bool), 1)
    if stage > 0:
        received = torch.empty(length, 1, hidden)
        dist.recv(received, dist.get_rank() - 1)
        model.set_input_tensor([received])
    output = model(ids, torch.arange(length)[None], mask)
    if stage < last:
        dist.send(output.contiguous(), dist.get_rank() + 1)
        return None
    return output


def run_job(job: Job, rank: int) -> dict[str, Any]:
    """Build the rank's model, compare its parameters and run it. Collective."""
    import megatron_model
    import torch.distributed as dist
    from megatron.core import parallel_state

    config = transformers.AutoConfig.from_pretrained(job.model)
    stage = parallel_state.get_pipeline_model_parallel_rank()
    last = job.sizes["pipeline_model_parallel_size"] - 1
    given = load_file(f"{job.folder}/packed/rank-{rank:05}/model.safetensors")
    tp = job.sizes["tensor_model_parallel_size"]
    rows = next(t.shape[0] for name, t in given.items()
                if name in ("embedding.word_embeddings.weight", "output_layer.weight"))
    model = megatron_model.build(config, rows * tp, job.engine, job.sizes, stage == 0, stage == last)
    wrong = differing(model, given)
    failed = torch.tensor([len(wrong)])
    dist.all_reduce(failed)
    if failed.item():
        return {"wrong": wrong or "another rank's parameters differ"}
    model.load_state_dict(given, strict=False)
    ids = torch.load(f"{job.model}/ids")
    with torch.no_grad():
        return {"logits": forward(model, config.hidden_size, ids, stage, last)}


def play(rank: int, list_of_jobs: str) -> None:
    """Be one rank: run every job."""
    import megatron_model
    import torch.distributed as dist
    from megatron.core import parallel_state

    megatron_model.prepare()
    dist.init_process_group("gloo", f"file://{list_of_jobs}.store", rank=rank, world_size=WORLD,
                            timeout=datetime.timedelta(seconds=60))
    jobs = [Job(**entry) for entry in json.loads(pathlib.Path(list_of_jobs).read_text())]
    sizes: dict[str, int] = {}
    # Groups cost dozens of threads that Gloo never ends: each layout's are made once.
    for job in sorted(jobs, key=lambda job: sorted(job.sizes.items())):
        if job.sizes != sizes:
            parallel_state.destroy_model_parallel()
            parallel_state.initialize_model_parallel(**job.sizes)
            sizes = job.sizes
        try:
            found = run_job(job, rank)
        except Exception:  # the report has it
            found = {"wrong": traceback.format_exc()}
        torch.save(found, f"{job.folder}/found{rank}")
        dist.barrier()


def verdict(job: Job) -> str:
    """Return what is wrong with a job, or nothing."""
    if job.refused:
        named = re.search(r'tensors?\b[^"]*"(model|backbone)\.', job.message)
        return "" if named else f"was not refused by a tensor's name: {job.message}"
    if job.message:
        return job.message
    expected = torch.load(f"{job.model}/logits")
    compared = False
    for rank in range(WORLD):
        path = pathlib.Path(f"{job.folder}/found{rank}")
        if not path.exists():
            return f"rank {rank} did not get this far"
        found = torch.load(path, weights_only=False)
        if "wrong" in found:
            return f"rank {rank}: {found['wrong']}"
        if found["logits"] is None:
            continue
        error = (found["logits"][..., :VOCAB] - expected).abs().max() / expected.abs().max()
        if not error < TOLERANCE:
            return f"rank {rank}: logits differ by {error:.1e} of the largest"
        compared = True
    return "" if compared else "no rank had logits"


def prepare_jobs(banyan: str, families: list[str], folder: pathlib.Path) -> list[Job]:
    """Write the models, their expected logits and what Banyan packs of them."""
    jobs = []
    for family in families:
        model_folder = folder / family
        write_model(family, model_folder)
        for packing, engine in PACKINGS.items():
            refused = is_refused(family, packing)
            for parallel in parallels(family)[: 1 if refused else None]:
                spec = spec_of(parallel, packing)
                case = folder / f"{family} {spec}"
                case.mkdir()
                job = Job(family, spec, str(model_folder), str(case), parallel, engine, refused)
                job.message = pack(banyan, job)
                jobs.append(job)
        if family in LACKING:
            continue
        model = transformers.AutoModelForCausalLM.from_pretrained(
            model_folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True)
        torch.save(torch.randint(0, VOCAB, (1, 19)), model_folder / "ids")
        folder_name = str(model_folder)
        torch.save(logits(model, folder_name, folder_name), model_folder / "logits")
    return jobs


def run_ranks(jobs: list[Job], folder: pathlib.Path) -> None:
    """Play all jobs; print what the ranks printed if one of them failed."""
    path = folder / "jobs"
    path.write_text(json.dumps([dataclasses.asdict(job) for job in jobs]))
    with open(folder / "output", "w") as output:
        ranks = [subprocess.Popen([sys.executable, __file__, "--rank", str(rank), str(path)],
                                  stdout=output, stderr=output) for rank in range(WORLD)]
        codes = [process.wait() for process in ranks]
    if any(codes):
        print((folder / "output").read_text(), file=sys.stderr)


def report(banyan: str, jobs: list[Job], update: bool) -> int:
    """Print a line for each job, compare or update the kept digests; return how many failed."""
    kept, failed = read_kept(), 0
    for job in jobs:
        problem = verdict(job)
        if not problem and not job.refused:
            problem = unpack(banyan, job)
        if not problem and not job.refused:
            tensors = load_file(f"{job.model}/model.safetensors")
            shapes = {name: list(t.shape) for name, t in tensors.items()}
            made = digest(banyan, pathlib.Path(job.model), job.spec, shapes)
            of_family = kept.setdefault(job.family, {}) if job.family not in FEW_HEADS else {}
            if job.family in FEW_HEADS:
                pass  # tests/reshard/model/test_layout_packings.c has these
            elif update:
                of_family[job.spec] = made
            elif of_family.get(job.spec) != made:
                problem = "is right, but the digest in tests/data/megatron.json is another"
        failed += bool(problem)
        print("FAILED" if problem else "ok    ", job.family, job.spec, problem)
    if update:
        write_kept(kept)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--update", action="store_true", help="write the digests of what is right")
    parser.add_argument("banyan", help="the banyan command; with --rank, the list of jobs")
    parser.add_argument("families", nargs="*")
    arguments = parser.parse_args()
    known = DENSE + EXPERTS + LATENT + HYBRID + LACKING
    families = [family for family in arguments.families or known if family in known]
    torch.manual_seed(1)
    if arguments.rank is not None:
        play(arguments.rank, arguments.banyan)
        return 0
    with tempfile.TemporaryDirectory() as name:
        jobs = prepare_jobs(arguments.banyan, families, pathlib.Path(name))
        run_ranks([job for job in jobs if not job.message], pathlib.Path(name))
        failed = report(arguments.banyan, jobs, arguments.update)
    print(f"{len(jobs) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    sys.exit(main())
