import banyan

with banyan.World() as world:
    # The trainer shards a matrix by rows, the engine by columns.
    mesh, shape, rank = banyan.Mesh((world.size,)), (4096, 4096), world.rank
    trainer, engine = banyan.Layout(), banyan.Layout()
    trainer.add_sharded("weight", "bfloat16", shape, mesh, [banyan.Shard(0)], rank)
    engine.add_sharded("weight", "bfloat16", shape, mesh, [banyan.Shard(1)], rank)
    source = banyan.Tensors.alloc(trainer, world)  # or your tensors: {"weight": tensor}
    destination = banyan.Tensors.alloc(engine, world)
    with banyan.Reshard(trainer, engine, world) as reshard:  # once
        for step in range(3):  # after every training step
            reshard(source, destination)
    print(f"rank {rank} holds version {destination.version}")
