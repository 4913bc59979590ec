#!/bin/sh
# Runs all suites and benches on the GPU of this machine, from the binaries that `make gpu-build` has collected: `make gpu`.
#
#   run.sh FOLDER
#
# On a machine without this checkout: unpack gpu.tar.gz, which lies beside the folder, and run `gpu/run.sh gpu`.
#
# FOLDER has the binaries, examples/ and torch/; nothing else is needed, and Python with PyTorch is used where it is there.
# One line of progress a part, one table at the end; gpu.json and the logs go to $OUT, or else to FOLDER. A part that fails or
# is missing does not stop the others. Exit codes: 0 all suites passed and all of streamvm was measured, 1 not so, 3 there is no
# GPU.
#
# PROGRAMS (300), SEED (1): the random programs. BENCH_FLAGS: of gpu-bench. PYTHON (python3). LIMIT (900): most seconds a part.
set -u
folder=${1:?called as: run.sh FOLDER}
out=${OUT:-$folder}
logs=$out/gpu-logs
limit=${LIMIT:-900}
python=${PYTHON:-python3}
mkdir -p "$logs" || exit 1

# limited COMMAND...: no longer than a part may take. What does not end when it is told to is killed.
limited() {
  if command -v timeout >/dev/null 2>&1; then timeout -k 2 "$limit" "$@"; else "$@"; fi
}

if [ -x "$folder/gpu-bench" ]; then
  limited "$folder/gpu-bench" --probe >"$logs/devices.json" 2>"$logs/devices.log"
  case $? in
    0) ;;
    3) cat "$logs/devices.log"; exit 3 ;;
    *) echo "the devices cannot be listed: $(tail -n 1 "$logs/devices.log")"; echo null >"$logs/devices.json" ;;
  esac
else
  echo null >"$logs/devices.json"
fi

# PyTorch's wheels bring cuBLAS along, where no loader looks for it. A stub of the driver, in place of the driver, is none.
if command -v "$python" >/dev/null 2>&1; then
  libraries=$("$python" - 2>/dev/null <<'PYTHON'
import glob, os, site, sys
folders = [*site.getsitepackages(), site.getusersitepackages(), *sys.path]
found = {os.path.dirname(path) for folder in folders if folder
         for path in glob.glob(os.path.join(folder, "nvidia", "*", "lib", "**", "lib*.so*"), recursive=True)}
print(":".join(sorted(folder for folder in found if os.path.basename(folder) != "stubs")))
PYTHON
  )
  [ -z "$libraries" ] || export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$libraries"
else
  echo "no $python: PyTorch is left out"
  python=
fi

failed=0
suites=
table=

# told NAME RESULT WHAT: keeps the result of a part, for the table and for gpu.json.
told() {
  echo "$1: $2${3:+ ($3)}"
  table="$table$(printf '%-24s %-8s %s' "$1" "$2" "$3")
"
  suites="$suites${suites:+, }{ \"name\": \"$1\", \"result\": \"$2\", \"detail\": \"$(printf %s "$3" | tr -d '\000-\037' | sed 's/[\\"]/\\&/g')\" }"
  [ "$2" = passed ] || failed=1
}

# suite NAME PROGRAM ARGUMENT...: runs a program of the folder; its last line is the detail.
suite() {
  name=$1 program=$folder/$2
  shift 2
  if [ ! -x "$program" ]; then
    told "$name" missing "there is no $program; run \`make gpu-build\`"
    return
  fi
  log=$logs/$(printf %s "$name" | tr ' /' '--').log
  limited "$program" "$@" >"$log" 2>&1
  code=$?
  detail=$(grep -v '^[[:space:]]*$' "$log" | tail -n 1)
  case $code in
    0) told "$name" passed "$detail" ;;
    124) told "$name" failed "not over after $limit s; $log" ;;
    137) told "$name" failed "killed, not over after $limit s or out of memory; $log" ;;
    *) told "$name" failed "exit code $code; $log: $detail" ;;
  esac
}

suite conformance conformance --backend cuda --progress
suite "random programs" cuda_programs "${PROGRAMS:-300}" --seed "${SEED:-1}"
for script in "$folder"/examples/*.svm; do
  [ -f "$script" ] || { told examples missing "there is no script in $folder/examples"; continue; }
  suite "example $(basename "$script")" streamvm run --device acc=cuda:0 "$script"
done
# The last one leaves its process without a device: each runs in one of its own.
for case in memory division PTX address; do
  suite "fault $case" gpu-faults "$case"
done

benches=null
if [ -x "$folder/gpu-bench" ]; then
  rm -f "$logs/benches.json"
  limit=$((limit * 4))
  # shellcheck disable=SC2086
  limited "$folder/gpu-bench" ${python:+--python "$python"} --scripts "$folder/torch" \
    --out "$logs/benches.json" ${BENCH_FLAGS:-} >"$logs/benches.log" 2>"$logs/benches.err"
  code=$?
  [ ! -s "$logs/benches.json" ] || benches=$(cat "$logs/benches.json")
  if [ $code = 0 ]; then told benches passed ""; else told benches failed "exit code $code; $logs/benches.log"; fi
else
  told benches missing "there is no $folder/gpu-bench; run \`make gpu-build\`"
fi

passed=true
[ $failed = 0 ] || passed=false
printf '{ "passed": %s, "devices": %s, "suites": [%s], "benches": %s }\n' \
  "$passed" "$(cat "$logs/devices.json")" "$suites" "$benches" >"$out/gpu.json"
echo
cat "$logs/devices.json"
printf '%s' "$table"
[ ! -s "$logs/benches.log" ] || cat "$logs/benches.log"
echo "written: $out/gpu.json"
exit $failed
