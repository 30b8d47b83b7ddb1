#!/usr/bin/env bash
# Trains on this node, with all of its NVIDIA GPUs in one process: launch/gpu.sh [OPTIONS] -- FLAGS OF THE RUN
#
#   launch/gpu.sh -- --config=configs/smoke.py --workdir=runs/smoke --config.model.dtype=bfloat16
#
#   --cuda=12|13    jax's build (default: 12; 13 needs driver 580 or newer)
#   --restarts=N    how often to restart a run that was interrupted and has saved (exit code 75) (default: 0)
#   --dry-run       print the commands instead
#   --help
#
# The script makes the virtual environment first (PYTHON, VENV: see launch/environment.sh). CUDA_VISIBLE_DEVICES=0,1 uses
# only some of the GPUs. On SIGTERM or Ctrl-C the run saves and is not restarted. The exit code is the run's:
# 0 done, 2 bad input, 75 interrupted with the state saved.
SET_UP=later
# shellcheck source-path=SCRIPTDIR source=environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

cuda=12 restarts=0
while (($#)); do
  case "$1" in
    --cuda=12 | --cuda=13) cuda="${1#*=}" ;;
    --restarts=*) restarts="${1#*=}" ;;
    --dry-run) dry_run ;;
    --help) show_help gpu.sh && exit ;;
    --) break ;;
    *) fail "bad option $1; see launch/gpu.sh --help (flags of the run come after --)" ;;
  esac
  shift
done
[[ $restarts =~ ^[0-9]+$ ]] || fail "--restarts=$restarts is not a whole number"
(($# > 1)) || fail "flags of the run are missing: launch/gpu.sh -- --config=configs/smoke.py --workdir=runs/smoke"
shift
[[ -n $DRY_RUN ]] || nvidia-smi -L >/dev/null 2>&1 || fail "no NVIDIA GPU here: nvidia-smi is missing or finds none"

ACCELERATOR="cuda$cuda" set_up
set_up_gpus

# In the background, since bash would pass a signal on only after the run has ended.
asked="" signalled="" child=""
trap 'asked=yes signalled=yes; [[ -z $child ]] || kill -TERM "$child" 2>/dev/null || true' TERM INT
train() {
  "$VENV/bin/python" -m memsinks_jax.train "$@" &
  child=$!
  while
    signalled="" code=0
    wait "$child" || code=$?
    [[ -n $signalled ]] # then it was wait that ended, not the run
  do :; done
}

if [[ -n $DRY_RUN ]]; then
  run "$VENV/bin/python" -m memsinks_jax.train "$@"
  ((restarts == 0)) || echo "# again after exit code 75, at most $restarts times"
  exit
fi
for ((restart = 0; restart <= restarts; restart++)); do
  ((restart == 0)) || echo "interrupted: restart $restart of $restarts" >&2
  train "$@"
  [[ $code == 75 && -z $asked ]] || break
done
exit "$code"
