#!/bin/sh
# Collects what `make gpu` needs on a machine without Rust: stripped binaries, scripts and examples.
#
#   collect.sh BINARIES FOLDER
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
from=${1:?called as: collect.sh BINARIES FOLDER}
to=${2:?called as: collect.sh BINARIES FOLDER}
mkdir -p "$to"
for binary in conformance cuda_programs streamvm gpu-faults gpu-bench; do
  # Beside it and moved over: a program that runs stays what it is.
  cp "$from/$binary" "$to/$binary.new"
  strip "$to/$binary.new"
  mv "$to/$binary.new" "$to/$binary"
done
rm -rf "$to/examples" "$to/torch"
mkdir -p "$to/examples" "$to/torch"
cp -R "$root"/examples/*.svm "$root/examples/data" "$to/examples"
cp "$root"/benches/gpu/torch/*.py "$to/torch"
cp "$root/benches/gpu/run.sh" "$to/run.sh"
du -k "$to"/conformance "$to"/cuda_programs "$to"/streamvm "$to"/gpu-faults "$to"/gpu-bench "$to"/examples "$to"/torch
kilobytes=$(du -sk "$to/conformance" "$to/cuda_programs" "$to/streamvm" "$to/gpu-faults" "$to/gpu-bench" "$to/examples" \
  "$to/torch" | awk '{ sum += $1 } END { print sum }')
echo "$kilobytes kB in $to"
# They travel to the machine with the GPU.
[ "$kilobytes" -lt 61440 ] || { echo "that is 60 MB or more" >&2; exit 1; }
