"""Reports where a run hangs: a loader, a collective or a file system that never answers raises no
error.
"""

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Watchdog:
    """Watches the phases of a loop, and background saves, from a thread of its own.

    `faulthandler.dump_traceback_later` writes stacks alone: neither the phase, nor the state of the
    loader, nor a save in the background.

    Args:
      seconds: a longer phase is reported, and again each time as much has passed.
      state: describes the loader and the device in one line; called for a report.
      saving_seconds: how long a save has been running, 0.0 if none is.
    """

    def __init__(
        self, seconds: float, state: Callable[[], str], saving_seconds: Callable[[], float]
    ):
        self._seconds, self._state, self._saving_seconds = seconds, state, saving_seconds
        self._phase, self._since = "starting", time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="watchdog")
        self._thread.start()

    def phase(self, name: str) -> None:
        """Notes that the loop enters another phase."""
        self._phase, self._since = name, time.monotonic()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        reported = {}
        while not self._closed.wait(min(self._seconds / 4, 5.0)):
            phase, since = self._phase, self._since
            lasting = {(phase, since): time.monotonic() - since, "save": self._saving_seconds()}
            for what, seconds in lasting.items():
                times = int(seconds / self._seconds)
                if times > reported.get(what, 0):
                    self._report(
                        "saving a checkpoint in the background" if what == "save" else phase,
                        seconds,
                    )
                reported = {key: reported.get(key, 0) for key in lasting} | {what: times}

    def _report(self, phase: str, seconds: float) -> None:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        stacks = "".join(
            f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
            for ident, frame in sys._current_frames().items()
        )
        logger.warning(
            "stalled for %.0f s: %s; %s; stacks of all threads:\n%s",
            seconds,
            phase,
            self._state(),
            stacks,
        )
