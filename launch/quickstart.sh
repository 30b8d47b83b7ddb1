#!/usr/bin/env bash
# Makes the environment and trains three models on the embedded stories: standard, without repeats, with memory by context.
# Switches the memory off and writes a report. Takes minutes on a laptop. Other flags go to the command:
# launch/quickstart.sh --seeds=0,1,2
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
python -m memsinks_jax.reproduce --figure=4 --preset=laptop --seeds=0 --variants=standard,no_repeat_steps,context \
  --config.data.unique_documents=2000 --config.data.repetitions=64 --out=runs/quickstart "$@"
