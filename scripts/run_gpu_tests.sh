#!/usr/bin/env bash
# usage: run_tests.sh [PATTERN]
# Run the GPU tests of a bundle, those whose names contain PATTERN, one after the other: a line each,
# the first checks that failed, and the end of what the program said. BANYAN_TEST_SECONDS: how long one may take (180).
set -uo pipefail
shopt -s nullglob
here=$(cd "$(dirname "$0")" && pwd)
pattern=${1:-}
export BANYAN_MODULE_PATH=${BANYAN_MODULE_PATH:-$here/lib} BANYAN_PLANS=$here/plans
export BANYAN_BUILD=$here
[[ ! -e $here/ucx/libucp.so.0 ]] || export BANYAN_UCX=${BANYAN_UCX:-$here/ucx/libucp.so.0}

said=$(mktemp)
trap 'rm -f "$said"' EXIT
failed=0
export PYTHONPATH=$here/python:$here/python/tests:$here/python/tests_torch BANYAN_TEST_DEVICE=cuda
programs=("$here"/bin/test_cuda_*"$pattern"* "$here"/tests/test_*"$pattern"*.py)
of_package=("$here"/python/tests/test_*"$pattern"*_gpu.py "$here"/python/tests_torch/test_*"$pattern"*.py)
if [[ ${#of_package[@]} == 0 ]] || python3 -c 'import banyan' 2>"$said"; then
    programs+=("${of_package[@]}")
else
    echo "skipped  ${#of_package[@]} tests of the Python package: $(tail -n 1 "$said")"
fi
for program in "${programs[@]}"; do
    began=$(date +%s.%N)
    run=("$program")
    [[ $program != *.py ]] || run=(python3 "$program")
    timeout -k 5 "${BANYAN_TEST_SECONDS:-180}" "${run[@]}" >"$said" 2>&1 </dev/null
    code=$?
    took=$(awk -v a="$began" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f s", b - a }')
    name=$(basename "$program")
    case $code in
    0) echo "ok       $name  $took" ;;
    77) echo "skipped  $name  $(grep -m 1 '^skipped' "$said" || tail -n 1 "$said")" ;;
    *)
        [[ $code == 124 || $code == 137 ]] && why="too long" || why="code $code"
        echo "FAILED   $name  $took, $why"
        { grep -m 8 -E '\.[ch]:[0-9]+: ' "$said"; tail -n 12 "$said"; } | sed 's/^/    /'
        failed=$((failed + 1))
        ;;
    esac
done
echo "$failed failed"
[[ $failed == 0 ]]
