#!/usr/bin/env bash
# From a fresh clone to a working stepcast. Says on stderr what it does; stops at the first failure.
#
#   tools/setup.sh                  install what is missing (Debian, Ubuntu; needs root or sudo)
#   tools/setup.sh run              ... build, and forecast Llama 3.1 70B on 1,024 H100
#   tools/setup.sh test [PRESET]    ... build and run all tests; PRESET is release, dev or asan
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(
  g++ cmake ninja-build
  libfmt-dev nlohmann-json3-dev libcli11-dev libboost-graph-dev libpugixml-dev
  libsimdjson-dev zlib1g-dev
  libnlopt-dev libnlopt-cxx-dev libopenmpi-dev openmpi-bin
  libdnnl-dev ocl-icd-opencl-dev  # whose CMake files ask for OpenCL, which is only recommended
  libgtest-dev libgmock-dev libbenchmark-dev
)

fail() {
  printf 'setup.sh: %s\n' "$*" >&2
  exit 2
}

# Shows a command, then runs it.
run() {
  printf '+ %s\n' "$*" >&2
  "$@"
}

installed() {
  # A compiler or CMake of one's own, found in the PATH, is as good as the distribution's.
  case "$1" in
    g++) command -v "${CXX:-g++}" >/dev/null ;;
    cmake) command -v cmake >/dev/null ;;
    ninja-build) command -v ninja >/dev/null ;;
    *) [[ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" == installed ]] ;;
  esac
}

install_missing() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    printf 'setup.sh: no apt-get here; counting on these being installed: %s\n' "${packages[*]}" >&2
    return
  fi
  local missing=() package
  for package in "${packages[@]}"; do
    installed "$package" || missing+=("$package")
  done
  if ((${#missing[@]} == 0)); then
    return
  fi

  local as_root=(env DEBIAN_FRONTEND=noninteractive)
  if ((EUID != 0)); then
    command -v sudo >/dev/null || fail "as root, please: apt-get install ${missing[*]}"
    as_root=(sudo "${as_root[@]}")
  fi
  run "${as_root[@]}" apt-get update
  run "${as_root[@]}" apt-get install --yes --no-install-recommends "${missing[@]}"
}

# build PRESET [TARGET]
#
# A build from nothing compiles two dozen sources at a time (a unity build): it takes half the time,
# as most of it goes into the headers that all of them read. One that is there stays as it is, so
# whoever configures it by `cmake --preset PRESET` gets each source by itself, which is quicker to
# build again after a change.
build() {
  local unity=()
  if [[ ! -e "build/$1/CMakeCache.txt" ]]; then
    unity=(-DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=24)
  fi
  run cmake --preset "$1" "${unity[@]}"
  run cmake --build --preset "$1" ${2:+--target "$2"}
}

case "${1:-install}" in
  install)
    install_missing
    ;;
  run)
    install_missing
    build release stepcast >&2
    run build/release/stepcast simulate configs/llama3.1-70b-1024xh100.json
    ;;
  test)
    preset="${2:-release}"
    install_missing
    build "$preset"
    run ctest --preset "$preset" --parallel "$(nproc)"
    ;;
  *)
    fail "unknown word '$1'; use: tools/setup.sh [run | test [release|dev|asan]]"
    ;;
esac
