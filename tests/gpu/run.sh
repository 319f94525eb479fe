#!/bin/bash
# All that needs a GPU, on a machine that has one: tests/gpu/run.sh [OUT]
#   LIBRARIES='sm_90.so ptx_80.so'  builds of libluce_cuda to test, one after the other; a column each, named by the file.
#                           Default: made here, once for each of TARGETS ('90-real 80-virtual')
#   MODELS='a.gguf b.gguf'  measures these      SYNTH=synth_gguf.py  else makes those of docs/benchmarks/h200.md and measures them
#   PEER=llama-bench        compares with it    DEPTH=32768          of one more test of decode, of models that have it
#   BATCH=16,32             rows in one step    MEMCHECK_S=600       the most for compute-sanitizer, with the first build
# SmolLM2 is compared with the CPU where its package is installed. Writes logs to OUT (default: build/gpu) and one table
# at the end.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
out=${1:-build/gpu}
mkdir -p "$out"
python=${PYTHON:-python3}
export PYTHONPATH=.:clients/python:clients/shell${PYTHONPATH:+:$PYTHONPATH}
summary=$out/summary
: >"$summary"
rm -f "$out"/*.jsonl

# part NAME COMMAND...: its log in OUT/NAME, its outcome in the summary
part() {
  local name=$1 begin=$SECONDS outcome=FAILED
  shift
  if "$@" >"$out/$name" 2>&1; then outcome=ok; fi
  printf '%-18s %-6s %4d s  %s\n' "$name" "$outcome" $((SECONDS - begin)) "$(tail -n 1 "$out/$name")" >>"$summary"
}

# The name of a build, of nvcc's name of a target: sm_90 of 90-real, ptx_80 of 80-virtual.
build_name() {
  case $1 in *-virtual) echo "ptx_${1%-virtual}" ;; *) echo "sm_${1%-real}" ;; esac
}

build() {
  make cuda "CUDA_TARGETS=$1" && cp build/cuda/libluce_cuda.so "$2"
}

synth() {
  local made=() shape quant job
  while read -r shape quant; do
    [ -e "$out/$shape-$quant.gguf" ] || "$python" "$SYNTH" --shape "$shape" --quant "$quant" --out "$out/$shape-$quant.gguf" &
    made+=("$!")
  done
  for job in "${made[@]}"; do wait "$job" || return 1; done
}

# bench BUILD: all models; its lines in OUT/BUILD.jsonl. A model that fails is no reason to leave others out.
bench() {
  local model failed=0
  local run=("$python" -m luced bench --device cuda --json)
  for model in $MODELS; do
    "${run[@]}" "$model" --batch "1,${BATCH:-16,32}" ${PEER:+--peer "$PEER"} >>"$out/$1.jsonl" || failed=1
    # Of several rows at such a depth the cache would not have room.
    "${run[@]}" "$model" -p 0 -n 32 --depth "${DEPTH:-32768}" ${PEER:+--peer "$PEER"} >>"$out/$1.jsonl" 2>"$out/deep"
    case $? in 0) ;; 65) grep -q 'do not fit in a context' "$out/deep" || failed=1 ;; *) failed=1 ;; esac
    cat "$out/deep"
  done
  return $failed
}

if [ -z "${LIBRARIES:-}" ]; then
  LIBRARIES=
  for target in ${TARGETS:-90-real 80-virtual}; do
    library=$out/$(build_name "$target").so
    part "build-$target" build "$target" "$library"
    LIBRARIES+=" $library"
  done
fi
if [ -z "${MODELS:-}" ] && [ -n "${SYNTH:-}" ]; then
  part synth synth <<<'smollm2-135m q8_0
gemma3-270m q4_k_m
qwen3-0.6b bf16
llama-3.1-8b q4_k_m'
  MODELS=$(ls "$out"/*.gguf)
fi
pytest=("$python" -m pytest -p no:cacheprovider)
is_first=yes
tables=()
for library in $LIBRARIES; do
  name=$(basename "$library" .so)
  part "$name-library" cp "$library" luced/device/libluce_cuda.so
  grep -q "^$name-library *FAILED" "$summary" && continue # what is there is another build
  part "$name-ops" "${pytest[@]}" tests/ops -k cuda
  part "$name-models" "${pytest[@]}" tests/models/gpu_test.py
  part "$name-company" "${pytest[@]}" tests/gpu/company_test.py
  part "$name-greedy" "${pytest[@]}" tests/gpu/greedy_test.py -rP
  if [ -n "${MODELS:-}" ]; then
    part "$name-bench" bench "$name"
    tables+=("$out/$name.jsonl")
  fi
  if [ -n "$is_first" ] && command -v compute-sanitizer >/dev/null; then
    # Small cases of every op: large ones are slow under it.
    small='test_op and cuda and not 512 and not 262144 and not 49152'
    part memcheck timeout "${MEMCHECK_S:-600}" compute-sanitizer --error-exitcode 9 "${pytest[@]}" tests/ops/ops_test.py -k "$small"
  fi
  is_first=
done
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
if [ ${#tables[@]} -gt 0 ]; then
  "$python" -m tests.gpu.table "${tables[@]}"
fi
cat "$summary"
! grep -q FAILED "$summary"
