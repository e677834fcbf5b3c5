"""A trainer and its engines, as jobs of their own. In two shells, with the same SECRET:

export SECRET=0f1e2d3c4b5a69788796a5b4c3d2e1f0   # or: openssl rand -hex 16
banyan launch -n 2 -- python examples/connect.py                  # prints an address
banyan launch -n 3 -- python examples/connect.py 127.0.0.1:4711   # that address
"""

import os
import sys
import time

import banyan

SHAPE, STEPS, SERVED = (4096, 4096), 3, 2


def layout(world: banyan.World, first_rank: int, ranks: int, dim: int) -> banyan.Layout:
    """Shard the matrix among some ranks of the joined world; the others hold nothing."""
    mesh, made = banyan.Mesh((ranks,), first_rank=first_rank), banyan.Layout()
    if first_rank <= world.rank < first_rank + ranks:
        made.add_sharded("weight", "bfloat16", SHAPE, mesh, [banyan.Shard(dim)], world.rank)
    return made


def reshard(joined: banyan.World) -> int:
    """Move the weights after each step: rows of the trainer to columns of the engine."""
    trainers = joined.listening_size
    rows = layout(joined, 0, trainers, dim=0)
    columns = layout(joined, trainers, joined.size - trainers, dim=1)
    source, destination = banyan.Tensors.alloc(rows), banyan.Tensors.alloc(columns)
    with banyan.Reshard(rows, columns, joined) as move:
        for _ in range(STEPS):
            move(source, destination)
    return destination.version


with banyan.World() as world:
    if len(sys.argv) > 1:  # an engine
        with world.connect(sys.argv[1], os.environ["SECRET"]) as joined:
            print(f"rank {world.rank} holds version {reshard(joined)}", flush=True)
        sys.exit()
    with world.listen(os.environ["SECRET"]) as listener:
        if world.rank == 0:
            print(f"engines connect to {listener.address}", flush=True)
        served = 0
        # A rank may see an engine end that another rank has served: they agree on the number.
        while min(world.gather(bytes([served]))) < bytes([SERVED]):  # a trainer would do a step
            engine = listener.accept()
            if engine is None:
                time.sleep(0.1)
                continue
            try:
                with engine:
                    reshard(engine)
                    if world.rank == 0:
                        print(f"served an engine of {engine.size - world.size} ranks", flush=True)
                served += 1
            except (banyan.PeerLost, banyan.Aborted) as error:
                print(f"an engine has gone: {error}", flush=True)
