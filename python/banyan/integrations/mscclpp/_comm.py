"""Groups of ranks: MSCCL++'s bootstrap and communicator over a world."""

from __future__ import annotations

from typing import Any

import banyan

from ._errors import Error, ErrorCode, translated


class UniqueId:
    """Addresses and the secret of a new group; pickle it to send it to the other ranks."""

    def __init__(self) -> None:
        """Make a new id. This process must keep it until all ranks have met."""
        with translated():
            self._id = banyan.UniqueId()

    def __getstate__(self) -> bytes:
        return bytes(self._id)

    def __setstate__(self, state: bytes) -> None:
        self._id = banyan.UniqueId.from_bytes(state)


class TcpBootstrap:
    """The ranks of a group, as one of them sees it, over a ``banyan.World``."""

    def __init__(self, rank: int, nRanks: int) -> None:
        """As ``create``."""
        if not 0 <= rank < nRanks:
            raise Error(ErrorCode.InvalidUsage, f"rank {rank} is not in a group of {nRanks} ranks")
        self._rank, self._size = rank, nRanks
        self._id: UniqueId | None = None
        self._world: banyan.World | None = None

    @staticmethod
    def create(rank: int, nRanks: int) -> TcpBootstrap:
        """Return a rank that has not met the others yet."""
        return TcpBootstrap(rank, nRanks)

    def create_unique_id(self) -> UniqueId:
        """Return a new id, which this process must keep until all ranks have initialized."""
        self._id = UniqueId()
        return self._id

    def get_unique_id(self) -> UniqueId:
        """Return the id that was created, or with which the group was initialized."""
        if self._id is None:
            raise Error(ErrorCode.InvalidUsage, "the bootstrap has no unique id yet")
        return self._id

    def initialize(self, unique_id: UniqueId | str, timeout_sec: int = 30) -> None:
        """Meet the other ranks, with an id of rank 0 or "interface:address:port". Collective.

        The interface is that of the address. ``timeout_sec``: of this call.
        """
        if self._world is not None:
            raise Error(ErrorCode.InvalidUsage, "the bootstrap is initialized already")
        with translated():
            if isinstance(unique_id, str):
                world = self._meet_at(unique_id, timeout_sec)
            else:
                self._id = unique_id
                world = banyan.World(
                    self._rank, self._size, unique_id=unique_id._id, timeout=timeout_sec
                )
            world.timeout = None
        self._world = world

    def _meet_at(self, trio: str, timeout: int) -> banyan.World:
        """Open the world of "interface:address:port"."""
        _, first, rest = trio.partition(":")
        address, last, port = rest.rpartition(":")
        if not first or not last or not port.isdigit():
            raise Error(ErrorCode.InvalidUsage, f'"{trio}" is not "interface:address:port"')
        return banyan.World(
            self._rank, self._size, address=address, port=int(port), timeout=timeout
        )

    def _adopt(self, world: banyan.World) -> TcpBootstrap:
        """Use a world that is open."""
        self._world = world
        return self

    @property
    def world(self) -> banyan.World:
        """World of the ranks. MSCCL++ has no such attribute."""
        if self._world is None:
            raise Error(ErrorCode.InvalidUsage, "the bootstrap is not initialized")
        return self._world

    def get_rank(self) -> int:
        """Return this rank's number."""
        return self._rank

    def get_n_ranks(self) -> int:
        """Return the number of ranks."""
        return self._size

    def get_n_ranks_per_node(self) -> int:
        """Return the number of ranks of this node."""
        return self.world.local_size

    def get_n_ranks_per_ipc_domain(self) -> int:
        """Return the number of ranks that reach each other's memory: those of this node."""
        return self.world.local_size

    def barrier(self) -> None:
        """Wait until all ranks have called this. Collective."""
        with translated():
            self.world.barrier()


class Communicator:
    """The connection of an executor with the other ranks."""

    def __init__(self, bootstrap: TcpBootstrap) -> None:
        """Take a bootstrap, which may be initialized later."""
        self._bootstrap = bootstrap

    def bootstrap(self) -> TcpBootstrap:
        """Return the bootstrap."""
        return self._bootstrap


class CommGroup:
    """The ranks of a program. Collective.

    One of ``mpi_comm`` (of mpi4py), ``torch_group`` (of torch.distributed, on any device) and
    ``interfaceIpPortTrio`` with ``rank`` and ``size`` tells which. Attributes: ``bootstrap``,
    ``communicator``, ``my_rank``, ``nranks``, ``nranks_per_node``, ``nranks_per_ipc_domain`` and
    ``ipc_domain_n_ranks``. Raises RuntimeError if nothing was given.
    """

    def __init__(
        self,
        mpi_comm: Any = None,
        torch_group: Any = None,
        interfaceIpPortTrio: str = "",
        rank: int | None = None,
        size: int | None = None,
    ) -> None:
        """Meet the other ranks."""
        if interfaceIpPortTrio != "":
            assert rank is not None and size is not None and rank >= 0 and size >= 1
            self.bootstrap = TcpBootstrap.create(rank, size)
            self.bootstrap.initialize(interfaceIpPortTrio)
        elif mpi_comm is not None:
            self.bootstrap = TcpBootstrap.create(mpi_comm.Get_rank(), mpi_comm.Get_size())
            mine = self.bootstrap.create_unique_id() if mpi_comm.Get_rank() == 0 else None
            self.bootstrap.initialize(mpi_comm.bcast(mine, 0))
        elif torch_group is not None:
            from banyan.torch import world

            group = TcpBootstrap.create(torch_group.rank(), torch_group.size())
            with translated():
                self.bootstrap = group._adopt(world(torch_group))
        else:
            raise RuntimeError("Either the interface or mpi_group need to be specified")
        self.communicator = Communicator(self.bootstrap)
        self.my_rank = self.bootstrap.get_rank()
        self.nranks = self.bootstrap.get_n_ranks()
        self.nranks_per_node = self.bootstrap.get_n_ranks_per_node()
        self.nranks_per_ipc_domain = self.bootstrap.get_n_ranks_per_ipc_domain()
        self.ipc_domain_n_ranks = self.nranks_per_ipc_domain

    def barrier(self) -> None:
        """Wait until all ranks have called this. Collective."""
        self.bootstrap.barrier()
