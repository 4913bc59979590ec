#!/usr/bin/env bash
# Builds the drivers of the native peers: FOLDER/NAME/driver for mxnet, starpu, libgomp, libomp and onetbb.
#
# The peers come from PyPI and from the archive of Debian, are unpacked in FOLDER, and leave the system as it is. One that
# cannot be had is no error: FOLDER/NAME/why then says in one line what stood in the way, and `peers` repeats it.
set -u
sources=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?called as: build.sh FOLDER}" && out=$(cd "$1" && pwd)

# shellcheck source=packages.sh
. "$sources/packages.sh"

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
  openmp_by_gcc openmp.c
}

libomp() {
  openmp_by_clang openmp.c
}

onetbb() {
  step "getting libtbb-dev with apt-get" debian_packages libtbb-dev libtbb12 &&
    step "compiling the driver of onetbb" \
      g++ -std=c++17 -O2 -Wall -Wextra "$sources/onetbb.cc" -o new -Iroot/usr/include -L"$libraries" -ltbb -lpthread \
      $run_time_paths
}

build mxnet mxnet.cc bench.h build.sh
build starpu starpu.c bench.h build.sh
build libgomp openmp.c bench.h build.sh
build libomp openmp.c bench.h build.sh
build onetbb onetbb.cc bench.h build.sh
