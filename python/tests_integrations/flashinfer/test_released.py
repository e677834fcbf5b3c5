"""Beside FlashInfer's release: its interface, its errors, its NCCL modes, and its own unit test.

The package needs GPUs when it is imported. So this test reads its source, and takes from it what
runs on the host: the enumerations, the grid, the checks, and the modes through torch.distributed.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import itertools
import os
import sys
import tempfile
import types
import unittest
import urllib.request
from pathlib import Path
from typing import Any

from groups import DEVICE, dist, run, torch

import banyan.integrations.flashinfer as ours

SPEC = importlib.util.find_spec("flashinfer")
if SPEC is None or SPEC.origin is None:
    print("skipped: flashinfer-python is not installed")
    sys.exit(77)
SOURCE = (Path(SPEC.origin).parent / "comm/mixed_comm.py").read_text()
TREE = ast.parse(SOURCE)
DEFINED = {one.name: one for one in TREE.body if isinstance(one, (ast.ClassDef, ast.FunctionDef))}
VERSION = "v0.7.2.post1"
UNIT_TEST = (
    "https://raw.githubusercontent.com/flashinfer-ai/flashinfer/"
    f"{VERSION}/tests/comm/test_mixed_comm.py"
)
Op, Mode = ours.MixedCommOp, ours.MixedCommMode


def taken(*names: str) -> dict[str, Any]:
    """Return definitions of the release, without their decorators."""
    space: dict[str, Any] = {
        "torch": torch,
        "enum": __import__("enum"),
        "product": itertools.product,
        "MixedCommHandler": object,
    }
    for name in ("MixedCommOp", "MixedCommMode", "ParallelInfo", *names):
        node = DEFINED[name]
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = []
        exec(compile(ast.Module([node], []), "mixed_comm.py", "exec"), space)
    return space


def arguments(node: ast.FunctionDef) -> list[tuple[str, Any]]:
    """Return names and defaults of a function's arguments, without self."""
    names = [one.arg for one in node.args.args]
    values = [ast.literal_eval(one) for one in node.args.defaults]
    defaults = [inspect.Parameter.empty] * (len(names) - len(values)) + values
    return [one for one in zip(names, defaults, strict=True) if one[0] != "self"]


def own_arguments(function: Any) -> list[tuple[str, Any]]:
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD,)
    return [
        (one.name, one.default) for one in parameters if one.kind in kinds and one.name != "self"
    ]


def grids(size: int) -> list[tuple[int, int, int]]:
    """Return nodes, local_tp and inter_tp of all grids of so many ranks."""
    return [
        (nodes, local_tp, inter_tp)
        for nodes in range(1, size)
        if size % nodes == 0
        for local_tp in range(1, size // nodes + 1)
        if size // nodes % local_tp == 0
        for inter_tp in range(1, nodes + 1)
        if nodes % inter_tp == 0
    ]


def grid_arguments(rank: int, size: int, grid: tuple[int, int, int]) -> dict[str, int]:
    nodes, local_tp, inter_tp = grid
    local = size // nodes
    return {
        "world_rank": rank,
        "world_size": size,
        "local_rank": rank % local,
        "local_size": local,
        "inter_rank": rank // local,
        "inter_size": nodes,
        "local_tp_size": local_tp,
        "local_dp_size": local // local_tp,
        "inter_tp_size": inter_tp,
        "inter_dp_size": nodes // inter_tp,
    }


def reference(
    theirs: dict[str, Any], handler: Any, info: Any, op: Any, mode: Any, x: torch.Tensor
) -> torch.Tensor:
    """Run the release's functions over torch.distributed."""
    tp, dp = handler.tp_comm_group, handler.dp_comm_group
    reduce, gather = theirs["_nccl_allreduce"], theirs["_nccl_allgather"]
    scatter = theirs["_nccl_reducescatter"]
    single = {Op.ALLREDUCE: reduce, Op.ALLGATHER: gather, Op.REDUCESCATTER: scatter}
    if op in single:
        return single[op](x, None)
    if mode == Mode.NCCL_ONE:
        return theirs[f"_nccl_{op.name.lower()}"](x, None, info)
    if op == Op.ALLREDUCE_ALLGATHER:
        return gather(reduce(x, None, group=tp), None, group=dp)
    return reduce(scatter(x, None, group=dp), None, group=tp)


def nccl_modes(rank: int) -> int:
    """Compare all modes of all grids with the release's modes of NCCL."""
    size = dist.get_world_size()
    theirs = taken(
        "_nccl_allreduce",
        "_nccl_allgather",
        "_nccl_reducescatter",
        "_nccl_allreduce_allgather",
        "_nccl_reducescatter_allreduce",
    )
    compared = 0
    for grid in grids(size):
        given = grid_arguments(rank, size, grid)
        info = theirs["ParallelInfo"](**given)
        handler = ours.MixedCommHandler(
            **given, dtype=torch.float32, device=torch.device("cpu"), use_autotune=False
        )
        x = torch.randint(-64, 64, (4 * info.dp_size, 6)).float()  # sums without rounding
        modes = {Mode.NCCL_ONE, Mode.NCCL_TP_DP}.intersection(handler.valid_mode_list)
        assert len(modes) == 1 + info.use_mixed
        for op, mode in itertools.product(handler.valid_op_list, modes):
            wanted = reference(theirs, handler, info, op, mode, x)
            for one in handler.valid_mode_list:
                found = ours.run_mixed_comm(op, handler, x, mode=one)
                assert torch.equal(found, wanted), f"{grid} {op.name} {one.name}"
            compared += 1
        handler.shutdown()
    return compared


def attributes() -> set[str]:
    """Return the public attributes and methods of the release's handler."""
    handler = DEFINED["MixedCommHandler"]
    assert isinstance(handler, ast.ClassDef)
    names = {one.name for one in handler.body if isinstance(one, ast.FunctionDef)}
    for one in ast.walk(handler):
        if (
            isinstance(one, ast.Attribute)
            and isinstance(one.ctx, ast.Store)
            and ast.unparse(one.value) == "self"
        ):
            names.add(one.attr)
    return {name for name in names if not name.startswith("_")}


def has_attributes(rank: int) -> list[str]:
    """Return what a handler of ours lacks. Each of these has a reason in its error."""
    handler = ours.MixedCommHandler(
        **grid_arguments(rank, 4, (2, 2, 1)),
        dtype=torch.float32,
        device=torch.device("cpu"),
        use_autotune=False,
    )
    lacks = []
    for name in sorted(attributes()):
        try:
            getattr(handler, name)
        except AttributeError as error:
            assert f"MixedCommHandler.{name} describes the kernels of FlashInfer" in str(error)
            lacks.append(name)
    assert not hasattr(handler, "unknown")
    handler.shutdown()
    return lacks


def checks(rank: int) -> None:
    """The same wrong tensors get the same errors."""
    check = taken("_common_check")["_common_check"]
    given = grid_arguments(rank, 4, (1, 2, 1))
    handler = ours.MixedCommHandler(
        **given, dtype=torch.float16, device=torch.device("cpu"), use_autotune=False
    )
    shapes = [(4, 8), (3, 8), (8, 8), (2, 8), (4, 7), (4,), (4, 2, 4)]
    tensors = [torch.zeros(shape, dtype=torch.float16) for shape in shapes]
    tensors += [torch.zeros(4, 8), torch.zeros(8, 8, dtype=torch.bfloat16)]
    tensors += [torch.zeros(4, 8, dtype=torch.float16, device="meta")]
    differ = 0
    for op, mode in itertools.product(Op, (None, *Mode)):
        for x_in, x_out in itertools.product(tensors, [None, *tensors]):
            texts = []
            for call in (check, ours._handler._check):
                try:
                    call(op, handler, x_in, x_out, mode)
                    texts.append("")
                except ValueError as error:
                    texts.append(str(error))
            assert texts[0] == texts[1], f"{op!r} {mode!r} {x_in.shape}: {texts}"
            differ += texts[0] != ""
    assert differ > 1000
    handler.shutdown()


# ---- the release's own unit test ----


def unit_test() -> str:
    """Return the text of the release's unit test: from a checkout, or from GitHub."""
    folder = os.environ.get("BANYAN_FLASHINFER")
    if folder:
        return Path(folder, "tests/comm/test_mixed_comm.py").read_text()
    with urllib.request.urlopen(UNIT_TEST, timeout=20) as answer:
        return str(answer.read().decode())


class Torch(types.ModuleType):
    """PyTorch for a test that has GPUs in mind: its devices are the host.

    Its backend is Banyan's: Gloo does not gather into a tensor of another shape, as NCCL does.
    """

    def __init__(self) -> None:
        super().__init__("torch")
        self.cuda = types.SimpleNamespace(set_device=lambda rank: None)
        self.distributed = types.SimpleNamespace(**vars(dist))
        self.distributed.init_process_group = self.init_process_group

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def device(self, kind: Any, *index: Any) -> torch.device:
        return torch.device("cpu")

    def init_process_group(self, backend: str, device_id: Any = None, **options: Any) -> None:
        dist.init_process_group("banyan", **options)


def play(text: str, local_size: int, nodes: int, dtype: torch.dtype) -> None:
    """Run the unit test's worker on every rank, with smaller tensors."""
    for before, after in (
        ("max_local_bs = 4096", "max_local_bs = 12"),
        ("num_data = 100", "num_data = 4"),
        ("hidden_size = 8192", "hidden_size = 256"),
    ):
        assert before in text, before
        text = text.replace(before, after)
    modules = {name: types.ModuleType(name) for name in ("flashinfer", "flashinfer.utils")}
    modules["flashinfer.utils"].get_compute_capability = None  # type: ignore[attr-defined]
    modules["flashinfer.comm"] = types.ModuleType("flashinfer.comm")
    modules["flashinfer.comm.mixed_comm"] = ours
    with tempfile.TemporaryDirectory() as folder:
        workers = []
        for rank in range(local_size * nodes):
            worker = os.fork()
            if worker == 0:
                try:
                    sys.modules |= modules | {"torch": Torch()}
                    space: dict[str, Any] = {"__name__": "test_mixed_comm"}
                    exec(compile(text, "test_mixed_comm.py", "exec"), space)
                    store = f"file://{folder}/store"
                    place = (rank % local_size, local_size, rank // local_size, nodes)
                    sys.modules["torch"] = torch
                    space["_run_worker"](*place, dtype, store)
                    os._exit(0)
                except BaseException:
                    sys.excepthook(*sys.exc_info())
                    os._exit(1)
            workers.append(worker)
        codes = [os.waitstatus_to_exitcode(os.waitpid(one, 0)[1]) for one in workers]
    assert codes == [0] * len(codes), f"{local_size} ranks on {nodes} nodes: {codes}"


class ReleasedTest(unittest.TestCase):
    def test_the_interface_is_that_of_the_release(self) -> None:
        theirs = taken()
        for name in ("MixedCommOp", "MixedCommMode"):
            self.assertEqual(
                [(one.name, int(one)) for one in theirs[name]],
                [(one.name, int(one)) for one in getattr(ours, name)],
            )
        handler = DEFINED["MixedCommHandler"]
        assert isinstance(handler, ast.ClassDef)
        functions = {one.name: one for one in handler.body if isinstance(one, ast.FunctionDef)}
        for name in (
            "__init__",
            "get_valid_op_list",
            "get_valid_mode_list",
            "run_autotune",
            "select_autotune_mode",
            "checkpoint_prepare",
            "checkpoint_restore",
            "shutdown",
        ):
            wanted = arguments(functions[name])
            self.assertEqual(own_arguments(getattr(ours.MixedCommHandler, name)), wanted, name)
        run_node = DEFINED["run_mixed_comm"]
        assert isinstance(run_node, ast.FunctionDef)
        self.assertEqual(own_arguments(ours.run_mixed_comm), arguments(run_node))

    @unittest.skipUnless(DEVICE == "cpu", "runs on the host")
    def test_attributes_are_those_of_the_release(self) -> None:
        self.assertGreater(len(attributes()), 45)
        lacks = run(4, has_attributes)[0]
        self.assertEqual(list(ours._handler._INTERNALS), lacks)
        page = (Path(__file__).resolve().parents[3] / "docs/flashinfer.md").read_text()
        for name in lacks:
            self.assertIn(f"`{name}`", page)

    def test_grids_are_those_of_the_release(self) -> None:
        theirs = taken()["ParallelInfo"]
        names = [one for one in dir(theirs) if one.endswith(("_rank", "_size")) or "use_" in one]
        lists = [one for one in dir(theirs) if one.endswith("local_ranks")]
        self.assertGreater(len(names), 20)
        for size in (2, 4, 6, 8):
            for grid, rank in itertools.product(grids(size), range(size)):
                given: dict[str, Any] = grid_arguments(rank, size, grid)
                for hidden in ((), ("local_tp_size",), ("local_dp_size", "inter_tp_size")):
                    given |= dict.fromkeys(hidden)
                    one, other = theirs(**given), ours.ParallelInfo(**given)
                    for name in names:
                        if not name.startswith("_"):
                            self.assertEqual(getattr(other, name), getattr(one, name), name)
                    for name in lists:
                        self.assertEqual(getattr(other, name)(), getattr(one, name)(), name)

    @unittest.skipUnless(DEVICE == "cpu", "runs on the host")
    def test_modes_of_torch_distributed(self) -> None:
        for size in (2, 4, 6):
            self.assertGreater(run(size, nccl_modes)[0], 2)

    @unittest.skipUnless(DEVICE == "cpu", "runs on the host")
    def test_errors_are_those_of_the_release(self) -> None:
        run(4, checks, backend="gloo")

    @unittest.skipUnless(DEVICE == "cpu", "runs on the host")
    def test_its_own_unit_test(self) -> None:
        try:
            text = unit_test()
        except OSError as error:
            self.skipTest(f"FlashInfer's unit test cannot be read: {error}")
        half, brain = torch.float16, torch.bfloat16
        for local_size, nodes, dtypes in (
            (2, 1, (half, brain)),
            (4, 1, (brain,)),
            (2, 2, (half,)),
            (2, 3, (brain,)),
            (4, 2, (half,)),
        ):
            for dtype in dtypes:
                play(text, local_size, nodes, dtype)


if __name__ == "__main__":
    unittest.main()
