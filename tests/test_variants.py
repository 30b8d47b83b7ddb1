"""Where configs are found: by their path, and by their name from any folder."""

import tomllib

import pytest
from conftest import ROOT

from memsinks_jax.variants import CONFIGS, config_file


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("smoke", "smoke.py"), ("smoke.py", "smoke.py"), ("configs/smoke.py", "smoke.py"),
        ("sweeps/opens", "sweeps/opens.py"), ("configs/sweeps/opens.py", "sweeps/opens.py"),
    ],
)  # fmt: skip
def test_a_config_is_found_by_its_name_from_any_folder(name, found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert config_file(name) == CONFIGS / found


def test_a_file_of_the_users_own_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smoke.py").write_text("")
    (tmp_path / "ts_canary").mkdir()
    assert str(config_file("smoke.py")) == "smoke.py"
    assert config_file("ts_canary") == CONFIGS / "ts_canary.py"  # a folder is no config
    assert str(config_file("nowhere/else.py")) == "nowhere/else.py"


def test_an_installed_package_has_all_configs():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    installed = {path for listed in patterns.values() for pattern in listed for path in ROOT.glob(pattern)}
    assert installed == set((ROOT / "configs").rglob("*.py"))
