#!/usr/bin/env bash
# Trains on many GPU nodes of a Slurm cluster: launch/slurm.sh [OPTIONS] -- FLAGS OF THE RUN
# Submits itself. Run it on a login node, in a checkout, and with a --workdir, that all nodes see.
#
#   launch/slurm.sh --nodes=4 --gpus-per-node=8 --time=24:00:00 --sbatch=--partition=gpu -- \
#     --config=configs/smoke.py --workdir=/shared/runs/smoke --config.model.dtype=bfloat16
#
#   --nodes=N            (default: 1)
#   --gpus-per-node=N    (default: 8); each gets a process
#   --cpus-per-gpu=N     (default: 8)
#   --time=LIMIT         time limit, after which the job goes back to the queue (default: the partition's)
#   --grace=SECONDS      how long before the limit the run must save (default: 120)
#   --restarts=N         how often the job may go back to the queue after an interruption (default: 100)
#   --sbatch=FLAG        another flag for sbatch, such as --sbatch=--account=me; may be repeated
#   --cuda=12|13         jax's build (default: 12; 13 needs driver 580 or newer)
#   --dry-run            print the commands instead
#   --help
#
# Submission makes the virtual environment (PYTHON, VENV: see launch/environment.sh). The log is runs/slurm-JOB.log.
# The job's exit code is the run's: 0 done, 2 bad input, 75 interrupted with the state saved and no restarts left.

# A job runs a copy of this file, in sbatch's working folder.
[[ ${1-} == --job ]] || cd "$(dirname "${BASH_SOURCE[0]}")/.."
SET_UP=later
# shellcheck source-path=SCRIPTDIR source=environment.sh
source launch/environment.sh

# One process per GPU: jax gives process SLURM_LOCALID of a node the GPU of that number. So each must see all GPUs of its
# node (no binding). If one is lost, the others report it, unless srun kills them first.
in_job() {
  local restarts="$1" code=0
  shift
  command -v srun >/dev/null || [[ -n $DRY_RUN ]] || fail "srun is missing on this node"
  set_up_gpus
  run srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --gpu-bind=none --kill-on-bad-exit=0 \
    "$VENV/bin/python" -m memsinks_jax.train --coordinator=auto "$@" || code=$?
  # scancel ends this shell as well, so a job that was cancelled does not come here.
  if [[ -n $DRY_RUN ]] || ((code == 75 && ${SLURM_RESTART_COUNT:-0} < restarts)); then
    [[ -z $DRY_RUN ]] || echo "# after exit code 75, at most $restarts times:"
    run scontrol requeue "$SLURM_JOB_ID" || echo "the job cannot go back to the queue; submit it again to resume" >&2
  fi
  exit "$code"
}
if [[ ${1-} == --job ]]; then in_job "${@:2}"; fi

nodes=1 gpus=8 cpus=8 grace=120 restarts=100 cuda=12 options=()
while (($#)); do
  case "$1" in
    --nodes=*) nodes="${1#*=}" ;;
    --gpus-per-node=*) gpus="${1#*=}" ;;
    --cpus-per-gpu=*) cpus="${1#*=}" ;;
    --time=?*) options+=("$1") ;;
    --grace=*) grace="${1#*=}" ;;
    --restarts=*) restarts="${1#*=}" ;;
    --sbatch=-*) options+=("${1#*=}") ;;
    --cuda=12 | --cuda=13) cuda="${1#*=}" ;;
    --dry-run) dry_run ;;
    --help) show_help slurm.sh && exit ;;
    --) break ;;
    *) fail "bad option $1; see launch/slurm.sh --help (flags of the run come after --)" ;;
  esac
  shift
done
for option in nodes="$nodes" gpus-per-node="$gpus" cpus-per-gpu="$cpus" grace="$grace" restarts="$restarts"; do
  [[ $option =~ =(0|[1-9][0-9]*)$ ]] || fail "--$option is not a whole number"
done
(($# > 1)) || fail "flags of the run are missing: launch/slurm.sh -- --config=configs/smoke.py --workdir=/shared/smoke"
shift
if [[ -z $DRY_RUN ]] && ! command -v sbatch >/dev/null; then
  fail "sbatch is missing; run this on a login node of a Slurm cluster"
fi

ACCELERATOR="cuda$cuda" set_up
run mkdir -p runs
# The user's own flags come last: sbatch takes the last of two. A job that was requeued goes on with the same log.
run sbatch --job-name=memsinks_jax --nodes="$nodes" --ntasks-per-node="$gpus" --gpus-per-node="$gpus" \
  --cpus-per-task="$cpus" --signal="TERM@$grace" --requeue --open-mode=append --output=runs/slurm-%j.log \
  --chdir="$PWD" ${options[@]+"${options[@]}"} launch/slurm.sh --job "$restarts" "$@"
if [[ -n $DRY_RUN ]]; then
  echo "# in the job:"
  SLURM_CPUS_PER_TASK="$cpus" SLURM_JOB_ID=JOB in_job "$restarts" "$@"
fi
