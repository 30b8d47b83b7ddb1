"""The rules of WORKSPACE.md that a program can check."""

import ast
import importlib.util
import itertools
import re
import tomllib

import pytest
from conftest import ROOT

import memsinks_jax
from memsinks_jax.config import CHOICES, RANGES, Config, flatten, validate

PACKAGE = ROOT / "memsinks_jax"
FILES = sorted(PACKAGE.rglob("*.py"))

# A room may import itself and the rooms named here. Commands and figures, which use everything, are not listed.
MAY_IMPORT = {
    "config": set(),
    "variants": {"config"},
    "reporting": set(),
    "data": {"config"},
    "preparing": {"config", "reporting", "data"},
    "sinks": {"config"},
    "model": {"config", "data", "sinks"},
    "evals": {"config", "sinks", "data", "model"},
    "runs": {"config", "variants", "sinks", "data", "interop", "training"},
    "training": {"config", "sinks", "data", "model", "evals", "runs"},
    "planning": {"config", "sinks", "data", "model", "training", "evals"},
    "interop": {"config", "sinks", "data", "model", "evals"},
    "baselines": {"config", "sinks", "model", "evals"},
    "editing": {"config", "reporting", "sinks", "data", "model", "runs"},
    "auditing": {"config", "sinks", "data", "model", "evals", "interop", "runs", "training", "reporting", "baselines"},
    "forgetting": {"config", "sinks", "data", "model", "evals", "interop", "runs", "reporting"},
    "labs": {"config", "runs", "reporting"},
}
# What opens a run is built on the parts of training; the loop alone is built on what opens a run, and on the evals.
OF_THE_LOOP = {"evals", "runs"}


def room(path):
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else path.stem


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            is_package = node.module == "memsinks_jax"
            yield from (f"{node.module}.{alias.name}" if is_package else node.module for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_datas_way(path):
    here = room(path)
    for name in imports(path):
        top, *rest = name.split(".")
        assert top not in ("torch", "transformers"), f"{path} imports {name}"
        if here in ("data", "config", "reporting") or path.stem == "interruption":
            assert top not in ("jax", "flax", "optax", "orbax"), f"{path} imports {name}"
        if top == "memsinks_jax" and here in MAY_IMPORT and rest[0] not in (here, "__version__"):
            assert rest[0] in MAY_IMPORT[here], f"{path} imports {name}"
            if here == "training" and rest[0] in OF_THE_LOOP and rest[-1] != "interruption":
                assert path.stem == "loop", f"{path} imports {name}"


def reached():
    """{file: the files that it imports, also inside of functions, and what these import}, by the names of modules."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}
    direct = {}
    for name, path in names.items():
        found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in names:
                within = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= within & set(names) | ({node.module} if within - set(names) else set())
        direct[name] = found
    beyond = {name: set(found) for name, found in direct.items()}
    for _ in names:
        larger = {name: found.union(*(beyond[other] for other in found)) for name, found in beyond.items()}
        if larger == beyond:
            return beyond
        beyond = larger


def test_no_file_is_imported_by_what_it_imports():
    """But for figures, of which each has its measures in a second file."""
    circles = [name for name, found in reached().items() if name in found and ".figures" not in name]
    assert not circles


@pytest.mark.parametrize("command", ["api", "train", "evaluate", "generate", "export", "forget", "prepare", "import"])
def test_using_a_model_needs_no_audit(command):
    assert not [name for name in reached()[f"memsinks_jax.{command}"] if ".auditing" in name or ".figures" in name]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_programs_run_on_the_mesh_of_their_parameters(path):
    """By placement.jit, or in a context that sets the mesh."""
    if room(path) not in ("labs", "training", "evals") and path.stem != "placement":
        assert "jax.jit" not in path.read_text(), f"{path}: placement.jit knows the mesh"


def test_the_rooms_that_are_checked_exist():
    assert set(MAY_IMPORT) <= {room(path) for path in FILES}


def test_pip_installs_what_is_no_python():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"][
        "memsinks_jax"
    ]
    others = [path for path in PACKAGE.rglob("*.*") if path.suffix not in (".py", ".pyc")]
    assert {path.suffix for path in others} >= {".json", ".html"}
    assert set(others) <= {path for pattern in patterns for path in PACKAGE.glob(pattern)}


def test_every_field_is_read_somewhere():
    text = "\n".join(path.read_text() for path in FILES if path.name != "config.py")
    for name in flatten(Config()):
        assert f".{name.split('.')[-1]}" in text, f"nothing reads config.{name}"


def test_every_field_has_a_rule_or_is_a_switch():
    free = {name for name, value in flatten(Config()).items() if isinstance(value, bool)} | {
        "variant",
        "data.files",
        "general.files",
        "data.tokenizer",
        "model.initial",
    }
    assert set(CHOICES) | set(RANGES) | free == set(flatten(Config()))


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.py")), ids=lambda path: path.stem)
def test_every_config_loads_in_every_variant(path):
    module = load(path)
    tables = [getattr(module, name) for name in ("SIZES", "VARIANTS", "PRESETS") if hasattr(module, name)]
    choices = list(itertools.product(*tables))
    seen = [validate(module.get_config(*[",".join(choice)] * bool(choice))) for choice in choices]
    assert all(isinstance(config, Config) for config in seen)
    assert "python -m memsinks_jax.train --config=configs/" in module.__doc__
    for config, choice in zip(seen, choices, strict=False):
        assert not choice or config.variant in choice


def test_the_front_page_is_short_and_every_link_leads_somewhere():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_version_to_cite_is_that_of_the_package():
    cited = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {memsinks_jax.__version__}\n" in cited
    assert f"\n## {memsinks_jax.__version__}" in (ROOT / "CHANGELOG.md").read_text()
