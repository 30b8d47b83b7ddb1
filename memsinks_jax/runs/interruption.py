"""Requests to stop a run: SIGTERM or Ctrl-C on this host, or the preemption of any host.

Standard library only: a command listens before it imports jax, which takes seconds in which no signal may be lost.
"""

import os
import signal
import sys
import threading

EXIT_INTERRUPTED = 75  # state saved: run the same command again
EXIT_AT_ONCE = 130  # a shell's exit code for a command that Ctrl-C has ended
ENDED = "interrupted: run the same command again"


def end_at_once() -> None:
    """Makes Ctrl-C end a command with a line during imports, where some libraries would swallow an exception."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else the shell has it ignored
        signal.signal(signal.SIGINT, _end)


def raise_again() -> None:
    """Makes Ctrl-C an exception from here on, unless the command listens itself."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(*_) -> None:
    os.write(sys.__stderr__.fileno(), f"{ENDED}\n".encode())
    os._exit(EXIT_AT_ONCE)


class Interruption:
    """Listens from its construction on.

    Before the first step there is nothing to save, and a signal ends the process at once, even during a long compilation.
    After `save_first()` it is only noted: the loop asks `requested()` and saves.
    """

    def __init__(self):
        self._asked = threading.Event()
        self._save_first = False
        self._polls = 0
        self._sync = None
        # The C handler writes the signal's number into the pipe at once; Python's own would wait for C++ to return.
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(reading,), daemon=True, name="interruption").start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: None)  # the pipe has it

    def use_preemption_service(self, reached_sync_point) -> None:
        """For several hosts, which must stop at the same step: from here on jax's service forwards a SIGTERM to all.

        Args:
          reached_sync_point: jax.experimental.multihost_utils.reached_preemption_sync_point.
        """
        self._sync = reached_sync_point

    def save_first(self) -> None:
        """From now on there is something to save."""
        self._save_first = True

    def requested(self) -> bool:
        """Whether to save and stop. All hosts must ask equally often, and get the same answer."""
        if self._sync is None:
            return self._asked.is_set()
        self._polls += 1
        return self._sync(self._polls)

    def _watch(self, reading: int) -> None:
        interrupts = 0
        while True:
            (number,) = os.read(reading, 1)
            if number not in (signal.SIGTERM, signal.SIGINT):
                continue
            self._asked.set()
            interrupts += number == signal.SIGINT
            if not self._save_first:
                print("interrupted: before the first step; run the same command again to resume", file=sys.stderr)
                sys.stderr.flush()
                os._exit(EXIT_INTERRUPTED)
            if self._sync is not None and number == signal.SIGINT:
                os.kill(os.getpid(), signal.SIGTERM)  # the one that the service listens to
            if interrupts > 1:
                os._exit(EXIT_AT_ONCE)
