"""Banyan for SGLang: a weight loader that trainers fill, without a tensor in the request.

Start SGLang with ``--custom-weight-loader banyan.integrations.sglang.load``. Trainers make a
``Trainer``, whose ``update`` passes a handle to SGLang's ``update_weights_from_tensor``. The
weights go from the trainers' memory into the parameters of every worker.
"""

from __future__ import annotations

from ._trainer import LOAD_FORMAT, Trainer

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn

__all__ = ["LOAD_FORMAT", "Trainer", "load"]


def load(model: nn.Module, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Fill a model's parameters from trainers: a custom weight loader of SGLang.

    SGLang calls it on every worker with the handle of ``Trainer.update`` in place of weights. The
    first call joins the trainers and learns, from the model's own loader, where each element
    belongs. Raise Unsupported, with the names, if the loader cannot be followed or the model is
    quantized, and Torn if the weights are of no single version. Collective over trainers and
    workers.
    """
    from . import _engine

    _engine.load(model, named_tensors)
