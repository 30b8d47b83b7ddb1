"""Shared by the tests of `prepare`."""

import multiprocess
import pytest


@pytest.fixture(scope="module", autouse=True)
def managers_are_spawned():
    """datatrove forks one; the command may, which never starts jax, but a process of these tests
    may have done so.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiprocess, "Manager", multiprocess.get_context("spawn").Manager)
        yield
