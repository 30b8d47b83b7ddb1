# Sourced by the other scripts: a virtual environment with what requirements.txt names, made once and kept.
#   PYTHON   the interpreter to make it with (default: python3)
#   VENV     where it lives (default: .venv)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON="${PYTHON:-python3}"
VENV="${VENV:-.venv}"

if ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "error: $PYTHON is missing or older than 3.11; install Python 3.11 or newer, or set PYTHON=/path/to/python" >&2
  exit 2
fi
if ! cmp -s requirements.txt "$VENV/requirements.txt"; then
  echo "setting up $VENV (once, a minute or two)" >&2
  "$PYTHON" -m venv "$VENV"
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check -r requirements.txt
  cp requirements.txt "$VENV/requirements.txt"
fi
python() { "$VENV/bin/python" "$@"; }
