"""Missing hosts are named."""

import concurrent.futures
import socket
import time

import pytest
from conftest import expect_input_error

from memsinks_jax.training import hosts
from memsinks_jax.training.rendezvous import missing_hosts


@pytest.fixture
def place():
    with socket.create_server(("localhost", 0)) as free:
        return f"localhost:{free.getsockname()[1]}"


def call(place, processes, present, seconds=1.0, late=None):
    """The result of each present process; `late` comes half a second after the others."""

    def one(process):
        time.sleep(0.5 if process == late else 0)
        return missing_hosts(place, processes, process, seconds)

    with concurrent.futures.ThreadPoolExecutor(len(present)) as pool:
        return list(pool.map(one, present))


@pytest.mark.parametrize("late", [None, 0, 2])
def test_all_come(place, late):
    assert call(place, 3, [0, 1, 2], seconds=20, late=late) == [[], [], []]
    # the coordinator's port is free at once
    with socket.create_server(("localhost", int(place.split(":")[1]))):
        pass


def test_the_missing_are_named_to_all_who_came(place):
    assert call(place, 4, [0, 2]) == [[1, 3], [1, 3]]


def test_without_process_0_the_others_know_no_more(place):
    assert call(place, 3, [1, 2]) == [None, None]


def test_a_stranger_at_the_port_is_not_counted(place):
    host, port = place.split(":")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        missing = pool.submit(missing_hosts, place, 2, 0, 1.5)
        time.sleep(0.3)
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert missing.result() == [1]


def test_the_command_says_it_in_one_line(place, monkeypatch):
    monkeypatch.setattr(hosts, "_START_SECONDS", 1)
    with expect_input_error(f"--coordinator={place}: process 1, 2 of 3 did not connect within 1 s"):
        hosts.start(place, 3, 0)
    with expect_input_error(f"process 0 at {place} of 3 did not connect"):
        hosts.start(place, 3, 1)
    with expect_input_error("HOST:PORT"):
        hosts.start("nowhere", 3, 1)


def test_a_process_beyond_the_last_does_not_wait_for_others(place):
    with expect_input_error("--process=7: of --processes=2 the last is --process=1"):
        hosts.start(place, 2, 7)
