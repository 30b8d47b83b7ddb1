# shellcheck shell=bash
# Sourced by the other scripts: a virtual environment with this package and what requirements.txt names, made once.
#   PYTHON       the interpreter to make it with (default: python3)
#   VENV         where it lives (default: .venv)
#   ACCELERATOR  jax's build for it: tpu, cuda12 or cuda13 (default: that for the CPU)
#   EXTRAS       of pyproject.toml, with commas: tests (default: none)
#   SET_UP       later: only defines the functions; the script calls set_up itself
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON="${PYTHON:-python3}"
VENV="${VENV:-.venv}"
DRY_RUN=

fail() {
  echo "error: $*" >&2
  exit 2
}

show_help() { awk 'NR > 1 { if (!sub(/^# ?/, "")) exit; print }' "launch/$1"; } # the comment that a script opens with

dry_run() {
  DRY_RUN=yes
  exec 3>&1 # for the commands of a function whose own output is caught
}

# The words as a shell reads them back.
quote() {
  local word line="" apostrophe="'\\''"
  for word in "$@"; do
    [[ $word =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]] || word="'${word//\'/$apostrophe}'"
    line+="$word "
  done
  printf '%s\n' "${line% }"
}

# Runs a command; with --dry-run only prints it.
run() {
  if [[ -n $DRY_RUN ]]; then quote "$@" >&3; else "$@"; fi
}

set_up() {
  # What was installed; one folder for each kind, so that the one does not undo the other.
  local installed="$VENV/installed${ACCELERATOR:+-$ACCELERATOR}${EXTRAS:+-$EXTRAS}"
  if [[ -z $DRY_RUN ]] && ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    fail "$PYTHON is missing or older than 3.11; install Python 3.11 or newer, or set PYTHON=/path/to/python"
  fi
  if [[ -n $DRY_RUN ]] || ! cmp -s requirements.txt "$installed/requirements.txt" ||
    ! cmp -s pyproject.toml "$installed/pyproject.toml"; then
    [[ -n $DRY_RUN ]] || echo "setting up $VENV (once, a minute or two)" >&2
    run "$PYTHON" -m venv "$VENV"
    # In one command, so that the accelerator's build is that of the version that requirements.txt allows.
    run "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -r requirements.txt \
      --editable ".${EXTRAS:+[$EXTRAS]}" ${ACCELERATOR:+"jax[$ACCELERATOR]"}
    run mkdir -p "$installed"
    run cp requirements.txt pyproject.toml "$installed"
  fi
}
python() { "$VENV/bin/python" "$@"; }

# What one process a node and one process a GPU have in common. What the user has set stays.
set_up_gpus() {
  # Collectives run while the rest computes: the one flag that NVIDIA's own images of jax set.
  [[ ${XLA_FLAGS-} == *latency_hiding_scheduler* ]] ||
    run export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_gpu_enable_latency_hiding_scheduler=true"
  # jax takes three quarters of a GPU's memory by default; the rest of this tenth is for CUDA and NCCL.
  [[ -n ${XLA_PYTHON_CLIENT_MEM_FRACTION-} ]] || run export XLA_PYTHON_CLIENT_MEM_FRACTION=0.9
  [[ -n ${NCCL_DEBUG-} ]] || run export NCCL_DEBUG=WARN # or a broken network fails without a word
}

[[ ${SET_UP-} == later ]] || set_up
