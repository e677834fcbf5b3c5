"""DDP and FSDP2 train a small transformer with this backend as they do with Gloo."""

from __future__ import annotations

import unittest

from groups import DEVICE, dist, run, seed, torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS = 20
WORDS, WIDTH, LENGTH, BATCH = 61, 32, 12, 6


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def train(rank: int, how: str, number: int, compiled: bool) -> list[float]:
    torch.manual_seed(number)
    model = Transformer()
    if how == "ddp":
        # Small buckets, so that several all-reduces run in each step.
        bucket = None if compiled else 0.02
        wrapped: nn.Module = DistributedDataParallel(model, bucket_cap_mb=bucket)
    else:
        mesh = None
        if how == "hsdp":
            mesh = dist.init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("replicate", "shard"))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        wrapped = model
    if compiled:
        wrapped = torch.compile(wrapped, backend="aot_eager")
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=3e-3)
    generator = torch.Generator("cpu").manual_seed(number + rank)
    losses = []
    for _ in range(STEPS):
        tokens = torch.randint(0, WORDS, (BATCH, LENGTH + 1), generator=generator, device="cpu").to(
            DEVICE
        )
        tokens[:, 1::2] = tokens[:, ::2][:, : tokens[:, 1::2].shape[1]]  # something to learn
        logits = wrapped(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.SUM)
        losses.append(mean.item() / dist.get_world_size())
    return losses


class Training(unittest.TestCase):
    def compare(self, how: str, compiled: bool = False) -> None:
        number = seed()
        ours = run(4, train, how, number, compiled)
        theirs = run(4, train, how, number, compiled, backend="gloo")
        self.assertLess(ours[0][-1], ours[0][0] - 0.3, "the loss falls")
        for rank in range(4):
            self.assertEqual(ours[rank], ours[0])
            for a, b in zip(ours[rank], theirs[rank], strict=True):
                self.assertAlmostEqual(a, b, delta=2e-4)  # orders of sums differ

    def test_ddp(self) -> None:
        self.compare("ddp")

    def test_compiled_ddp(self) -> None:
        self.compare("ddp", compiled=True)

    def test_fsdp2(self) -> None:
        self.compare("fsdp")

    def test_fsdp2_with_replicas(self) -> None:
        self.compare("hsdp")


if __name__ == "__main__":
    unittest.main()
