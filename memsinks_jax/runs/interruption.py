"""Requests to stop a run: SIGTERM or Ctrl-C on this host, or the preemption of any host.

Standard library only: a command listens before it imports jax, which takes seconds in which no signal may be lost.
"""

import os
import signal
import sys
import threading

EXIT_INTERRUPTED = 75  # state saved: run the same command again
EXIT_AT_ONCE = 130  # what a shell gives a command that Ctrl-C has ended; 143 if SIGTERM has
ENDED = "interrupted: run the same command again"
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def end_at_once() -> None:
    """Ctrl-C or SIGTERM ends a command with a line while it is imported: some libraries would swallow an exception."""
    for number in SIGNALS:
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):  # else the shell has it ignored
            signal.signal(number, _end)


def raise_again() -> None:
    """Both are a KeyboardInterrupt from here on, whose argument is the signal, unless the command listens itself."""
    for number in SIGNALS:
        if signal.getsignal(number) is _end:
            signal.signal(number, _raise)


def ignore() -> None:
    """All is done or said: a signal would only take the exit code away, or end the interpreter's own end in a trace."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _raise(number: int, frame) -> None:
    for each in SIGNALS:
        signal.signal(each, _end)  # another one does not wait until what is half-written is removed
    raise KeyboardInterrupt(number)


def _end(number: int, frame) -> None:
    os.write(sys.__stderr__.fileno(), f"{ENDED}\n".encode())
    os._exit(128 + number)


class Interruption:
    """Listens from its construction on.

    While there is nothing to save, before the first step, a signal ends the process at once, also from within a long
    compilation. After `save_first()` it is only noted: whoever runs the loop asks `requested()` and saves.
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
        """Several hosts must stop at the same step: from here on jax's service carries a SIGTERM at any of them to all.

        Args:
          reached_sync_point: jax.experimental.multihost_utils.reached_preemption_sync_point.
        """
        self._sync = reached_sync_point

    def save_first(self) -> None:
        """There is something to save from now on."""
        self._save_first = True

    def requested(self) -> bool:
        """Whether to save and stop. With several hosts all must ask equally often; they get the same answer."""
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
