"""Check the package where it is installed: installed.py MODULE...

Needs the package alone, without NumPy. MODULE: modules of libbanyan that the wheel must have, such
as cuda. Its processes are started by the command of the package.
"""

from __future__ import annotations

import importlib.metadata
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import banyan
from banyan import _command

FOLDER = Path(banyan.__file__).parent
COMMAND = Path(sys.executable).parent / "banyan"
RANKS = 4

#: An all-gather of two ranks in MSCCL++'s language.
SCRIPT = """
from mscclpp.language.channel import *
from mscclpp.language.rank import *
from mscclpp.language.general import *
from mscclpp.language.program import *
from mscclpp.language.collectives import *

with CollectiveProgram("exchange", AllGather(2, 1, False), 2) as program:
    for me in range(2):
        own = Rank(me).get_input_buffer()[:]
        Rank(me).copy(Rank(me).get_output_buffer()[me : me + 1], own, tb=0)
        channel = MemoryChannel(1 - me, me)
        channel.signal(tb=0, relaxed=True)
        channel.wait(tb=0, relaxed=True)
        channel.put(Rank(1 - me).get_output_buffer()[me : me + 1], own, tb=0)
        channel.signal(tb=0, data_sync=SyncType.before)
        channel.wait(tb=0, data_sync=SyncType.after)
    print(JSON())
"""


def floats(values: list[float]) -> memoryview[Any]:
    view: memoryview[Any] = memoryview(bytearray(struct.pack(f"{len(values)}f", *values)))
    return view.cast("B").cast("f")


def rank() -> None:
    """Reduce and reshard between the ranks of a job."""
    with banyan.World() as world:
        me = world.rank
        assert world.size == RANKS
        data = floats([me + 10.0 * i for i in range(16)])
        banyan.Communicator(world).all_reduce(data)
        assert list(data) == [sum(r + 10.0 * i for r in range(RANKS)) for i in range(16)]

        mesh = banyan.Mesh((RANKS,))
        rows, columns = banyan.Layout(), banyan.Layout()
        for layout, dim in ((rows, 0), (columns, 1)):
            layout.add_sharded("w", "float32", (8, 8), mesh, [banyan.Shard(dim)], me)
        # Element (i, j) is 8 i + j. This rank has rows 2 me, 2 me + 1, and wants columns likewise.
        source = floats([16.0 * me + i for i in range(16)])
        into = floats([-1.0] * 16)
        shapes = [source.cast("B").cast("f", (2, 8)), into.cast("B").cast("f", (8, 2))]
        with banyan.Reshard(rows, columns, world) as reshard:
            reshard({"w": shapes[0]}, {"w": shapes[1]})
        assert list(into) == [8.0 * i + 2 * me + j for i in range(8) for j in range(2)]


def check(modules: list[str]) -> None:
    """Check the folder, the commands, a job, and a program."""
    distribution = importlib.metadata.distribution("banyan")
    assert distribution.version == banyan.__version__ == banyan.version()
    assert FOLDER.is_relative_to(sys.prefix), FOLDER
    for name in ["py.typed", "_core.pyi", "banyan", *(f"libbanyan_{m}.so" for m in modules)]:
        assert (FOLDER / name).is_file(), f"{name} is not in {FOLDER}"
    assert _command._executable() == str(FOLDER / "banyan")
    for command in ([COMMAND], [sys.executable, "-m", "banyan"]):
        done = subprocess.run([*command, "algo", "list"], capture_output=True, text=True)
        assert done.returncode == 0 and "allreduce_ring" in done.stdout, done
    done = subprocess.run(
        [COMMAND, "launch", "-n", str(RANKS), "--", sys.executable, __file__, "rank"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "exchange.py").write_text(SCRIPT)
        done = subprocess.run(
            [COMMAND, "compat", "mscclpp", folder],
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": "/usr/bin:/bin"},  # no Python that has the package
        )
        assert "exchange.py: 2 ranks" in done.stdout and ": sound" in done.stdout, done
    names: dict[str, Any] = {}
    exec(SCRIPT.replace("mscclpp.language", "banyan.language").replace("print", "str"), names)
    assert names["program"].check().is_sound
    assert names["program"].view().svg().startswith("<svg")
    assert not {"numpy", "torch"} & set(sys.modules)


if __name__ == "__main__":
    if sys.argv[1:] == ["rank"]:
        rank()
    else:
        check(sys.argv[1:])
        print(f"{FOLDER}: works")
