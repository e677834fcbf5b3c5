#!/usr/bin/env bash
# usage: scripts/gpu_bundle.sh OUT [BUILD [UCX]]
# Copy everything that a machine with GPUs, but without Banyan's packages, needs to run the tests and
# benchmarks of BUILD (default: build): programs in OUT/bin, libraries in OUT/lib, and OUT/run_tests.sh.
# UCX: a folder with libucp.so.0 and its modules, such as libucx/lib of PyPI's libucx-cu13; it goes to
# OUT/ucx, and run_tests.sh uses it. BANYAN_CORES: extension modules (_core.*.so) of other Pythons, which
# the machine may have, from other builds.
set -euo pipefail
shopt -s nullglob
[[ $# -ge 1 ]] || { sed -n '2,9s/^# //p' "$0"; exit 2; }
out=$1
build=${2:-build}
ucx=${3:-}
source=$(cd "$(dirname "$0")/.." && pwd)

rm -rf "$out"
mkdir -p "$out/bin" "$out/lib" "$out/tests"

programs=("$build"/bin/banyan "$build"/bin/test_cuda_* "$build"/bin/bench_* "$build"/bin/gpu_* "$build"/bin/example_*)
cp "${programs[@]}" "$out/bin/"
rm -f "$out"/bin/*.py # until programs have been stripped
cp "$source"/tests/cuda/test_*.py "$out/tests/"
cp -P "$build"/lib/libbanyan.so* "$build"/lib/libbanyan_cuda.so "$build"/lib/libbanyan_ucx*.so "$out/lib/"

packages=()
if [[ -d $build/python/banyan ]]; then
    mkdir "$out/python"
    cp -rL "$build/python/banyan" "$out/python/"
    cp -r "$source/python/tests" "$source/python/tests_torch" "$out/python/"
    cp -r "$source/docs" "$source/examples" "$out/" # tests run the programs of the pages
    find "$out/python" -name __pycache__ -prune -exec rm -r {} +
    # shellcheck disable=SC2086
    [[ -z ${BANYAN_CORES:-} ]] || cp $BANYAN_CORES "$out/python/banyan/"
    packages=("$out"/python/banyan/_core*.so)
fi

# The packages' libraries that they need; the C library's own are everywhere.
find "$out/bin" "$out/lib" -type f -exec ldd {} + |
    awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    { grep -E '/lib(jansson|sodium|xxhash|zstd|cmocka)\.so' || true; } |
    while read -r library; do
        cp "$library" "$out/lib/"
    done
find "$out/bin" "$out/lib" "${packages[@]}" -type f -exec strip --strip-unneeded {} +
cp "$build"/bin/*.py "$out/bin/"
if [[ $ucx ]]; then
    mkdir -p "$out/ucx/ucx"
    cp "$ucx"/libuc[pstm].so.0 "$out/ucx/"
    cp "$ucx"/ucx/libuc[tm]_*.so.0 "$out/ucx/ucx/"
fi

# The plans that tests read.
BANYAN_PLANS=$out/plans "$build/bin/test_program_mscclpp"
cp "$source/scripts/run_gpu_tests.sh" "$out/run_tests.sh"

du -sh "$out"
