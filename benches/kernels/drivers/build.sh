#!/usr/bin/env bash
# build.sh FOLDER: the drivers of the other libraries, as FOLDER/candle, FOLDER/python.py and FOLDER/venv. `kernels` tells which of them
# it does not find, and measures without them.
set -u
sources=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?called as: build.sh FOLDER}" && out=$(cd "$1" && pwd)

cp "$sources/python.py" "$out/python.py"
if ! cmp -s "$sources/requirements.txt" "$out/venv/installed"; then
  python3 -m venv "$out/venv" && "$out/venv/bin/pip" install --quiet -r "$sources/requirements.txt" &&
    cp "$sources/requirements.txt" "$out/venv/installed" || { rm -rf "$out/venv"; echo "PyTorch and NumPy were not installed" >&2; }
fi
"${CARGO:-cargo}" build --quiet --release --locked --manifest-path "$sources/candle/Cargo.toml" --target-dir "$out/build" &&
  cp "$out/build/release/streamvm-kernels-candle" "$out/candle" || echo "the driver of candle was not built" >&2
