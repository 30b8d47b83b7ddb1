"""Where configs are found: by their path, and by their name from any folder."""

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import venv

import pytest
from conftest import ROOT

from memsinks_jax.variants import CONFIGS, config_file


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("smoke", "smoke.py"),
        ("smoke.py", "smoke.py"),
        ("configs/smoke.py", "smoke.py"),
        ("sweeps/opens", "sweeps/opens.py"),
        ("configs/sweeps/opens.py", "sweeps/opens.py"),
    ],
)
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


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of the checkout, which a build writes into."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("memsinks_jax", "configs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "requirements.txt"):
        shutil.copy(ROOT / name, folder)
    return folder


def configs_seen_from(where, *paths, python=sys.executable, env=None):
    """The folder of configs that the package finds, and their names, as run in another folder."""
    asked = f"""import sys
sys.path.append({sysconfig.get_path("purelib")!r})  # what the package needs
from memsinks_jax.variants import CONFIGS, config_file
print(CONFIGS, config_file("sweeps/opens").is_file(), *sorted(path.name for path in CONFIGS.rglob("*.py")))
"""
    env = (env or os.environ) | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run([python, "-c", asked], cwd=where, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    configs, has_one, *names = done.stdout.split()
    assert has_one == "True"
    return pathlib.Path(configs), names


NAMES = sorted(path.name for path in (ROOT / "configs").rglob("*.py"))


def test_a_checkout_finds_its_configs(tmp_path):
    assert configs_seen_from(tmp_path, ROOT) == (ROOT / "configs", NAMES)


def test_a_built_package_has_all_files_and_finds_its_configs(source, tmp_path):
    """Wherever it is put: they are inside of it."""
    command = [sys.executable, "setup.py", "-q", "build_py", f"--build-lib={tmp_path / 'site'}"]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (tmp_path / "site" / "configs").mkdir()  # of another package
    assert configs_seen_from(tmp_path, tmp_path / "site") == (
        tmp_path / "site" / "memsinks_jax" / "configs",
        NAMES,
    )
    built, ours = (
        {
            path.relative_to(folder)
            for path in folder.rglob("*.*")
            if "__pycache__" not in path.parts
        }
        for folder in (tmp_path / "site" / "memsinks_jax", ROOT / "memsinks_jax")
    )
    assert {path for path in built if path.parts[0] != "configs"} == ours


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--target={}", "--user", "--prefix={}", "--quiet", "--editable"])
def test_an_installed_package_finds_its_configs(flag, source, tmp_path):
    """By pip, into an environment of its own that sees the packages of this one."""
    venv.create(tmp_path / "venv", system_site_packages=True, with_pip=True)
    python, site = str(tmp_path / "venv" / "bin" / "python"), tmp_path / "site"
    env = os.environ | {"PYTHONUSERBASE": str(tmp_path / "user"), "PYTHONPATH": ""}
    command = [python, "-m", "pip", "install", "-q", "--no-deps", flag.format(site), str(source)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if "No matching distribution found for setuptools" in done.stderr:
        pytest.skip("setuptools cannot be downloaded")
    assert done.returncode == 0, done.stderr
    configs, names = configs_seen_from(
        tmp_path, site, *site.glob("lib/*/site-packages"), python=python, env=env
    )
    assert names == NAMES
    assert configs.is_relative_to(source if flag == "--editable" else tmp_path)
