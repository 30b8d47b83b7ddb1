"""Requests to stop a command: SIGTERM or Ctrl-C on this host, or the preemption of any host.

Standard library only, and little of it: a command listens before it imports what takes time, in
which no signal may be lost.
"""

import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Iterator

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 75  # state saved: run the same command again
EXIT_AT_ONCE = 130  # a shell's exit code for a command that Ctrl-C has ended; 143 for SIGTERM
SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LOCK = "lock"  # the file that a command locks, in the folder that it writes


class Interrupted(Exception):
    """The run was asked to stop and has saved its state."""


# Incomplete output: (what is removed whole, what is removed if it is empty), each nearest first. By
# their identity: threads that write one place have equal ones.
_unfinished: dict[int, tuple[list[os.PathLike], list[os.PathLike]]] = {}
_saved = False


def end_at_once() -> None:
    """Makes a signal end the command with one line, and remove incomplete output.

    It raises no exception: libraries lose those that come during imports, garbage collection or the
    reading of a checkpoint.
    """
    for number in SIGNALS:
        # else the shell has it ignored
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):
            signal.signal(number, _end)


@contextlib.contextmanager
def atomic_folder(place: os.PathLike) -> Iterator[os.PathLike]:
    """An empty folder next to `place`, to write in. Rename what is complete: the folder is removed
    when the block ends.

    So are the parents that were made for it, if nothing was put into them. Until then no other
    command gets a folder for this place, so enter the block before work that takes long.

    Raises:
      InputError: another command has one, or has filled `place`.
    """
    from memsinks_jax.config import InputError

    outer = place.with_name(f".{place.name}.half-written")
    folder, owned = outer / "files", []
    made = owned, [outer, *(parent for parent in outer.parents if not parent.exists())]
    _unfinished[id(made)] = made
    try:
        with locked(outer, f"another command is writing {place}") as has_locks:
            if has_locks:  # then what is there was left by a command that was killed
                _remove([folder], [])
            try:
                folder.mkdir()
            except FileExistsError:
                raise InputError(
                    f"{folder} is there, of another command that writes {place} or was killed; "
                    "if there is no such "
                    f"command, remove {outer}"
                ) from None
            owned += [folder, outer / _LOCK]
            try:
                if place.is_dir() and any(place.iterdir()):
                    raise InputError(f"{place} exists; choose another place, or remove it first")
                yield folder
            finally:
                _remove(*made)  # before the lock opens
    finally:
        _remove([], made[1])
        del _unfinished[id(made)]


@contextlib.contextmanager
def locked(folder: os.PathLike, busy: str) -> Iterator[bool]:
    """Locks a folder, which is made, for this process: until the block or the process ends in any
    way. -> Whether its file system has locks; if not, that is reported.

    Args:
      busy: what to say if another command has locked it.
    Raises:
      InputError: another command has locked it.
    """
    import fcntl
    import logging
    import socket
    import time

    from memsinks_jax.config import InputError

    path = folder / _LOCK
    for attempt in itertools.count():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = path.open("a+")
        except (FileExistsError, FileNotFoundError):  # another command has just removed the folder
            if attempt < 100:
                continue
            raise
        with file:
            without = None
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise InputError(
                    f"{busy} ({file.read().strip()}); wait for it, or choose another place"
                ) from None
            except OSError as error:
                without = error.strerror
            if not (path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())):
                continue  # another command has just removed it, and a third may lock a new one
            if without:
                warning = (
                    "%s: its file system has no locks (%s): start no second command that writes "
                    "there"
                )
                logging.getLogger(__name__).warning(warning, folder, without)
            else:
                file.truncate(0)
                since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
                file.write(f"process {os.getpid()} on {socket.gethostname()} since {since}\n")
                file.flush()
            yield not without
            return


def state_is_saved() -> None:
    """From here on, the exit code means that the same command resumes."""
    global _saved
    _saved = True


def ignore() -> None:
    """Ignores signals once all is done: they would only change the exit code, or print a trace
    while Python shuts down.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _end(number: int, frame) -> None:
    ignore()
    for made in [*_unfinished.values()] * 2:  # a thread may still have written into one
        _remove(*made)
    with contextlib.suppress(OSError):
        os.write(2, b"interrupted: run the same command again\n")
    os._exit(EXIT_INTERRUPTED if _saved else 128 + number)


def _remove(whole: list[os.PathLike], empty: list[os.PathLike]) -> None:
    import shutil

    for path in whole:
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):  # it was a folder
            path.unlink()
    for folder in empty:
        with contextlib.suppress(OSError):  # it is not empty
            folder.rmdir()


class Interruption:
    """Listens from its construction on.

    Before the first step there is nothing to save, and a signal ends the process at once, even
    during a long compilation. After `save_first()` it is only noted: the loop asks `requested()`
    and saves.
    """

    def __init__(self):
        import threading

        self._asked = threading.Event()
        self._save_first = False
        self._polls = 0
        self._sync = None
        # The C handler writes the signal's number into the pipe at once; Python's own would wait
        # for C++ to return.
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        threading.Thread(
            target=self._watch, args=(reading,), daemon=True, name="interruption"
        ).start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: None)  # the pipe has it

    def use_preemption_service(self, reached_sync_point) -> None:
        """For several hosts, which must stop at the same step: from here on jax's service forwards
        a SIGTERM to all.

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
        # The service agrees on the number after the last one, so nothing else may ask it, and
        # numbers must be consecutive.
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
                print(
                    "interrupted: before the first step; run the same command again to resume",
                    file=sys.stderr,
                )
                sys.stderr.flush()
                os._exit(EXIT_INTERRUPTED)
            if self._sync is not None and number == signal.SIGINT:
                os.kill(os.getpid(), signal.SIGTERM)  # the one that the service listens to
            if interrupts > 1:
                os._exit(EXIT_AT_ONCE)
