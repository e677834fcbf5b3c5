"""An engine follows the versions of tensors of PyTorch: on GPUs (BANYAN_TEST_DEVICE=cuda) in the
streams that the program names."""

from __future__ import annotations

import contextlib
import secrets
import sys
import tempfile
import unittest
from typing import Any

from groups import DEVICE, banyan, torch

from banyan.integrations import _following as following
from ranks import FileStore, open_side, run

SHAPE = (300, 70)
SECRET = secrets.token_hex(16)
VERSIONS = 4
ON_GPU = DEVICE == "cuda"


def value(version: int) -> torch.Tensor:
    """The tensor of a version: every 31st element is new in each."""
    index = torch.arange(SHAPE[0] * SHAPE[1])
    changed_in = torch.zeros_like(index)
    for changes in range(1, version + 1):
        changed_in[(index * 7919 + changes) % 31 == 0] = changes
    return ((index % 100) + changed_in * 0.5).to(torch.bfloat16).view(SHAPE)


def layout_of() -> banyan.Layout:
    layout = banyan.Layout()
    layout.add_sharded("weight", "bfloat16", SHAPE, banyan.Mesh((1,)), [banyan.Replicate()], 0)
    return layout


def stream_here() -> Any:
    if not ON_GPU:
        return None
    torch.cuda.set_device(0)
    return torch.cuda.Stream()


def within(stream: Any) -> Any:
    return torch.cuda.stream(stream) if stream is not None else contextlib.nullcontext()


def train(world: banyan.World, store: FileStore, keep_on_host: bool) -> None:
    stream = stream_here()
    weight = torch.zeros(SHAPE, dtype=torch.bfloat16, device=DEVICE)
    publication = banyan.Publication(
        layout_of(), world, SECRET, keep_on_host=keep_on_host, stream=stream
    )
    with publication:
        store.set("address", publication.address)
        for version in range(1, VERSIONS + 1):
            new = value(version).to(DEVICE)
            if ON_GPU:
                torch.cuda.synchronize()
            with within(stream):  # publish waits for this work
                for _ in range(50):
                    weight.fill_(-1)
                weight.copy_(new)
            report = publication.publish({"weight": weight}, version)
            assert report.elems == weight.numel(), report.elems
            assert version == 1 or 0 < report.changed <= weight.numel() / 20, report.changed
            store.get(f"committed {version}")


def serve(world: banyan.World, store: FileStore, shadow: bool) -> None:
    stream = stream_here()
    layout = layout_of()
    tensors: Any
    if shadow:
        tensors = banyan.Tensors.alloc(layout, device="cuda:0", swappable=True)
        weight = torch.from_dlpack(tensors["weight"])
    else:
        weight = torch.full(SHAPE, -2, dtype=torch.bfloat16, device=DEVICE)
        tensors = {"weight": weight}
    address = store.get("address").decode()
    subscription = banyan.Subscription(
        layout, tensors, world, address, SECRET, keep_previous=True, stream=stream, shadow=shadow
    )
    with subscription:
        for version in range(1, VERSIONS + 1):
            assert subscription.wait(version - 1, 60) == version
            assert subscription.commit() == version
            assert torch.equal(weight.cpu(), value(version)), version
            if version == VERSIONS:
                assert subscription.rollback() == version - 1
                assert torch.equal(weight.cpu(), value(version - 1))
            store.set(f"committed {version}", "yes")
        assert subscription.delta_fetches == VERSIONS - 1


# ---- a model, as an engine's adapter follows it ----


def model_of(version: int) -> torch.nn.Module:
    torch.manual_seed(version)
    return torch.nn.Sequential(torch.nn.Linear(96, 64), torch.nn.LayerNorm(64)).to(torch.bfloat16)


def model_layout(model: torch.nn.Module, rank: int) -> banyan.Layout:
    layout, mesh = banyan.Layout(), banyan.Mesh((1,), first_rank=rank)
    for name, one in model.state_dict().items():
        shape = tuple(one.shape)
        layout.add_sharded(name, "bfloat16", shape, mesh, [banyan.Replicate()], rank)
    return layout


def train_model(world: banyan.World, store: FileStore) -> None:
    with banyan.Publication(model_layout(model_of(1), 0), world, SECRET) as publication:
        store.set("address", publication.address)
        for version in range(1, VERSIONS + 1):
            publication.publish(model_of(version).state_dict(), version)
            store.get(f"committed {version}")


def serve_model(world: banyan.World, store: FileStore) -> None:
    """Rank 0 has no tensors and the address; rank 1 has the model."""
    address = store.get("address").decode()
    device = torch.device(DEVICE, 0 if ON_GPU else None)
    if world.rank == 0:
        subscription = banyan.Subscription(None, None, world, address, SECRET)
    else:
        model = model_of(0).to(device)
        tensors = dict(model.state_dict())
        before = following.Before(tensors, tensors)
        subscription = following.follow(model_layout(model, 1), tensors, world, device)
        graph_input = torch.ones(3, 96, dtype=torch.bfloat16, device=device)
    with subscription:
        for version in range(1, VERSIONS + 1):
            subscription.wait(version - 1, 60)
            if world.rank == 1:
                model(graph_input)  # the commit comes after it
                following.settle(device)
            while subscription.commit() != version:
                pass
            if world.rank == 1:
                expected = model_of(version).to(device)
                assert torch.equal(model(graph_input), expected(graph_input)), version
                for name, one in model.state_dict().items():
                    assert torch.equal(one, expected.state_dict()[name]), (version, name)
            world.barrier()
            if world.rank == 1:
                store.set(f"committed {version}", "yes")
    if world.rank == 1:
        before.restore()
        assert torch.equal(model(graph_input), model_of(0).to(device)(graph_input))


def raw_follow_model(rank: int, count: int, unique_id: banyan.UniqueId, folder: str) -> None:
    del unique_id, count
    world, store, trains = open_side(rank, folder, 1, 2)
    if trains:
        train_model(world, store)
    else:
        serve_model(world, store)
    world.close()


def raw_follow(
    rank: int, count: int, unique_id: banyan.UniqueId, folder: str, keep_on_host: bool, shadow: bool
) -> None:
    del unique_id, count
    world, store, trains = open_side(rank, folder, 1, 1)
    if trains:
        train(world, store, keep_on_host)
    else:
        serve(world, store, shadow)
    world.close()


class PublishTest(unittest.TestCase):
    def test_an_engine_follows_every_version(self) -> None:
        for keep_on_host in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                run(2, raw_follow, folder, keep_on_host, False)

    def test_a_model_follows_beside_a_rank_without_tensors(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run(3, raw_follow_model, folder)

    @unittest.skipUnless(ON_GPU, "a shadow needs a GPU")
    def test_an_engine_with_a_shadow_follows_every_version(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run(2, raw_follow, folder, False, True)


if __name__ == "__main__":
    if ON_GPU and torch.cuda.device_count() == 0:  # asking more would start CUDA before the ranks
        print("skipped: BANYAN_TEST_DEVICE is cuda, and PyTorch finds no GPU")
        sys.exit(77)
    unittest.main()
