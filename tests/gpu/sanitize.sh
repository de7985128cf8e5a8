#!/usr/bin/env bash
# compute-sanitizer over every kernel of epctl: memcheck on cases that launch each of them, racecheck on the expert-parallel ones
# (the others share no memory within a block). Exit code 0: all cases passed, and neither tool had anything to report.
#
#   tests/gpu/sanitize.sh FOLDER
#
# Two ranks, on two GPUs where there are as many, else on one. FOLDER gets the output of each part; every part has a limit of its own.
set -uo pipefail
folder=${1:?"usage: tests/gpu/sanitize.sh FOLDER"}
python=${PYTHON:-python3}
for tool in nvidia-smi compute-sanitizer; do
  command -v "$tool" >/dev/null || { echo "$tool is missing: nothing was looked at" >&2; exit 4; }
done
mkdir -p "$folder"
# A kernel that is loaded while another one waits for a peer would wait for that one.
export CUDA_MODULE_LOADING=EAGER
[ "$(nvidia-smi --query-gpu=index --format=csv,noheader | wc -l)" -ge 2 ] || export NCCL_MULTI_RANK_GPU_ENABLE=1

# part NAME TOOL LIMIT_S ARGUMENTS…: a self-test under the tool.
part() {
  local name=$1 tool=$2 limit=$3 code=0 begin=$SECONDS cases clean
  shift 3
  timeout --kill-after=10 "$limit" compute-sanitizer --tool "$tool" --report-api-errors no --target-processes all --print-limit 20 \
    "$python" -m epctl selftest --tier gpu --ranks 2 --budget $((limit * 6 / 10)) "$@" >"$folder/$name.txt" 2>&1 || code=$?
  clean=$(grep -cE '(ERROR|RACECHECK) SUMMARY: 0 ' "$folder/$name.txt")
  cases=$(grep -c '^ok ' "$folder/$name.txt")
  printf '%-14s exit code %3d  %3d cases passed  %s  %3d s\n' "$name" "$code" "$cases" \
    "$(grep -E '(ERROR|RACECHECK) SUMMARY' "$folder/$name.txt" | tail -1)" $((SECONDS - begin))
  # The tool's one summary is of all processes that it followed.
  [ "$code" -eq 0 ] && [ "$clean" -eq 1 ] && [ "$cases" -ge 1 ]
}

# Few tokens, many tokens, halves, expanded rows, rows that travel one by one; each with a cached call.
ep=(
  --op ep
  --case 'bf16-rows/64x512/top4of16'
  --case 'fp8-expand16/64x512/top4of16'
  --case 'bf16-rows/64of300x512/top4of16'
  --case 'fp8-rows/0+53of300x512/top4of16/deferred/*'
  --case 'bf16-expand1/77+61of300x512/top4of16/bias1/*/every-row/*'
)
failed=0
part ep-memcheck memcheck 90 "${ep[@]}" &
first=$!
part gin-memcheck memcheck 90 --op gin --emulate-nodes 2 || failed=1
wait "$first" || failed=1
part ep-racecheck racecheck 90 "${ep[@]}" &
first=$!
part link-memcheck memcheck 90 --op link --case '*/968352/*' --case '*/573440/*' --case 'round-trip/*' --case '*/local/14336*' || failed=1
wait "$first" || failed=1
exit "$failed"
