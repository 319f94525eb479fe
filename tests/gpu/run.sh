#!/bin/bash
# All that needs a GPU, on a machine that has one: tests/gpu/run.sh [OUT]
#   PEER=llama-bench   compares with it        MODELS='a.gguf b.gguf'   measures these (default: made by SYNTH)
#   SYNTH=synth_gguf.py  makes files in the shape of public models      LIBRARY=libluce_cuda.so  the build to test
# Writes logs to OUT (default: build/gpu) and one table at the end.
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:-build/gpu}
mkdir -p "$out"
python=${PYTHON:-python3}
export PYTHONPATH=.:clients/python:clients/shell${PYTHONPATH:+:$PYTHONPATH}
[ -z "${LIBRARY:-}" ] || cp "$LIBRARY" luced/device/libluce_cuda.so
summary=$out/summary
: >"$summary"

# part NAME COMMAND...: its log in OUT/NAME, its outcome in the summary
part() {
  local name=$1 begin=$SECONDS
  shift
  "$@" >"$out/$name" 2>&1 && local outcome=ok || local outcome=FAILED
  printf '%-18s %-6s %4d s  %s\n' "$name" "$outcome" $((SECONDS - begin)) "$(tail -n 1 "$out/$name")" >>"$summary"
}

part ops $python -m pytest tests/ops -k cuda -p no:cacheprovider
part models $python -m pytest tests/models/gpu_test.py -p no:cacheprovider
if command -v compute-sanitizer >/dev/null; then
  # The timed cases are large, and slow under it.
  part memcheck compute-sanitizer --error-exitcode 9 $python -m pytest tests/ops/ops_test.py -k 'test_op and cuda and not 512 and not 262144 and not 49152' -p no:cacheprovider
fi
if [ -n "${MODELS:-}" ]; then
  # shellcheck disable=SC2086
  part bench $python -m tests.gpu.bench $MODELS ${PEER:+--peer "$PEER"} ${BENCH:-}
fi
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
[ ! -e "$out/bench" ] || cat "$out/bench"
cat "$summary"
! grep -q FAILED "$summary"
