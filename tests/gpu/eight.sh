#!/usr/bin/env bash
# What eight GPUs of one NVLink domain can show and two cannot: every pair, EP8 and EP4, skew, waits, and layouts of several
# nodes played on one host. Ten minutes where nothing hangs; each part has a limit of its own (13 minutes together), and one that
# fails does not end the others.
#
#   tests/gpu/eight.sh FOLDER [RANKS]
#
# FOLDER gets a JSON file and the text for each part, and record.json with all of them. RANKS: all GPUs here by default. Two are
# enough to try the script. DeepEP is compared with where `import deep_ep` works.
set -uo pipefail
folder=${1:?"usage: tests/gpu/eight.sh FOLDER [RANKS]"}
python=${PYTHON:-python3}
command -v nvidia-smi >/dev/null || { echo "nvidia-smi is missing: there is nothing to try here" >&2; exit 4; }
gpus=$(nvidia-smi --query-gpu=index --format=csv,noheader | wc -l)
ranks=${2:-$gpus}
mkdir -p "$folder"
rm -f "$folder"/*.json "$folder"/*.code "$folder"/*.txt  # of a run before
trap 'exit 130' INT
rivals=nccl
"$python" -c 'import deep_ep' 2>/dev/null && rivals=nccl,deep-ep
failed=0

# part NAME LIMIT_S COMMAND…: output to NAME.txt, the record (where the command writes one) to NAME.json.
part() {
  local name=$1 limit=$2 code=0 begin=$SECONDS
  shift 2
  timeout --foreground --kill-after=10 "$limit" "$@" >"$folder/$name.txt" 2>&1 || code=$?
  printf '%-24s exit code %3d  %4d s\n' "$name" "$code" $((SECONDS - begin))
  echo "$code" >"$folder/$name.code"
  [ "$code" -eq 0 ] || failed=1
}
run() { local name=$1 limit=$2; shift 2; part "$name" "$limit" "$python" -m epctl "$@"; }

run doctor 60 doctor --format json --output "$folder/doctor.json"
run capture 90 capture --output "$folder/capture.tar.gz"
run link 100 bench --op link --ranks "$ranks" --budget 0.2 --json "$folder/link.json"
run selftest 90 selftest --op link --op ep --ranks "$ranks" --format json --output "$folder/selftest.json"
if [ "$ranks" -ge 8 ]; then
  run selftest-4 60 selftest --op ep --ranks 4 --format json --output "$folder/selftest-4.json"
fi
run low-latency 60 bench --op ep --mode low-latency --ranks "$ranks" --against "$rivals" --waits --budget 0.3 \
  --json "$folder/low-latency.json"
run high-throughput 150 bench --op ep --mode high-throughput --ranks "$ranks" --tokens 4096,8192 --dtype fp8,bf16 \
  --sms auto,24,64 --against "$rivals" --budget 0.3 --json "$folder/high-throughput.json"
run skew 60 bench --op ep --mode high-throughput --ranks "$ranks" --tokens 4096 --dtype bf16 --gate skew:1.5 --waits \
  --budget 0.3 --json "$folder/skew.json"
run emulated-2 60 selftest --op gin --ranks "$ranks" --emulate-nodes 2 --format json --output "$folder/emulated-2.json"
if [ "$ranks" -ge 4 ]; then
  run emulated-4 60 selftest --op gin --ranks "$ranks" --emulate-nodes 4 --format json --output "$folder/emulated-4.json"
fi

"$python" - "$folder" "$ranks" <<'PY'
import json
import pathlib
import sys

folder, ranks = pathlib.Path(sys.argv[1]), int(sys.argv[2])
parts = {}
for code in sorted(folder.glob("*.code")):
    found = folder / f"{code.stem}.json"
    try:
        record = json.loads(found.read_text()) if found.exists() else None
    except ValueError as error:
        record = {"unreadable": str(error)}
    parts[code.stem] = {"exit_code": int(code.read_text()), "record": record}
whole = {"schema": {"name": "epctl.eight", "version": 1}, "ranks": ranks, "parts": parts}
(folder / "record.json").write_text(json.dumps(whole, indent=1))
print("record:", folder / "record.json")
PY
exit "$failed"
