#!/usr/bin/env bash
# Makes the environment and trains four models on the embedded stories: standard, without repeats, with sinks as published,
# and with sinks that open when a document comes back. Drops the sinks and writes a report. Takes minutes on a laptop. Other
# flags go to the command: launch/quickstart.sh --seeds=0,1,2
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
python -m memsinks_jax.reproduce --figure=4 --preset=laptop --seeds=0 --variants=standard,no_repeat,sinks_paper,sinks \
  --out=runs/quickstart "$@"
