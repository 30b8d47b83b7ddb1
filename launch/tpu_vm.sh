#!/usr/bin/env bash
# Trains on Cloud TPU VMs, one slice or several: launch/tpu_vm.sh COMMAND --name=NAME [OPTIONS] [-- FLAGS OF THE RUN]
#
#   launch/tpu_vm.sh train --name=sinks --zone=us-west4-a --type=v5litepod-16 --spot --mount=10.0.0.2:/runs -- \
#     --config=configs/smoke.py --workdir=/mnt/shared/smoke --config.model.dtype=bfloat16
#
# Commands:
#   create    requests the slices (a queued resource) and waits until they are ready
#   setup     copies the code of the current commit to all workers, mounts, and makes the virtual environment there
#   run       starts the run on all workers of all slices; it continues when this terminal is closed
#   log       follows the first worker's log until the run ends, with its exit code
#   train     all of these, and again after every interruption, with new slices if they were preempted; ends when the
#             run is done (0) or refuses its input (2). Ctrl-C leaves the run alone; the same command returns to it
#   stop      makes the run save and end (end `train` first, or it would restart the run)
#   delete    deletes the slices; until then they cost money
#
#   --name=NAME         name of the queued resource and its nodes
#   --zone=ZONE, --project=PROJECT    (default: gcloud's configuration)
#   --type=TYPE         accelerator type of a slice, such as v5litepod-16, v5p-64, v6e-256
#   --slices=N          (default: 1)
#   --spot              cheaper, but may be preempted at any time
#   --runtime=VERSION   version of the workers' system (default: by the type)
#   --mount=HOST:/SHARE or gs://BUCKET    mounted at /mnt/shared on all workers: NFS (Filestore), or gcsfuse
#   --create=FLAG, --ssh=FLAG    other flags for gcloud's create, or its ssh and scp; may be repeated
#   --restarts=N        how often train restarts (default: 100)
#   --delete            train deletes the slices when the run has ended
#   --dry-run           print the commands instead
#   --help
SET_UP=later
# shellcheck source-path=SCRIPTDIR source=environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

queue() { run gcloud compute tpus queued-resources "$@" "${place[@]}"; }
on() { # WHERE COMMAND; WHERE: all, or the number of node and worker
  queue ssh "$name" --node="$1" --worker="$1" "${ssh_flags[@]}" \
    --ssh-flag="-o ConnectTimeout=20 -o ServerAliveInterval=20" --command="$2"
}
worker() { on "$1" "bash memsinks_jax/launch/tpu_worker.sh $(quote "${@:2}")"; }

settle() { # waits until the state is one that stays -> $now; nothing where there is no such queued resource
  while now="$(queue list --filter="name~/$name\$" --format="value(state.state)")" || return; do
    case "$now" in "" | ACTIVE | FAILED | SUSPENDED) return ;; esac
    echo "$name: $now" >&2
    sleep "$poll"
  done
}
create() {
  local nodes=(--node-id="$name")
  ((slices == 1)) || nodes=(--node-count="$slices" --node-prefix="$name")
  queue create "$name" "${nodes[@]}" --accelerator-type="$type" --runtime-version="$runtime" \
    "${create_flags[@]}" && settle || return
  if [[ $now != ACTIVE && -z $DRY_RUN ]]; then
    echo "error: $name is ${now:-gone} and not ACTIVE" >&2
    return 1
  fi
}
delete() { queue delete "$name" --force; }
pack() { # once, so that a run goes on with the code that it began with
  [[ -n $DRY_RUN ]] || git diff --quiet HEAD || echo "changes that are not committed are not copied" >&2
  run git archive --format=tar.gz --output="$archive" HEAD
}
setup() {
  queue scp "$archive" "$name:memsinks_jax.tar.gz" --node=all --worker=all "${ssh_flags[@]}" &&
    on all "bash <(tar -xzOf memsinks_jax.tar.gz launch/tpu_worker.sh) setup $(quote "$mount")"
}
follow() { # -> $code: 0 when all workers are done; the worst if one is no interruption; else 75
  local codes
  code=75
  worker 0 log || return 0
  codes="$(worker all code)" || return 0
  codes="$(sed -n 's/^exit_code=//p' <<<"$codes" | sort -nu)"
  case "$codes" in
    0) code=0 ;;
    *) code="$(grep -vxe 0 -e 75 -e '' <<<"$codes" | head -n 1)" || code=75 ;;
  esac
}
bring_up() {
  settle || return
  case "$now" in
    ACTIVE) ;;
    "") create ;;
    *) delete && create ;;
  esac
}
train() {
  trap 'exit 130' INT # gcloud answers Ctrl-C itself, which must not be mistaken for an interruption of the run
  pack
  for ((restart = 1; ; restart++)); do
    code=75
    if bring_up && setup && worker all run "$@"; then
      follow
    elif ((restart == 1)) && { [[ $now != ACTIVE ]] || { settle && [[ $now == ACTIVE ]]; }; }; then
      exit 1 # what fails from the start, and not by a preemption, is for the user to mend
    fi
    if [[ $code != 75 || -n $DRY_RUN ]] || ((restart > restarts)); then break; fi
    echo "interrupted: restart $restart of $restarts" >&2
    sleep "$poll"
  done
  if [[ -n $DRY_RUN ]]; then
    echo "# the same again after an interruption, at most $restarts times; if FAILED or SUSPENDED, first:"
    delete && exit
  fi
  [[ -z $delete_at_end ]] || delete
  exit "$code"
}

task="${1-}" name="" type="" runtime="" mount="" slices=1 restarts=100 delete_at_end=""
now="" poll="${POLL_SECONDS:-60}"
place=(--quiet) create_flags=(--labels=program=memsinks_jax)
ssh_flags=(--strict-host-key-checking=no) # new slices of an old name have new keys
case "$task" in
  create | setup | run | log | train | stop | delete) shift ;;
  --help) show_help tpu_vm.sh && exit ;;
  *) fail "'$task' is none of create, setup, run, log, train, stop, delete; see launch/tpu_vm.sh --help" ;;
esac
while (($#)); do
  case "$1" in
    --name=*) name="${1#*=}" ;;
    --zone=?* | --project=?*) place+=("$1") ;;
    --type=*) type="${1#*=}" ;;
    --slices=*) slices="${1#*=}" ;;
    --spot) create_flags+=(--spot) ;;
    --runtime=*) runtime="${1#*=}" ;;
    --mount=gs://?* | --mount=?*:/*) mount="${1#*=}" ;;
    --create=-*) create_flags+=("${1#*=}") ;;
    --ssh=-*) ssh_flags+=("${1#*=}") ;;
    --restarts=*) restarts="${1#*=}" ;;
    --delete) delete_at_end=yes ;;
    --dry-run) dry_run ;;
    --help) show_help tpu_vm.sh && exit ;;
    --) break ;;
    *) fail "bad option $1; see launch/tpu_vm.sh --help (flags of the run come after --)" ;;
  esac
  shift
done
(($# == 0)) || shift
[[ $name =~ ^[a-z][a-z0-9-]*$ ]] || fail "--name=$name: give a name of lower-case letters, digits and hyphens"
[[ $slices =~ ^[1-9][0-9]*$ ]] || fail "--slices=$slices is not a whole number from 1 on"
[[ $restarts =~ ^[0-9]+$ ]] || fail "--restarts=$restarts is not a whole number"
case "$task $type" in
  "create v4-"* | "train v4-"*) runtime="${runtime:-tpu-ubuntu2204-base}" ;;
  "create v5litepod-"* | "train v5litepod-"*) runtime="${runtime:-v2-alpha-tpuv5-lite}" ;;
  "create v5p-"* | "train v5p-"*) runtime="${runtime:-v2-alpha-tpuv5}" ;;
  "create v6e-"* | "train v6e-"*) runtime="${runtime:-v2-alpha-tpuv6e}" ;;
  create* | train*) [[ -n $runtime ]] || fail "--type=$type is none of v4-N, v5litepod-N (v5e), v5p-N, v6e-N" ;;
esac
# Anything else than an absolute path lies on the disk of one worker, and is gone with it.
[[ $task != run && $task != train || " $*" == *" --workdir"[=\ ]/* ]] ||
  fail "the run needs a --workdir=/PATH that all workers share, after --; see --mount"
[[ -n $DRY_RUN ]] || command -v gcloud >/dev/null || fail "gcloud is missing; install the Google Cloud CLI"

archive="${TMPDIR:-/tmp}/memsinks_jax-$name.tar.gz"
case "$task" in
  setup) pack && setup ;;
  run) worker all run "$@" ;;
  log) follow && exit "$code" ;;
  stop) worker all stop ;;
  *) "$task" "$@" ;;
esac
