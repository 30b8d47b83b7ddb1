#!/usr/bin/env bash
# Sets up and runs the fast tests; further flags go to pytest: launch/test.sh -m slow, launch/test.sh tests/test_sinks.py
EXTRAS="${EXTRAS:-tests}"
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder "$@"
