#!/usr/bin/env bash
# Sets up, trains a standard model, one without the repeats, one with sinks as published and one with sinks that open when a
# document comes back, on the embedded stories, drops the sinks, and writes a report. Minutes on a laptop. Further flags go to
# the command: launch/quickstart.sh --seeds=0,1,2
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
python -m memsinks_jax.reproduce --figure=4 --preset=laptop --seeds=0 --variants=standard,no_repeat,sinks_paper,sinks \
  --out=runs/quickstart "$@"
