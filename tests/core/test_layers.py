"""Arrows only point down: a layer includes headers of layers below it, never of one above or beside it. The files of a
folder have an order: none needs a file that needs it."""

import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRANSPORTS = {"core", "world", "memory", "transport"}
BELOW = {
    "core": set(),
    "world": {"core"},
    "memory": {"core", "world"},
    "transport": {"core", "world", "memory"},
    "channel": TRANSPORTS,
    "copy": TRANSPORTS | {"channel"},
    "reshard": TRANSPORTS | {"channel", "copy"},
    "publish": TRANSPORTS | {"channel", "copy", "reshard"},
    # Plans are data: whoever reads one needs nothing else.
    "plan": {"core"},
    "program": {"core", "plan"},
    "check": {"core", "plan"},
    "simulate": {"core", "plan"},
    "execute": TRANSPORTS | {"channel", "plan"},
    "collective": TRANSPORTS | {"channel", "plan", "program", "execute"},
    "mixed": TRANSPORTS | {"channel", "plan", "program", "execute", "collective"},
    # Both halves of the picture meet: what a reshard moves, on a machine that is simulated.
    "forecast": TRANSPORTS | {"channel", "copy", "reshard", "plan", "simulate"},
}
LAYERS = list(BELOW)
# Optional engines stand outside the picture: they see the public API, what needs it alone, the module contract, and the
# headers that declare the tables which a device's module brings, and arithmetic that kernels share.
ENGINES = ["pmix", "mpi", "ucx", "cuda"]
CONTRACT = {"core/module.h", "core/status.h"}
TABLES = CONTRACT | {"core/device_report.h", "core/types/float_bits.h", "core/types/mxfp8_bits.h", "memory/device.h", "execute/device/engine.h", "execute/specialize/step_kind.h", "copy/direct/gpu_copy.h", "copy/pipeline/gpu_pipeline.h", "mixed/engine.h", "publish/delta/device.h", "publish/delta/form.h"}
PUBLIC = {
    "core": "core", "world": "world", "connect": "world", "memory": "memory", "transport": "transport",
    "copy": "copy", "pipeline": "copy", "layout": "reshard", "reshard": "reshard",
    "transform": "reshard", "checkpoint": "reshard", "rules": "reshard", "publish": "publish",
    "plan": "plan", "program": "program", "check": "check", "simulate": "simulate", "execute": "execute", "collective": "collective",
    "mixed": "mixed", "forecast": "forecast",
}
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.M)


def layer_of(include):
    """The layer a project header belongs to; None for headers of others."""
    parts = include.split("/")
    if parts[0] == "banyan" and len(parts) == 2:
        return PUBLIC.get(parts[1].removesuffix(".h"), "unknown header")
    if len(parts) >= 2 and parts[0] in LAYERS:
        return parts[0]
    return None


def problems():
    for path in sorted((ROOT / "include/banyan").glob("*.h")):
        if path.stem == "banyan":
            continue
        yield from check(path, PUBLIC.get(path.stem, "unknown header"))
    for layer in LAYERS:
        for path in sorted((ROOT / "src" / layer).rglob("*.[ch]")):
            yield from check(path, layer)
    for engine in ENGINES:
        allowed = TABLES if engine == "cuda" else CONTRACT
        for path in sorted((ROOT / "src" / engine).rglob("*.*")):
            for include in INCLUDE.findall(path.read_text()):
                if layer_of(include) and not include.startswith("banyan/") and include not in allowed:
                    yield f"{path.relative_to(ROOT)} includes {include}: a module sees the public API only"
    known = set(LAYERS + ENGINES)
    for folder in (ROOT / "src").iterdir():
        if folder.is_dir() and folder.name not in known:
            yield f"src/{folder.name} is not a layer of the picture"


def check(path, layer):
    if layer not in LAYERS:
        yield f"{path.relative_to(ROOT)} belongs to no layer"
        return
    for include in INCLUDE.findall(path.read_text()):
        other = layer_of(include)
        if other is None:
            continue
        if other != layer and other not in BELOW[layer]:
            yield f"{path.relative_to(ROOT)} ({layer}) includes {include} ({other})"


# A header and the source file of its name are one file here.
DEFINITION = re.compile(r"^(?!static\b)[a-z_][\w \*]*?[ \*](\w+)\([^;{]*?\)\n\{", re.M)
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
# Circles that are to be taken apart.
CIRCLES = {
    ("reshard/checkpoint", "call", "read saved"),
    ("reshard/layout", "call", "file file_text"),
    ("reshard/model", "call", "layout_pack layout_part"),
    ("reshard/rules", "call", "clause conditions parse rules"),
    ("reshard/rules", "include", "parse rules"),
    ("world", "call", "control wait world"),
    ("world", "include", "control world"),
    ("world/net", "call", "endpoint endpoint_loop"),
    ("world/net", "call", "reactor reactor_accept"),
}


def orders_of(folder):
    """For each file of a folder, the files of the folder that it includes; and those whose functions it names."""
    texts = {path: path.read_text() for path in folder.iterdir() if path.suffix in (".c", ".h", ".cu", ".cuh")}
    defined = {name: path.stem for path, text in texts.items() if path.suffix == ".c" for name in DEFINITION.findall(text)}
    includes, calls = collections.defaultdict(set), collections.defaultdict(set)
    for path, text in texts.items():
        headers = [ROOT / "src" / include for include in INCLUDE.findall(text)]
        includes[path.stem] |= {header.stem for header in headers if header.parent == folder} - {path.stem}
        if path.suffix == ".c":
            words = set(re.findall(r"\w+", STRING.sub("", text))) & defined.keys()
            calls[path.stem] |= {defined[word] for word in words} - {path.stem}
    return {"include": includes, "call": calls}


def reached_from(needs, start):
    """The files that a file needs, directly or through others."""
    reached, left = set(), [start]
    while left:
        for other in needs.get(left.pop(), set()) - reached:
            reached.add(other)
            left.append(other)
    return reached


def circles():
    for folder in sorted(path for path in (ROOT / "src").rglob("*") if path.is_dir()):
        for verb, needs in orders_of(folder).items():
            reached = {stem: reached_from(needs, stem) for stem in needs}
            for stem in sorted(reached):
                circle = sorted(other for other in reached[stem] if stem in reached.get(other, ()))
                if circle and stem == circle[0]:
                    yield str(folder.relative_to(ROOT / "src")), verb, " ".join(circle)


def circle_problems():
    found = set(circles())
    for folder, verb, files in sorted(found - CIRCLES):
        yield f"files of src/{folder} {verb} each other in a circle: {files}"
    for folder, verb, files in sorted(CIRCLES - found):
        yield f"CIRCLES of this test lists {files} of src/{folder}, which {verb} each other in a circle no more: remove it"


found = [*problems(), *circle_problems()]
print("\n".join(found) or "every include points down, and the files of each folder have an order")
sys.exit(1 if found else 0)
