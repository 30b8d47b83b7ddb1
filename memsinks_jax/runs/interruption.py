"""Requests to stop a command: SIGTERM or Ctrl-C on this host, or the preemption of any host.

Standard library only, and little of it: a command listens before it imports what takes time, in which no signal may be lost.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 75  # state saved: run the same command again
EXIT_AT_ONCE = 130  # a shell's exit code for a command that Ctrl-C has ended; 143 for SIGTERM
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """The run was asked to stop and has saved its state."""


_unfinished: list[list[os.PathLike]] = []  # each folder, and the parents made for it, nearest first
_saved = False


def end_at_once() -> None:
    """Makes a signal end the command with one line, and remove incomplete output.

    It raises no exception: libraries lose those that come during imports, garbage collection or the reading of a checkpoint.
    """
    for number in SIGNALS:
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):  # else the shell has it ignored
            signal.signal(number, _end)


@contextlib.contextmanager
def atomic_folder(place: os.PathLike) -> Iterator[os.PathLike]:
    """An empty folder next to `place`, to write in. Rename what is complete: the folder is removed when the block ends.

    So are the parents that were made for it, if nothing was put into them.
    """
    folder = place.with_name(f".{place.name}.half-written")
    _remove(folder)  # left by a command that was killed
    made = [folder, *(parent for parent in folder.parents if not parent.exists())]
    _unfinished.append(made)
    try:
        folder.mkdir(parents=True)
        yield folder
    finally:
        _remove(*made)
        _unfinished.remove(made)


def state_is_saved() -> None:
    """From here on, the exit code means that the same command resumes."""
    global _saved
    _saved = True


def ignore() -> None:
    """Ignores signals once all is done: they would only change the exit code, or print a trace while Python shuts down."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _end(number: int, frame) -> None:
    ignore()
    for made in _unfinished * 2:  # a thread may still have written into it
        _remove(*made)
    with contextlib.suppress(OSError):
        os.write(2, b"interrupted: run the same command again\n")
    os._exit(EXIT_INTERRUPTED if _saved else 128 + number)


def _remove(folder: os.PathLike, *parents: os.PathLike) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
    for parent in parents:
        with contextlib.suppress(OSError):  # it is not empty
            parent.rmdir()


class Interruption:
    """Listens from its construction on.

    Before the first step there is nothing to save, and a signal ends the process at once, even during a long compilation.
    After `save_first()` it is only noted: the loop asks `requested()` and saves.
    """

    def __init__(self):
        import threading

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
