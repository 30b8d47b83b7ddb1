"""What all commands do before their own work."""

import os
import pathlib

import jax
import pytest

from memsinks_jax import command_line


@pytest.fixture
def no_cache_named(monkeypatch, tmp_path):
    """A user who has named no folder for compiled programs; jax's own setting is put back."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    before = jax.config.jax_compilation_cache_dir
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", before)


def test_compiled_programs_are_kept_in_a_folder_of_the_processor(no_cache_named, monkeypatch):
    command_line.keep_compiled_programs()
    first = pathlib.Path(jax.config.jax_compilation_cache_dir)
    assert first.parent == no_cache_named / "memsinks_jax"
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(first)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setattr("platform.machine", lambda: "another")
    command_line.keep_compiled_programs()
    assert jax.config.jax_compilation_cache_dir != str(first)


def test_a_folder_that_the_user_names_is_left_alone(no_cache_named, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/elsewhere")
    before = jax.config.jax_compilation_cache_dir
    command_line.keep_compiled_programs()
    assert jax.config.jax_compilation_cache_dir == before
