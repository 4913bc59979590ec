#!/usr/bin/env bash
# Builds the drivers of the Task Bench patterns: FOLDER/NAME/driver for libgomp, libomp, starpu and mpi.
#
# As build.sh, with packages from the archive of Debian alone: one that cannot be had is no error, and FOLDER/NAME/why says why.
set -u
sources=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?called as: taskbench.sh FOLDER}" && out=$(cd "$1" && pwd)
# shellcheck source=packages.sh
. "$sources/packages.sh"

libgomp() {
  openmp_by_gcc taskbench_openmp.c
}

libomp() {
  openmp_by_clang taskbench_openmp.c
}

starpu() {
  local headers=root/usr/include
  step "getting libstarpu-dev with apt-get" debian_packages libstarpu-dev &&
    step "compiling the driver of starpu" \
      gcc -O2 -Wall -Wextra "$sources/taskbench_starpu.c" -o new -I$headers/starpu/1.3 -I/usr/include/starpu/1.3 -I$headers \
      -I"$headers/$(gcc -print-multiarch)" -L"$libraries" -lstarpu-1.3 -lpthread $run_time_paths
}

# MPICH rather than Open MPI: it runs from where it is unpacked, as root too, and has no plugins to find.
#
# gcc takes MPI_STATUSES_IGNORE, an address at which nothing lies, for an array that is too short: hence the warning that is off.
mpi() {
  local start=root/usr/bin/mpiexec.hydra headers
  headers=$(gcc -print-multiarch)/mpich
  step "getting mpich with apt-get" debian_packages libmpich-dev mpich || return 1
  [ -x "$start" ] || start=$(command -v mpiexec.hydra)
  step "compiling the driver of mpi" \
    gcc -O2 -Wall -Wextra -Wno-stringop-overflow "$sources/taskbench_mpi.c" -o ranks "-Iroot/usr/include/$headers" "-I/usr/include/$headers" \
    -L"$libraries" -lmpich $run_time_paths &&
    step "writing the script that starts two ranks" mpi_script "$start" "$libraries"
}

# Inputs are printed by one process; graphs run on two ranks. The folder may have moved since.
mpi_script() {
  cat >new <<SCRIPT && chmod +x new
#!/bin/sh
cd "\$(dirname "\$0")" || exit 1
export LD_LIBRARY_PATH="$2"
[ "\$1" != --deps ] || exec ./ranks "\$@"
exec "$1" -n 2 ./ranks
SCRIPT
}

header=taskbench.h
build libgomp taskbench_openmp.c $header taskbench.sh
build libomp taskbench_openmp.c $header taskbench.sh
build starpu taskbench_starpu.c $header taskbench.sh
build mpi taskbench_mpi.c $header taskbench.sh
