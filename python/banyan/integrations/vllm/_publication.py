"""The trainers' side of subscriptions: a publication of the shards of all trainer ranks."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from ... import Layout, Publication, PublishReport, World
from ..._reshard import agree
from ...torch import world as world_of
from .. import _updates as updates
from ._source import reader_of


class WeightPublication:
    """The versions of the trainers' weights, which engines of vLLM fetch while they serve.

    Make it on every trainer rank. The trainers call no engine, and do not know how many there are:
    engines subscribe by address and secret (``WeightSubscription``). The weights are in host
    memory. The publication keeps a copy of each rank's shards.
    """

    def __init__(
        self,
        source: Any,
        address: str | None,
        secret: str | None,
        *,
        name: str = "",
        group: dist.ProcessGroup | None = None,
        **options: Any,
    ) -> None:
        """Listen for engines. Collective over the trainers.

        ``source``: a ShardSource or any WeightSource of vLLM, as for ``trainer_init``. ``address``,
        ``secret``: of rank 0, such as "10.0.0.5:4711" and ``secrets.token_hex(16)``; who has both
        can read the weights. With a fixed port, engines find trainers that were started again.
        ``name``: engines must give the same. ``group``: of the trainers; None: the default process
        group, or this process alone. ``options``: of ``banyan.Publication``.

        Raises on all ranks if one of them cannot read its source.
        """
        self._own = World(0, 1) if group is None and not dist.is_initialized() else None
        world = self._own if self._own is not None else world_of(group)
        self._reader = reader_of(source)
        read: list[Layout] = []

        def read_source() -> bytes:
            read.append(self._reader.part(world.rank).layout)
            return b""

        agree(world, read_source)
        (layout,) = read
        self._names = [one.name for one in layout.tensors]
        self.tensors = updates.published(world, layout)
        """Name, type and shape of each global tensor, for ``WeightSubscription(tensors=...)``."""
        self.publication = Publication(layout, world, secret, address, name=name, **options)
        """The ``banyan.Publication``, with its counters."""

    @property
    def address(self) -> str:
        """The address for engines."""
        return self.publication.address

    def publish(self, version: int) -> PublishReport:
        """Publish the weights as they are now, as a version above the one before.

        Collective. Returns when the weights may change again. No engine takes part.
        """
        tensors = self._reader.tensors()
        return self.publication.publish({name: tensors[name] for name in self._names}, version)

    def close(self) -> None:
        """End the publication. Engines go on with the version that they have. Collective."""
        self.publication.close()
        if self._own is not None:
            self._own.close()

    def __enter__(self) -> WeightPublication:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()
