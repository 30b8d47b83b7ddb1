#!/usr/bin/env bash
# Sets up and runs the benchmarks, by name, or all: launch/bench.sh train_step tpu_compile
# Each prints a table; the first two write JSON and a picture besides, under OUT (default: runs/bench).
#   train_step          a step on this CPU beside PyTorch's and transformers', and with sinks beside without (5 minutes)
#   tpu_compile         what libtpu's compiler says of steps on pod slices, beside maxtext's (10 to 30 minutes)
#   data_pipeline       batches beside what a model reads, and what ids and masks add
#   prepare             preparing a corpus beside datasets.map, and its memory (3 minutes)
#   near_duplicates     how many edited copies are found
#   generation          writing text with a cache and without
#   patch_map           all single patches of a prompt in one batch, beside one forward a site
#   associative_memory  the lab's laws beside their definition in numpy
#   induction_head      the lab's data beside a step of its training
OUT="${OUT:-runs/bench}"
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
[[ ${1-} != --help ]] || { show_help bench.sh; exit 0; }
[[ $# -gt 0 ]] || set -- train_step tpu_compile data_pipeline prepare near_duplicates generation patch_map associative_memory \
  induction_head
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
