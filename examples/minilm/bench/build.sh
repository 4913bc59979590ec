#!/usr/bin/env bash
# build.sh FOLDER: what `make bench-serve` needs beside the command, as FOLDER/venv (PyTorch from PyPI) and FOLDER/root (wrk from Debian, unless
# it is installed). Leaves the system as it is. Fails, and says why, if one of them cannot be had.
set -eu
sources=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?called as: build.sh FOLDER}" && cd "$1"

if ! cmp -s "$sources/requirements.txt" venv/installed; then
  rm -rf venv
  python3 -m venv venv && venv/bin/pip install --quiet --disable-pip-version-check -r "$sources/requirements.txt" || {
    echo "the server of PyTorch was not built: python3 -m venv or pip failed" >&2
    exit 1
  }
  cp "$sources/requirements.txt" venv/installed
fi

command -v wrk >/dev/null || [ -x root/usr/bin/wrk ] || {
  # A fresh system knows no packages yet.
  apt-get --simulate install wrk >/dev/null 2>&1 || [ "$(id -u)" != 0 ] || apt-get update -qq
  mkdir -p debs root
  packages=$(apt-get --simulate --no-install-recommends install wrk | awk '/^Inst/ { print $2 }')
  # shellcheck disable=SC2086
  (cd debs && apt-get -o APT::Sandbox::User=root download -qq $packages) && for package in debs/*.deb; do dpkg --extract "$package" root; done || {
    echo "wrk was not found: apt-get could not download it" >&2
    exit 1
  }
  rm -rf debs
}
