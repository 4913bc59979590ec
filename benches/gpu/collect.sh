#!/bin/sh
# Collects what `make gpu` needs on a machine without Rust (stripped binaries, scripts and examples) in a folder, and packs the
# folder into an archive beside it.
#
#   collect.sh BINARIES FOLDER
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
from=${1:?called as: collect.sh BINARIES FOLDER}
to=${2:?called as: collect.sh BINARIES FOLDER}
mkdir -p "$to"
files="conformance cuda_programs streamvm gpu-faults gpu-bench gpu-calls libstreamvm_standin.so"
for file in $files; do
  # A library that others depend on lies one folder down.
  built=$from/$file
  [ -f "$built" ] || built=$from/deps/$file
  # Beside it and moved over: a program that runs stays what it is.
  cp "$built" "$to/$file.new"
  strip "$to/$file.new"
  mv "$to/$file.new" "$to/$file"
done
rm -rf "$to/examples" "$to/torch" "$to/gpu-logs" "$to/gpu.json"
mkdir -p "$to/examples" "$to/torch"
cp -R "$root"/examples/*.svm "$root/examples/data" "$to/examples"
cp "$root"/benches/gpu/torch/*.py "$to/torch"
cp "$root/benches/gpu/run.sh" "$to/run.sh"
# This archive travels to the machine with the GPU.
tar -C "$(dirname "$to")" -czf "$to.tar.gz" "$(basename "$to")"
kilobytes=$(du -k "$to.tar.gz" | cut -f 1)
echo "$kilobytes kB in $to.tar.gz"
[ "$kilobytes" -lt 61440 ] || { echo "that is 60 MB or more" >&2; exit 1; }
