# What build.sh and taskbench.sh share: packages of Debian that are unpacked beside a driver, and the building of drivers.
#
# Both set `sources`, the folder of the sources, and `out`, the folder of the drivers. The folder of a driver is the current one where its
# function runs.
# shellcheck shell=bash

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

# openmp_by_gcc SOURCE: the driver of libgomp.
openmp_by_gcc() {
  step "getting libgomp1 with apt-get" debian_packages libgomp1 &&
    step "compiling the driver of libgomp with gcc" \
      gcc -O2 -Wall -Wextra -fopenmp "$sources/$1" -o new $run_time_paths
}

# openmp_by_clang SOURCE: the driver of libomp. clang brings its own OpenMP, and runs from where it is unpacked.
openmp_by_clang() {
  local clang=root/usr/lib/llvm-14
  step "getting clang-14 and libomp-14-dev with apt-get" debian_packages clang-14 libomp-14-dev || return 1
  [ -x "$clang/bin/clang" ] || clang=/usr/lib/llvm-14
  step "compiling the driver of libomp with clang" \
    env LD_LIBRARY_PATH="$libraries" "$clang/bin/clang" -O2 -Wall -Wextra -fopenmp=libomp -L"$clang/lib" \
    "$sources/$1" -o new $run_time_paths
}

# build NAME SOURCE...: NAME/driver by the function NAME, unless it is newer than all that it is made of.
build() {
  local name=$1 folder=$out/$1 source newer=yes
  shift
  mkdir -p "$folder" && cd "$folder" || exit 1
  for source in "$@" packages.sh; do
    [ driver -nt "$sources/$source" ] || newer=
  done
  [ -z "$newer" ] || return 0
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
