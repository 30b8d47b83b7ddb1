#!/usr/bin/env bash
# Sets up and runs the benchmarks, by name, or all: launch/bench.sh train_step tpu_compile
# Each prints a table; the first two also write JSON and a picture, under OUT (default: runs/bench).
#   train_step          a step on this CPU against PyTorch's and transformers', and with sinks or memory against without (10 minutes)
#   tpu_compile         libtpu's estimates of steps on pod slices, against maxtext's (10 to 30 minutes)
#   prepare             preparing a corpus against datasets.map, and its memory (3 minutes)
#   near_duplicates     how many edited copies are found
#   generation          generating text with and without a cache
OUT="${OUT:-runs/bench}"
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
[[ ${1-} != --help ]] || { show_help bench.sh; exit 0; }
[[ $# -gt 0 ]] || set -- train_step tpu_compile prepare near_duplicates generation
for name in "$@"; do
  [[ -f tests/benchmarks/$name.py ]] || fail "there is no benchmark $name; see launch/bench.sh --help"
done
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
for name in "$@"; do
  written=()
  if [[ $name == train_step ]]; then
    written=("--out=$OUT/$name")
    python -m pip install --quiet --disable-pip-version-check torch==2.13.0 "transformers>=5,<6"
  elif [[ $name == tpu_compile ]]; then
    written=("--out=$OUT/$name")
    python -m pip install --quiet --disable-pip-version-check -r requirements.txt "jax[tpu]"
  elif [[ $name == prepare ]]; then
    python -m pip install --quiet --disable-pip-version-check "datasets>=4,<6"
  fi
  python "tests/benchmarks/$name.py" "${written[@]}"
done
