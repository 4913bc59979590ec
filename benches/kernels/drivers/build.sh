#!/usr/bin/env bash
# build.sh FOLDER [MODEL]: the drivers of the other libraries, as FOLDER/candle, FOLDER/python.py and FOLDER/venv, and with the folder of the
# model FOLDER/minilm.onnx. `kernels` tells which of them it does not find, and measures without them.
set -u
sources=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?called as: build.sh FOLDER}" && out=$(cd "$1" && pwd)

cp "$sources/python.py" "$sources/model.py" "$sources/network.py" "$out"
if ! cmp -s "$sources/requirements.txt" "$out/venv/installed"; then
  python3 -m venv "$out/venv" && "$out/venv/bin/pip" install --quiet -r "$sources/requirements.txt" &&
    cp "$sources/requirements.txt" "$out/venv/installed" || { rm -rf "$out/venv"; echo "PyTorch, NumPy and ONNX Runtime were not installed" >&2; }
fi
if [ -n "${2:-}" ] && [ -x "$out/venv/bin/python" ] && ! [ -e "$out/minilm.onnx" ]; then
  "$out/venv/bin/python" "$out/model.py" export "$2" "$out/part.onnx" && mv "$out/part.onnx" "$out/minilm.onnx" ||
    echo "the model was not written for ONNX Runtime" >&2
fi
"${CARGO:-cargo}" build --quiet --release --locked --manifest-path "$sources/candle/Cargo.toml" --target-dir "$out/build" &&
  cp "$out/build/release/streamvm-kernels-candle" "$out/candle" || echo "the driver of candle was not built" >&2
