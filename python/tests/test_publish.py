"""Engines that follow the versions of a publication, whose elements tell their version."""

from __future__ import annotations

import math
import os
import secrets
import signal
import tempfile
import threading
import unittest
from typing import Any

import numpy as np

import banyan
from ranks import FileStore, open_side, run

SHAPE = (240, 90)
SECRET = secrets.token_hex(16)
TRAINERS, ENGINES, VERSIONS = 2, 3, 6


def values(version: int) -> np.ndarray[Any, Any]:
    """The global tensor of a version: every 31st element is new in each."""
    index = np.arange(math.prod(SHAPE))
    changed_in = np.zeros_like(index)
    for changes in range(1, version + 1):
        changed_in[(index * 7919 + changes) % 31 == 0] = changes
    return (index * 100 + changed_in).reshape(SHAPE).astype(np.float32)


def layout_of(world: banyan.World, dim: int) -> banyan.Layout:
    layout = banyan.Layout()
    mesh = banyan.Mesh((world.size,))
    layout.add_sharded("weight", "float32", SHAPE, mesh, [banyan.Shard(dim)], world.rank)
    return layout


def piece_of(layout: banyan.Layout, version: int) -> np.ndarray[Any, Any]:
    (piece,) = layout.pieces
    return np.ascontiguousarray(values(version)[piece.box.slices])


def train(world: banyan.World, store: FileStore) -> None:
    layout = layout_of(world, 0)
    publication = banyan.Publication(
        layout, world, SECRET, name="weights", patience=30, keep_on_host=True, stream=None
    )
    with publication:
        assert publication.version == 0
        if world.rank == 0:
            store.set("address", publication.address)
        weight = piece_of(layout, 0)
        for version in range(1, VERSIONS + 1):
            weight[...] = piece_of(layout, version)
            report = publication.publish({"weight": weight}, version)
            weight[...] = -1  # it may be overwritten
            assert report.elems == weight.size
            assert version == 1 or 0 < report.changed < weight.size / 20
            assert report.waited >= 0 and report.compared > 0
            store.get(f"committed {version}")
        try:
            publication.publish({"weight": weight}, VERSIONS)
        except banyan.Invalid as error:
            assert f"version {VERSIONS} is published after version {VERSIONS}" in str(error)
        else:
            raise AssertionError("a version can be published twice")
        assert publication.version == VERSIONS and publication.sent_bytes > 0
        store.get("done")


def serve(world: banyan.World, store: FileStore) -> None:
    layout = layout_of(world, 1)
    weight = np.full(piece_of(layout, 0).shape, -2, np.float32)
    tensors = banyan.Tensors(layout, {"weight": weight})
    address = store.get("address").decode()
    try:
        banyan.Subscription(layout, tensors, world, address, SECRET, stream=4096)
    except banyan.Invalid as error:
        assert "without a stream" in str(error), error
    else:
        raise AssertionError("tensors in host memory take a stream")
    subscription = banyan.Subscription(
        layout, tensors, world, address, SECRET, name="weights", verify=True, keep_previous=True
    )
    with subscription:
        try:
            tensors.close()
        except BufferError:
            pass
        else:
            raise AssertionError("tensors of a subscription can be closed")
        version = 0
        for expected in range(1, VERSIONS + 1):
            assert subscription.wait(version, 60) == expected
            while version < expected:  # another rank may not have it yet
                version = subscription.commit()
            assert tensors.state == "whole" and tensors.version == version
            np.testing.assert_array_equal(weight, piece_of(layout, version))
            if version == VERSIONS:
                assert subscription.rollback() == version - 1
                np.testing.assert_array_equal(weight, piece_of(layout, version - 1))
                try:
                    subscription.rollback()
                except banyan.NotFound as error:
                    assert "nothing is kept" in str(error)
                else:
                    raise AssertionError("a version can be taken back twice")
            world.barrier()
            if world.rank == 0:
                store.set(f"committed {version}", "yes")
        subscription.check()
        assert subscription.is_connected and subscription.received_bytes > 0
        assert (subscription.whole_fetches, subscription.delta_fetches) == (1, VERSIONS - 1)
        try:
            subscription.wait(VERSIONS, 0.3)
        except banyan.Timeout as error:
            assert f"waited 0.3 s for a version above {VERSIONS}" in str(error), error
        else:
            raise AssertionError("a version came from nowhere")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            subscription.wait(VERSIONS, 60)
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("a version came from nowhere")
        if world.rank == 0:
            store.set("done", "yes")
    np.testing.assert_array_equal(weight, piece_of(layout, VERSIONS - 1))


def raw_follow(rank: int, count: int, unique_id: banyan.UniqueId, folder: str) -> None:
    del unique_id, count
    world, store, trains = open_side(rank, folder, TRAINERS, ENGINES)
    (train if trains else serve)(world, store)
    world.close()


def rounded_of(layout: banyan.Layout, version: int) -> np.ndarray[Any, Any]:
    """Float32 values that float16 has, too."""
    return piece_of(layout, version) % 977


def train_in_float32(world: banyan.World, store: FileStore) -> None:
    layout = layout_of(world, 0)
    published = banyan.Layout()
    mesh = banyan.Mesh((world.size,))
    published.add_sharded("weight", "float16", SHAPE, mesh, [banyan.Shard(1)], world.rank)
    try:
        banyan.Publication(layout, world, SECRET, transform=banyan.Cast())
    except banyan.Invalid as error:
        assert "needs the layout that it publishes" in str(error), error
    else:
        raise AssertionError("a transform needs a published layout")
    eights = banyan.Layout()
    eights.add_sharded("weight", "float8_e4m3fn", SHAPE, mesh, [banyan.Shard(0)], world.rank)
    try:
        banyan.Publication(
            layout, world, SECRET, published=eights, transform=banyan.Mxfp8(), scales_suffix=".s"
        )
    except banyan.NotFound as error:
        assert '"weight.s"' in str(error), error
    else:
        raise AssertionError("MXFP8 needs scales")
    try:
        banyan.Publication(layout, world, SECRET, compression="some")
    except ValueError as error:
        assert '"automatic", "off" or "always"' in str(error), error
    else:
        raise AssertionError("any word is a compression")
    publication = banyan.Publication(
        layout,
        world,
        SECRET,
        published=published,
        transform=banyan.Cast(),
        max_converted_bytes=1 << 20,
        compression="always",
    )
    with publication:
        if world.rank == 0:
            store.set("address", publication.address)
        for version in (1, 2):
            weight = rounded_of(layout, version)
            weight += np.where(weight >= 512, np.float32(version / 256), 0)  # less than a half step
            report = publication.publish({"weight": weight}, version)
            weight[...] = -1
            assert report.converted > 0
            assert version == 1 or 0 < report.changed < report.elems / 20
            store.get(f"committed {version}")
        store.get("done")


def serve_in_float16(world: banyan.World, store: FileStore) -> None:
    layout = banyan.Layout()
    mesh = banyan.Mesh((world.size,))
    layout.add_sharded("weight", "float16", SHAPE, mesh, [banyan.Shard(0)], world.rank)
    weight = np.zeros(piece_of(layout, 0).shape, np.float16)
    address = store.get("address").decode()
    with banyan.Subscription(layout, {"weight": weight}, world, address, SECRET) as subscription:
        version = 0
        for expected in (1, 2):
            subscription.wait(expected - 1, 60)
            while version < expected:
                version = subscription.commit()
            np.testing.assert_array_equal(weight, rounded_of(layout, version))
            world.barrier()
            if world.rank == 0:
                store.set(f"committed {version}", "yes")
        if world.rank == 0:
            store.set("done", "yes")


def raw_convert(rank: int, count: int, unique_id: banyan.UniqueId, folder: str) -> None:
    del unique_id, count
    world, store, trains = open_side(rank, folder, TRAINERS, ENGINES)
    (train_in_float32 if trains else serve_in_float16)(world, store)
    world.close()


class PublishTest(unittest.TestCase):
    def test_a_publication_converts(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run(TRAINERS + ENGINES, raw_convert, folder)

    def test_an_engine_follows_every_version(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run(TRAINERS + ENGINES, raw_follow, folder)


if __name__ == "__main__":
    unittest.main()
