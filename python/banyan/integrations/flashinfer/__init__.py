"""FlashInfer's mixed communication on Banyan, on the host, too, in float32, and without multicast.

Replace one import::

    from banyan.integrations.flashinfer import (  # was: flashinfer.comm.mixed_comm
        MixedCommHandler, MixedCommMode, MixedCommOp, run_mixed_comm,
    )

Names, arguments, attributes and errors are those of FlashInfer 0.7.2.
"""

from __future__ import annotations

from ._handler import MixedCommHandler, run_mixed_comm
from ._info import MixedCommMode, MixedCommOp, ParallelInfo

__all__ = ["MixedCommHandler", "MixedCommMode", "MixedCommOp", "ParallelInfo", "run_mixed_comm"]
