"""The hosts of a run rendezvous before jax starts: jax would abort without naming the missing
hosts.

Process 0 listens at the coordinator's address. The others connect and send their number. When all
are connected, or time is up, it sends each of them the result. Standard library only.
"""

import contextlib
import json
import socket
import time

_RETRY_SECONDS = 0.2


def missing_hosts(
    coordinator: str, processes: int, process: int, seconds: float
) -> list[int] | None:
    """Waits until all hosts are there -> [], or until the timeout in seconds -> the numbers of the
    missing ones.

    None: process 0 could not be reached.

    Raises:
      OSError: process 0 cannot listen there; ValueError: `coordinator` is not HOST:PORT.
    """
    host, separator, port = coordinator.rpartition(":")
    if not separator or not port.isdigit():
        raise ValueError(f"{coordinator!r} is not HOST:PORT")
    place, end = (host.strip("[]"), int(port)), time.monotonic() + seconds
    return _gather(place, processes, end) if process == 0 else _report(place, process, end, seconds)


def _gather(place: tuple[str, int], processes: int, end: float) -> list[int]:
    present: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as held:
        family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        listener = held.enter_context(socket.create_server(("", place[1]), family=family))
        while len(present) < processes - 1 and (left := end - time.monotonic()) > 0:
            listener.settimeout(left)
            with contextlib.suppress(OSError, ValueError, KeyError):  # a stranger
                connection = held.enter_context(listener.accept()[0])
                connection.settimeout(5)
                present[int(json.loads(connection.makefile().readline())["process"])] = connection
        missing = sorted(set(range(1, processes)) - set(present))
        for connection in present.values():
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps({"missing": missing}).encode() + b"\n")
                connection.recv(1)  # the other side closes first: the port is free at once
    return missing


def _report(place: tuple[str, int], process: int, end: float, seconds: float) -> list[int] | None:
    while (left := end - time.monotonic()) > 0:
        # not listening yet, or another program
        refused = contextlib.suppress(OSError, ValueError, KeyError)
        with refused, socket.create_connection(place, timeout=left) as connection:
            connection.sendall(json.dumps({"process": process}).encode() + b"\n")
            # process 0 may have started later, and then waits longer
            connection.settimeout(left + seconds)
            return json.loads(connection.makefile().readline())["missing"]
        time.sleep(_RETRY_SECONDS)
    return None
