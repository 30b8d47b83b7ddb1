#!/usr/bin/env bash
# What launch/tpu_vm.sh does on each worker, in its home folder: setup [MOUNT], run FLAGS, log, code, stop.
# The code is in memsinks_jax/, next to train.log, and run.lock, which is held as long as a run lives.
set -euo pipefail
mkdir -p memsinks_jax

mount_shared() { # HOST:/SHARE or gs://BUCKET
  local apt=(sudo DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=600)
  local google=https://packages.cloud.google.com/apt key=/usr/share/keyrings/gcsfuse.asc
  sudo mkdir -p /mnt/shared
  if [[ $1 == gs://* ]]; then
    curl -fsS $google/doc/apt-key.gpg | sudo tee $key >/dev/null
    echo "deb [signed-by=$key] $google gcsfuse-$(lsb_release -cs) main" |
      sudo tee /etc/apt/sources.list.d/gcsfuse.list >/dev/null
    "${apt[@]}" update
    "${apt[@]}" install gcsfuse >/dev/null
    sudo chown "$USER" /mnt/shared
    # Without caches of names and sizes, or a worker would not see at once what another has written.
    gcsfuse --implicit-dirs --metadata-cache-ttl-secs=0 --metadata-cache-negative-ttl-secs=0 "${1#gs://}" /mnt/shared
  else
    "${apt[@]}" update
    "${apt[@]}" install nfs-common >/dev/null
    sudo mount -t nfs -o hard "$1" /mnt/shared
    sudo chmod 1777 /mnt/shared # a new share belongs to root
  fi
}

case "$1" in
  setup)
    if ! flock --nonblock memsinks_jax/run.lock true; then
      echo "$HOSTNAME: a run is going on and left as it is" >&2
      exit
    fi
    tar -xzf memsinks_jax.tar.gz -C memsinks_jax
    [[ -z ${2-} ]] || mountpoint -q /mnt/shared || mount_shared "$2"
    if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then # the images of v4 to v6e have 3.10
      python3 -m pip install --quiet --user uv
      python3 -m uv python install --quiet 3.12
      PYTHON="$(python3 -m uv python find 3.12)"
      export PYTHON
    fi
    ACCELERATOR=tpu bash memsinks_jax/launch/environment.sh
    ;;
  run)
    # Beyond the end of this connection, and unless a run is going on: what lives of it holds the lock. The shell outlives a
    # TERM to its group, which is how a run is stopped, to write down the exit code.
    cd memsinks_jax
    exec 9>run.lock
    if flock --nonblock 9; then
      rm -f exit_code
      # shellcheck disable=SC2016  # for the inner shell to expand
      setsid nohup bash -c 'trap : TERM; .venv/bin/python -m memsinks_jax.train --coordinator=auto "$@"
        echo $? >exit_code' train "${@:2}" >>train.log 2>&1 </dev/null &
      echo $! >run.pid
    fi
    ;;
  log) # until the run ends
    cd memsinks_jax
    tail -n 20 -F --pid="$(cat run.pid)" train.log
    ;;
  code) # when the run has ended; one that has left no code was killed
    cd memsinks_jax
    flock --shared run.lock true
    code="$(cat exit_code 2>/dev/null || echo 75)"
    [[ $code == 0 ]] || tail -n 2 train.log | sed "s/^/$HOSTNAME: /" >&2
    echo "exit_code=$code"
    ;;
  stop)
    cd memsinks_jax
    flock --nonblock run.lock true || kill -TERM -- "-$(cat run.pid)"
    ;;
esac
