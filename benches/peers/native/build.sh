#!/usr/bin/env bash
# Builds the drivers of the native peers: FOLDER/NAME/driver for mxnet, starpu, libgomp, libomp and onetbb.
#
# The peers come from PyPI and from the archive of Debian, are unpacked in FOLDER, and leave the system as it is. One that
# cannot be had is no error: FOLDER/NAME/why then says in one line what stood in the way, and `peers` repeats it.
set -u
sources=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?called as: build.sh FOLDER}" && out=$(cd "$1" && pwd)

# step WHAT COMMAND...: runs it, and keeps in mind what was tried.
step() {
  echo "$1" >step && echo "-- $1" && shift && "$@"
}

# What apt-get would install for PACKAGE..., one name a line; nothing of what is installed.
missing_packages() {
  apt-get --simulate --no-install-recommends install "$@" | awk '/^Inst/ { print $2 }'
}

# debian_packages PACKAGE...: those and what they need, unless installed, unpacked in root/.
debian_packages() {
  mkdir -p root debs && rm -f debs/*.deb
  # A fresh system knows no packages yet.
  apt-get --simulate install "$@" >/dev/null 2>&1 || [ "$(id -u)" != 0 ] || apt-get update -qq
  local packages
  packages=$(set -o pipefail && missing_packages "$@") || return 1
  # shellcheck disable=SC2086
  [ -z "$packages" ] || (cd debs && apt-get download $packages) || return 1
  for package in debs/*.deb; do
    [ ! -e "$package" ] || dpkg --extract "$package" root || return 1
  done
}

libraries=root/usr/lib/$(gcc -print-multiarch 2>/dev/null)

# Searched for at run time beside the driver, also by the libraries themselves: hence the older kind of path.
# shellcheck disable=SC2016
run_time_paths="-Wl,--disable-new-dtags,-rpath,\$ORIGIN/$libraries,-rpath,\$ORIGIN/mxnet -Wl,-rpath-link,$libraries"

# The wheel has one build for all Pythons, and its own copies of most of what it needs.
mxnet() {
  step "downloading the wheel of mxnet 1.9.1 with pip" \
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest wheel mxnet==1.9.1 &&
    step "unpacking the wheel of mxnet" python3 -m zipfile -e wheel/mxnet-*.whl . &&
    step "getting the libraries that mxnet needs with apt-get" debian_packages libgomp1 libquadmath0 &&
    step "compiling the driver of mxnet" \
      g++ -std=c++17 -O2 -Wall -Wextra "$sources/mxnet.cc" -o new -Lmxnet -lmxnet -lpthread \
      $run_time_paths -Wl,--allow-shlib-undefined
}

starpu() {
  local headers=root/usr/include
  step "getting libstarpu-dev with apt-get" debian_packages libstarpu-dev &&
    step "compiling the driver of starpu" \
      gcc -O2 -Wall -Wextra "$sources/starpu.c" -o new -I$headers/starpu/1.3 -I/usr/include/starpu/1.3 -I$headers \
      -I"$headers/$(gcc -print-multiarch)" -L"$libraries" -lstarpu-1.3 -lpthread $run_time_paths
}

libgomp() {
  step "getting libgomp1 with apt-get" debian_packages libgomp1 &&
    step "compiling the driver of libgomp with gcc" \
      gcc -O2 -Wall -Wextra -fopenmp "$sources/openmp.c" -o new $run_time_paths
}

# clang brings its own OpenMP, and runs from where it is unpacked.
libomp() {
  local clang=root/usr/lib/llvm-14
  step "getting clang-14 and libomp-14-dev with apt-get" debian_packages clang-14 libomp-14-dev || return 1
  [ -x "$clang/bin/clang" ] || clang=/usr/lib/llvm-14
  step "compiling the driver of libomp with clang" \
    env LD_LIBRARY_PATH="$libraries" "$clang/bin/clang" -O2 -Wall -Wextra -fopenmp=libomp -L"$clang/lib" \
    "$sources/openmp.c" -o new $run_time_paths
}

onetbb() {
  step "getting libtbb-dev with apt-get" debian_packages libtbb-dev libtbb12 &&
    step "compiling the driver of onetbb" \
      g++ -std=c++17 -O2 -Wall -Wextra "$sources/onetbb.cc" -o new -Iroot/usr/include -L"$libraries" -ltbb -lpthread \
      $run_time_paths
}

# build NAME SOURCE: NAME/driver, unless it is newer than what it is made of.
build() {
  local name=$1 folder=$out/$1
  mkdir -p "$folder" && cd "$folder" || exit 1
  if [ driver -nt "$sources/$2" ] && [ driver -nt "$sources/bench.h" ] && [ driver -nt "$sources/build.sh" ]; then
    return
  fi
  rm -f driver why
  echo "$name: building its driver, once" >&2
  if "$name" >log 2>&1; then
    mv new driver
  else
    local said
    said=$(grep -v -e '^-- ' -e '^$' log | tail -n 1)
    echo "$(cat step) failed: ${said:-it said nothing}; all of it is in $folder/log" >why
    echo "$name: $(cat why)" >&2
  fi
  rm -rf wheel debs
}

build mxnet mxnet.cc
build starpu starpu.c
build libgomp openmp.c
build libomp openmp.c
build onetbb onetbb.cc
