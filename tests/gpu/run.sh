#!/bin/bash
# All that needs a GPU, on a machine that has one: tests/gpu/run.sh [OUT]
#   MODELS='a.gguf b.gguf'  measures these      SYNTH=synth_gguf.py  else makes those of docs/benchmarks/h200.md and measures them
#   PEER=llama-bench        compares with it    BENCH='--depth 32767'   options of tests/gpu/bench.py
#   LIBRARY=libluce_cuda.so the build to test (default: what `make cuda` made, or makes now)
# SmolLM2 is compared with the CPU where its package is installed. Writes logs to OUT (default: build/gpu) and one table
# at the end.
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:-build/gpu}
mkdir -p "$out"
python=${PYTHON:-python3}
export PYTHONPATH=.:clients/python:clients/shell${PYTHONPATH:+:$PYTHONPATH}
summary=$out/summary
: >"$summary"

# part NAME COMMAND...: its log in OUT/NAME, its outcome in the summary
part() {
  local name=$1 begin=$SECONDS
  shift
  "$@" >"$out/$name" 2>&1 && local outcome=ok || local outcome=FAILED
  printf '%-10s %-6s %4d s  %s\n' "$name" "$outcome" $((SECONDS - begin)) "$(tail -n 1 "$out/$name")" >>"$summary"
}

synth() {
  local made=()
  while read -r shape quant; do
    [ -e "$out/$shape-$quant.gguf" ] || $python "$SYNTH" --shape "$shape" --quant "$quant" --out "$out/$shape-$quant.gguf" &
    made+=("$!")
  done
  for job in "${made[@]}"; do wait "$job" || return 1; done
}

if [ -n "${LIBRARY:-}" ]; then
  cp "$LIBRARY" luced/device/libluce_cuda.so
elif [ ! -e luced/device/libluce_cuda.so ]; then
  part build make cuda
fi
pytest="$python -m pytest -p no:cacheprovider"
part ops $pytest tests/ops -k cuda
part models $pytest tests/models/gpu_test.py
part company $pytest tests/gpu/company_test.py
part greedy $pytest tests/gpu/greedy_test.py -rP
if command -v compute-sanitizer >/dev/null; then
  # Small cases of every op: large ones are slow under it.
  small='test_op and cuda and not 512 and not 262144 and not 49152'
  part memcheck timeout "${MEMCHECK_S:-600}" compute-sanitizer --error-exitcode 9 $pytest tests/ops/ops_test.py -k "$small"
fi
if [ -z "${MODELS:-}" ] && [ -n "${SYNTH:-}" ]; then
  part synth synth <<<'smollm2-135m q8_0
gemma3-270m q4_k_m
qwen3-0.6b bf16
llama-3.1-8b q4_k_m'
  MODELS=$(ls "$out"/*.gguf)
fi
if [ -n "${MODELS:-}" ]; then
  part bench $python -m tests.gpu.bench $MODELS ${PEER:+--peer "$PEER"} ${BENCH:-}
fi
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
[ ! -e "$out/bench" ] || cat "$out/bench"
cat "$summary"
! grep -q FAILED "$summary"
