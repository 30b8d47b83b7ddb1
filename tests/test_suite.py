"""The suite itself: what its tests run is what users run."""

import subprocess
import sys

from conftest import ROOT


def test_children_of_tests_listen_to_signals_wherever_the_suite_is_started():
    """A shell has SIGINT ignored in the background, and its children would inherit that."""
    child = "import signal; print(*(signal.getsignal(n) is signal.SIG_IGN for n in (signal.SIGINT, signal.SIGTERM)))"
    for module, ignored in (("os", "True True"), ("conftest", "False False")):  # without conftest they are: it can fail
        program = f"import subprocess, sys, {module}; subprocess.run([sys.executable, '-c', {child!r}], check=True)"
        done = subprocess.run(
            ["bash", "-c", "trap '' INT TERM; exec \"$@\"", "-", sys.executable, "-c", program],
            capture_output=True, text=True, cwd=ROOT / "tests", check=True,
        )  # fmt: skip
        assert done.stdout.strip() == ignored
