"""The files of `make install` suffice to build and run a program, with pkg-config and with CMake."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ["BANYAN_BUILD"])
PROJECT = """cmake_minimum_required(VERSION 3.20)
project(user LANGUAGES C)
find_package(banyan REQUIRED)
add_executable(user reshard.c)
target_link_libraries(user PRIVATE banyan::banyan)
"""

if os.environ.get("BANYAN_SANITIZE"):
    print("skipped: a user's program is not built with a sanitizer")
    sys.exit(77)


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          timeout=300, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}\n"
                 f"{done.stdout}{done.stderr}")
    return done.stdout


with tempfile.TemporaryDirectory() as folder:
    prefix = pathlib.Path(folder) / "prefix"
    run("cmake", "--install", BUILD, "--prefix", prefix)
    if not (prefix / "share/banyan/layout.schema.json").is_file():
        sys.exit("the schema of layout files is not installed")
    for path in ("bash-completion/completions/banyan", "zsh/site-functions/_banyan"):
        if "__complete" not in (prefix / "share" / path).read_text():
            sys.exit(f"share/{path} is not a completion of banyan")
    pc = next(prefix.glob("lib/**/pkgconfig"))
    environment = dict(os.environ, PKG_CONFIG_PATH=str(pc), LD_LIBRARY_PATH=str(pc.parent))
    launch = [prefix / "bin/banyan", "launch", "-n", "2", "--"]

    if (BUILD / "bin/gpu_bench").exists():
        parts = {path.name for path in (prefix / "libexec/banyan").iterdir()}
        if parts != {"gpu_bench", "gpu_torch_symmetric.py"}:
            sys.exit(f"of banyan bench --gpu, these are installed: {parts}")
        libraries = run("ldd", prefix / "libexec/banyan/gpu_bench")
        if str(pc.parent.resolve()) not in str(pathlib.Path(
                re.search(r"libbanyan\.so\S* => (\S+)", libraries)[1]).resolve()):
            sys.exit(f"the installed gpu_bench does not find the installed library:\n{libraries}")

    flags = run("pkg-config", "--cflags", "--libs", "banyan", env=environment).split()
    if f"-I{prefix}/include" not in flags:
        sys.exit(f"pkg-config gives {flags}, not the folder of the installation")
    program = pathlib.Path(folder) / "with_pkg_config"
    run("cc", ROOT / "examples/reshard.c", "-o", program, *flags)
    if "holds version 3" not in run(*launch, program, env=environment):
        sys.exit("the program built with pkg-config printed something else")

    rules = prefix / "share/banyan/rules"
    if {path.name for path in rules.iterdir()} != {path.name for path in ROOT.glob("rules/*.rules")}:
        sys.exit(f"{rules} does not have the rule files")
    if "is sound" not in run(prefix / "bin/banyan", "rules", "check", rules / "builtin.rules",
                             env=environment):
        sys.exit("the installed rule files are not sound")

    project = pathlib.Path(folder) / "project"
    project.mkdir()
    (project / "CMakeLists.txt").write_text(PROJECT)
    shutil.copy(ROOT / "examples/reshard.c", project)
    run("cmake", "-G", "Ninja", "-S", project, "-B", project / "build",
        f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", project / "build")
    if "holds version 3" not in run(*launch, project / "build/user"):
        sys.exit("the program built with CMake printed something else")
print("an installation is enough")
