"""Real models of Megatron-Core: with its own Gloo service, with ours, and without its executor."""

from __future__ import annotations

import tempfile
import unittest
import zlib
from collections.abc import Callable
from typing import Any
from unittest import mock

from groups import DEVICE, banyan, dist, run, seed, torch
from host import stand_in
from models import (
    IS_NEWER,
    GroupedExperts,
    build,
    compare,
    fill,
    gloo_service,
    poison,
    values,
)

Layout = dict[str, int]


def swap(source: Any, destination: Any, service: Any, **options: Any) -> None:
    from megatron.core.resharding.refit import swap_model_weights

    stand_in()
    swap_model_weights(source, destination, refit_method=service, **options)


def case(rank: int, number: int, source: Layout, destination: Layout, experts: int) -> None:
    from banyan.integrations.megatron import BanyanCopyService, banyan_reshard

    if experts:
        src, dst = (
            GroupedExperts(one.get("tp", 1), one.get("ep", 1), experts)
            for one in (source, destination)
        )
    else:
        src, dst = build(**source), build(**destination)
    gloo, ours = gloo_service(), BanyanCopyService()
    versions = []
    for step in range(3):
        fill(src, number + step)
        poison(dst)
        swap(src, dst, gloo)
        wanted = values(dst)
        poison(dst)
        swap(src, dst, ours)
        compare("BanyanCopyService", dst, wanted)
        poison(dst)
        before = [p._version for p in dst.parameters()]
        filled = banyan_reshard(src, dst)
        compare("banyan_reshard", dst, wanted)
        assert filled is not None and filled.state == "whole"
        versions.append(filled.version)
        assert all(p._version > v for p, v in zip(dst.parameters(), before, strict=True))
    assert versions == [1, 2, 3], versions
    assert ours.runs == 3
    ours.close()


def sequential_experts(rank: int, number: int) -> None:
    """Megatron-Core's own plan does not number these experts; ours does."""
    from banyan.integrations.megatron import banyan_reshard

    src, dst = build(ep=4, experts=8), build(ep=2, experts=8)
    fill(src, number)
    fill(dst, number)
    wanted = values(dst)
    poison(dst)
    banyan_reshard(src, dst, require_whole_source=True)
    compare("banyan_reshard", dst, wanted)


def chunks(rank: int, number: int, source: Layout, destination: Layout) -> None:
    """Virtual pipeline stages on either side."""
    from banyan.integrations.megatron import banyan_reshard, model_layout

    sides = [build(**source), build(**destination)]
    lists = [side if isinstance(side, list) else [side] for side in sides]
    for one in (*lists[0], *lists[1]):
        fill(one, number)
    wanted = [values(one) for one in lists[1]]
    for _ in range(2):
        for one in lists[1]:
            poison(one)
        banyan_reshard(*sides, require_whole_source=True)
        for one, want in zip(lists[1], wanted, strict=True):
            compare("banyan_reshard", one, want)
    names = [one.name for one in model_layout(sides[0]).tensors]
    assert any(name.startswith("1.decoder.layers.0.") for name in names) == (len(lists[0]) > 1)


def tied(rank: int, number: int) -> None:
    """A source with tied embeddings fills the output layer of a destination without."""
    from banyan.integrations.megatron import banyan_reshard

    src, dst = build(tp=2, tied=True), build(tp=4)
    fill(src, number)
    assert "output_layer.weight" not in dict(src.named_parameters())
    if IS_NEWER:  # 0.16.1 refuses it
        poison(dst)
        swap(src, dst, gloo_service())
        wanted = values(dst)
    poison(dst)
    banyan_reshard(src, dst, require_whole_source=True)
    made = values(dst)
    assert torch.equal(made["output_layer.weight"], made["embedding.word_embeddings.weight"])
    assert not made["output_layer.weight"].isnan().any()
    if IS_NEWER:
        compare("banyan_reshard", dst, wanted)


def expert_bias(rank: int, number: int) -> None:
    """Persistent buffers move, and take the type that the trainer has."""
    from banyan.integrations.megatron import BanyanCopyService, banyan_reshard

    stand_in()
    src = build(experts=4, expert_bias=True)
    fill(src, number)
    ours = BanyanCopyService()
    for way in ("theirs", "service", "reshard", "reshard"):
        dst = build(experts=4, expert_bias=True)
        for layer in dst.decoder.layers:
            layer.mlp.router.expert_bias = layer.mlp.router.expert_bias.bfloat16()
        poison(dst)
        if way == "theirs":
            swap(src, dst, gloo_service())
            wanted = values(dst)
            assert sum("expert_bias" in name for name in wanted) == 4
        elif way == "service":
            swap(src, dst, ours)
        else:
            banyan_reshard(src, dst)
        compare(way, dst, wanted)


def apart(rank: int, number: int) -> None:
    """A trainer on two ranks, and two engines of one rank each: a rank has one model or none."""
    from banyan.integrations.megatron import BanyanCopyService, banyan_reshard

    src = build(tp=2, first=0, size=2)
    engines = [build(first=one, size=1) for one in (2, 3)]
    dst = engines[0] or engines[1]
    group = dist.new_group(list(range(4)), backend="gloo")
    ours = BanyanCopyService(group)
    for step in range(3):
        if src:
            fill(src, number + step)
        if dst:
            # The whole tensors, from the halves that the trainer's ranks have.
            fill(dst, number + step)
            wanted = values(dst)
            for name, parameter in dst.named_parameters():
                if getattr(parameter, "tensor_model_parallel", False):
                    dim, stride = parameter.partition_dim, parameter.partition_stride
                    halves = [half(parameter, name, number + step, part) for part in (0, 1)]
                    blocks = [one.chunk(stride, dim) for one in halves]
                    joined = [one[i] for i in range(stride) for one in blocks]
                    wanted[name] = torch.cat(joined, dim).to(DEVICE)
            poison(dst)
        banyan_reshard(src, dst, group=group, require_whole_source=True)
        if dst:
            compare("banyan_reshard", dst, wanted)
            poison(dst)
        if IS_NEWER:
            pools = {"num_dst_pools": 2, "dst_pool_index": 1 if rank == 3 else 0}
            swap(src, dst, ours, group=group, **pools)
            if dst:
                compare("BanyanCopyService", dst, wanted)


def half(parameter: torch.Tensor, name: str, seed: int, part: int) -> torch.Tensor:
    """Return what ``fill`` gives rank ``part`` of two tensor-parallel ranks."""
    shape = list(parameter.shape)
    shape[parameter.partition_dim] //= 2  # type: ignore[attr-defined]
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name} {part}".encode()))
    return torch.rand(shape, generator=generator, device="cpu")


def offsets(rank: int, number: int, path: str) -> None:
    """Trainer and engine have default groups of their own, and meet in a world of Banyan."""
    from banyan.integrations.megatron import banyan_reshard

    dist.destroy_process_group()
    side, place = divmod(rank, 2)
    dist.init_process_group(
        "gloo", store=dist.FileStore(f"{path}/{side}", 2), rank=place, world_size=2
    )
    with banyan.World.from_store(dist.FileStore(f"{path}/both", 4), rank, 4) as world:
        model = build(tp=2 if side == 0 else 1)
        fill(model, number)
        src, dst = (model, None) if side == 0 else (None, model)
        if dst:
            poison(dst)
        banyan_reshard(src, dst, world=world, src_rank_offset=0, dst_rank_offset=2)
        if src:
            name = "decoder.layers.1.mlp.linear_fc2.weight"
            told = world.gather(src.get_parameter(name).detach().cpu().numpy().tobytes())
        else:
            name = "decoder.layers.1.mlp.linear_fc2.weight"
            told = world.gather(b"")
            parts = [torch.frombuffer(bytearray(one), dtype=torch.float32) for one in told[:2]]
            wanted = torch.cat([one.view(64, 64) for one in parts], 1)
            assert torch.equal(model.get_parameter(name).detach().cpu(), wanted)
            assert not any(one.isnan().any() for one in values(model).values())


def halves_of(rank: int, number: int) -> None:
    """A transform that sends two tensors for each part of a parameter."""
    from banyan.integrations.megatron import BanyanCopyService
    from banyan.integrations.megatron.resharding import ReshardTransform

    src, dst = build(tp=2), build(tp=4)
    fill(src, number)
    poison(dst)
    swap(src, dst, gloo_service())
    wanted = values(dst)

    class Halves(ReshardTransform):
        finalized = 0

        def should_transform(self, param_name: str) -> bool:
            return "linear_fc1" in param_name

        def prepare_send(self, param_name: str, src_slice: Any, src_param: Any) -> Any:
            part = src_param.data[src_slice]
            return [part.half(), (part - part.half().float())]

        def prepare_recv(self, param_name: str, dst_slice: Any) -> Any:
            part = dst.get_parameter(param_name).data[dst_slice]
            return [torch.empty_like(part, dtype=torch.half), torch.empty_like(part)]

        def finalize_recv(self, param_name: str, dst_slice: Any, recv_buffers: Any) -> None:
            high, rest = recv_buffers
            dst.get_parameter(param_name).data[dst_slice] = high.float() + rest
            self.finalized += 1

    transform = Halves()
    for _ in range(3):
        poison(dst)
        swap(src, dst, BanyanCopyService(), transform=transform)
        compare("transform", dst, wanted)
    assert transform.finalized >= 3 * 4


def errors(rank: int) -> list[str]:
    from megatron.core import fp8_utils

    from banyan.integrations.megatron import banyan_reshard

    texts = []
    src, dst, lacking = build(tp=2), build(tp=1), build(tp=1)
    del lacking.decoder.layers[2].mlp

    def quantized() -> None:
        special = src.decoder.layers[1].mlp.linear_fc1.weight if rank == 2 else None
        with mock.patch.object(fp8_utils, "is_mxfp8tensor", lambda one: one is special):
            banyan_reshard(src, build(tp=4))

    wrongs: list[Callable[[], object]] = [
        lambda: banyan_reshard(torch.nn.Linear(2, 2), dst),
        lambda: banyan_reshard([], dst),
        lambda: banyan_reshard(torch.nn.Linear(2, 2) if rank == 1 else src, dst),
        lambda: banyan_reshard(lacking, dst),
        quantized,
    ]
    for wrong in wrongs:
        try:
            wrong()
            texts.append("no error")
        except Exception as error:
            texts.append(f"{type(error).__name__}: {error}")
    # The world lives, and a right call works.
    assert banyan_reshard(src, dst) is not None
    return texts


class Megatron(unittest.TestCase):
    def check(self, source: Layout, destination: Layout, experts: int = 0) -> None:
        with self.subTest(source=source, destination=destination, experts=experts):
            run(4, case, seed(), source, destination, experts, backend="gloo")

    def test_dense_models(self) -> None:
        self.check({"tp": 2}, {"tp": 4})
        self.check({"tp": 4}, {"tp": 1})
        self.check({"tp": 2, "pp": 2}, {"tp": 4})

    def test_experts(self) -> None:
        self.check({"ep": 4}, {"ep": 2}, experts=8)
        self.check({"tp": 2, "ep": 2}, {"ep": 4}, experts=8)
        self.check({"ep": 1}, {"tp": 4}, experts=3)
        run(4, sequential_experts, seed(), backend="gloo")

    def test_virtual_pipeline_stages(self) -> None:
        run(2, chunks, seed(), {"pp": 2, "chunks": 2}, {}, backend="gloo")
        run(2, chunks, seed(), {"pp": 2}, {"pp": 2, "chunks": 2}, backend="gloo")

    def test_tied_embeddings(self) -> None:
        run(4, tied, seed(), backend="gloo")

    @unittest.skipUnless(IS_NEWER, "0.16.1 does not move buffers")
    def test_buffers(self) -> None:
        run(2, expert_bias, seed(), backend="gloo")

    def test_models_on_disjoint_ranks(self) -> None:
        run(4, apart, seed(), backend="gloo")

    @unittest.skipUnless(IS_NEWER, "0.16.1 has no offsets")
    def test_default_groups_of_their_own(self) -> None:
        with tempfile.TemporaryDirectory() as path:
            run(4, offsets, seed(), path, backend="gloo")

    @unittest.skipUnless(IS_NEWER, "0.16.1 has no transforms")
    def test_transform(self) -> None:
        run(4, halves_of, seed(), backend="gloo")

    def test_errors(self) -> None:
        for texts in run(4, errors, backend="gloo"):
            for text, part in zip(
                texts,
                (
                    "ValueError: Linear has no pg_collection, which tells its layout",
                    "ValueError: a model without chunks",
                    "Linear has no pg_collection, which tells its layout",
                    "decoder.layers.2.mlp.linear_fc1.weight",
                    "parameter decoder.layers.1.mlp.linear_fc1.weight is quantized",
                ),
                strict=True,
            ):
                self.assertIn(part, text)


if __name__ == "__main__":
    assert banyan
    unittest.main()
