"""The rules of WORKSPACE.md that a program can check."""

import ast
import dataclasses
import importlib.util
import itertools
import re
import tomllib

import pytest
from conftest import ROOT

import memsinks_jax
from memsinks_jax.config import RULES, Config, flatten, validate

PACKAGE = ROOT / "memsinks_jax"
FILES = sorted(PACKAGE.rglob("*.py"))

# A room may import itself and the rooms named here. Commands, the loop that is behind `train`, and
# the figures of the studies, which use everything, are not listed.
MAY_IMPORT = {
    "families": set(),
    "private_interfaces": set(),
    "config": {"families"},
    "variants": {"config"},
    "plugin": {"config"},
    "atomic": set(),
    "reporting": {"atomic"},
    "data": {"config", "plugin", "sinks"},
    "preparing": {"atomic", "config", "reporting", "data"},
    "sinks": {"config"},
    "model": {"config", "families", "data", "sinks"},
    "runs": {"atomic", "config", "private_interfaces", "variants", "data", "model"},
    "training": {
        "atomic",
        "config",
        "families",
        "plugin",
        "private_interfaces",
        "sinks",
        "data",
        "model",
    },
    "planning": {"config", "private_interfaces", "sinks", "data", "model", "training", "measures"},
    "models": {"config", "families", "sinks", "data", "model", "training", "runs"},
    "editing": {"atomic", "config", "reporting", "sinks", "data", "model", "models", "runs"},
    "measures": {
        "config",
        "plugin",
        "sinks",
        "data",
        "model",
        "models",
        "runs",
        "training",
        "reporting",
    },
    "forgetting": {"config", "sinks", "data", "model", "measures", "models", "runs", "reporting"},
    "studies.attacks": {
        "config",
        "families",
        "sinks",
        "data",
        "model",
        "measures",
        "runs",
        "training",
        "reporting",
    },
    "studies.baselines": {"config", "sinks", "model", "measures"},
    "studies.methods": {"config", "sinks", "data", "training"},
    "studies.labs": {"atomic", "config", "runs", "reporting"},
    "studies.published": {"config", "data", "editing", "models", "reporting", "runs"},
}


def room(path):
    *folders, _ = path.relative_to(PACKAGE).parts
    return ".".join(folders[: 1 + (folders[0] == "studies")]) if folders else path.stem


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            is_package = node.module == "memsinks_jax"
            yield from (
                f"{node.module}.{alias.name}" if is_package else node.module for alias in node.names
            )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_datas_way(path):
    here = room(path)
    for name in imports(path):
        top, *rest = name.split(".")
        assert top not in ("torch", "transformers"), f"{path} imports {name}"
        if (
            here in ("data", "config", "families", "reporting")
            or path.stem == "interruption"
            or (here == "sinks" and path.stem in ("__init__", "kinds", "opening"))
        ):
            assert top not in ("jax", "flax", "optax", "orbax"), f"{path} imports {name}"
        if (
            top == "memsinks_jax"
            and here in MAY_IMPORT
            and rest[0] != "__version__"
            and not name.startswith(f"{top}.{here}")
        ):
            # which imports nothing, and all that runs long asks
            of_signals = name.startswith("memsinks_jax.runs.interruption")
            assert rest[0] in MAY_IMPORT[here] or of_signals, f"{path} imports {name}"


def test_private_interfaces_of_libraries_are_in_one_file():
    for path in FILES:
        used = [
            name for name in imports(path) if "._" in name and not name.startswith("memsinks_jax")
        ]
        # A name with an underscore of an object that this file did not make: of self.maker._part,
        # or maker._part.
        used += re.findall(r"self\.\w+\._[a-z]\w*(?=\.)", path.read_text())
        assert bool(used) == (path.stem == "private_interfaces"), f"{path}: {used}"


def test_what_is_imported_is_there():
    """Also inside of functions that no test calls."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("memsinks_jax"):
                module = ROOT / node.module.replace(".", "/")
                file = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
                text = file.read_text() if file.exists() else ""
                for name in (alias.name for alias in node.names):
                    is_module = (
                        name == "__doc__"
                        or (module / name).is_dir()
                        or (module / f"{name}.py").exists()
                    )
                    assert is_module or re.search(rf"\b{name}\b", text), (
                        f"{path} imports {node.module}.{name}"
                    )


def reached():
    """{file: the files that it imports, also inside of functions, and what these import}, by the
    names of modules.
    """
    names = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in FILES
    }
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
        larger = {
            name: found.union(*(beyond[other] for other in found)) for name, found in beyond.items()
        }
        if larger == beyond:
            return beyond
        beyond = larger


def test_no_file_is_imported_by_what_it_imports():
    """But for figures, of which each has its measures in a second file."""
    circles = [
        name for name, found in reached().items() if name in found and ".figures" not in name
    ]
    assert not circles


COMMANDS = {
    path: ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (*PACKAGE.glob("*.py"), *PACKAGE.glob("labs/*.py"))
    if "command_line.run(" in path.read_text()
}


def test_nothing_of_the_library_imports_a_study():
    """Commands do, to run them."""
    for path in FILES:
        if path not in COMMANDS and not room(path).startswith("studies"):
            assert not [
                name for name in imports(path) if name.startswith("memsinks_jax.studies")
            ], path


def test_nothing_imports_a_command_and_only_commands_the_command_line():
    """A command is its help, its flags, one call, and what is printed."""
    assert len(COMMANDS) > 15
    for path in FILES:
        assert not set(COMMANDS.values()) & set(imports(path)), path
        if path not in COMMANDS and path.stem != "command_line":
            assert "command_line" not in re.findall(
                r"\w+", "".join(re.findall(r"^ *from .*", path.read_text(), re.M))
            ), path


def measures_of_a_run():
    """What `loop.py` measures while a run trains, and what these measures need of their room."""
    there, asked = reached(), set(imports(PACKAGE / "loop.py"))
    asked = {name for name in asked if ".measures." in name}
    return asked.union(*(there[name] for name in asked))


def test_measures_of_a_run_know_nothing_of_training():
    found = measures_of_a_run()
    assert any(name.endswith("document_loss") for name in found)
    assert not [name for name in found if re.search(r"\.(training|models|runs)\b", name)]


@pytest.mark.parametrize(
    "command",
    ["api", "train", "plan", "evaluate", "generate", "export", "forget", "prepare", "import"],
)
def test_using_a_model_needs_no_audit(command):
    assert not [
        name
        for name in reached()[f"memsinks_jax.{command}"] - measures_of_a_run()
        if ".measures." in name or ".studies" in name
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_programs_run_on_the_mesh_of_their_parameters(path):
    """By placement.jit, or in a context that sets the mesh."""
    of_its_own = path.stem in ("placement", "document_loss")
    if room(path) not in ("studies.labs", "training") and not of_its_own:
        assert "jax.jit" not in path.read_text(), f"{path}: placement.jit knows the mesh"


def test_the_rooms_that_are_checked_exist():
    assert set(MAY_IMPORT) <= {room(path) for path in FILES}


def test_pip_installs_what_is_no_python():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "package-data"
    ]["memsinks_jax"]
    others = [path for path in PACKAGE.rglob("*.*") if path.suffix not in (".py", ".pyc")]
    assert {path.suffix for path in others} >= {".json", ".html"}
    assert set(others) <= {path for pattern in patterns for path in PACKAGE.glob(pattern)}


SECTIONS = {
    field.name: field.type
    for field in dataclasses.fields(Config)
    if dataclasses.is_dataclass(field.type)
}
TYPES = {kind.__name__: name for name, kind in SECTIONS.items()} | {"Config": ""}


def section_of(node, known):
    """The section that an expression is, "" for a whole config, else None. `known`: of variables,
    and of .attributes.
    """
    if isinstance(node, ast.Name):
        return known.get(node.id, "" if node.id.endswith("config") else None)
    if isinstance(node, ast.Attribute):
        if node.attr in SECTIONS and section_of(node.value, known) == "":
            return node.attr
        return known.get(f".{node.attr}", "" if node.attr.endswith("config") else None)
    return None


def names_of_sections(scope, known):
    """What annotations and assignments of a function or class say: `data = config.data`, `settings:
    SinksConfig`.
    """
    found = dict(known)
    for node in ast.walk(scope):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            name = node.arg if isinstance(node, ast.arg) else ast.unparse(node.target)
            kinds = {
                TYPES[word]
                for word in re.findall(r"\w+", ast.unparse(node.annotation))
                if word in TYPES
            }
            found |= dict.fromkeys(
                (name, f".{name}") if isinstance(node, ast.AnnAssign) else (name,), *kinds or [None]
            )
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            pairs = [(node.targets[0], node.value)]
            if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(node.targets[0].elts, node.value.elts, strict=False)
            for target, value in pairs:
                if (
                    isinstance(target, ast.Name | ast.Attribute)
                    and (section := section_of(value, found)) is not None
                ):
                    found[target.id if isinstance(target, ast.Name) else f".{target.attr}"] = (
                        section
                    )
    return found


def fields_read(node, known):
    """Names like those of `flatten`, of every attribute that a program reads of a config or of a
    section.
    """
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        known = names_of_sections(node, known)
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        section = section_of(node.value, known)
        if section is not None:
            yield f"{section}.{node.attr}".lstrip(".")
    for child in ast.iter_child_nodes(node):
        yield from fields_read(child, known)


def test_every_field_is_read_somewhere():
    read = set()
    for path in FILES:
        if path.name != "config.py":
            read |= set(fields_read(ast.parse(path.read_text()), {}))
    # What properties of the model's section read; their names are not those of fields.
    sections = ast.parse((PACKAGE / "config.py").read_text()).body
    model = next(node for node in sections if getattr(node, "name", "") == "ModelConfig")
    read |= {f"model.{node.attr}" for node in ast.walk(model) if isinstance(node, ast.Attribute)}
    fields = set(flatten(Config()))
    assert sorted(fields - read) == [], "nothing reads these fields"
    # A name that some other section has does not count: no made-up field of such a name is found.
    made_up = {
        f"{section}.{name.rpartition('.')[2]}" for section in SECTIONS for name in fields
    } - fields
    assert {"canaries.kind", "mesh.seed", "sinks.files"} <= made_up and not made_up & read


def test_every_field_says_what_it_is_and_has_a_rule_or_is_a_switch_or_free_text():
    free_text = {"variant", "data.files", "general.files", "data.tokenizer", "model.initial"}
    free_text |= {"training.method", "data.schedule"}
    free_text |= {"model.rope_scaling", "model.rotary_layers", "model.window_layers"}
    for name, value in flatten(Config()).items():
        rule = RULES[name]
        assert str(rule), f"nothing is said of {name}"
        is_free = isinstance(value, bool) or name in free_text
        assert bool(rule.choices) + bool(rule.interval) == (not is_free), name
        assert isinstance(value, str) == bool(rule.choices) or is_free, name
        assert not rule.broken_by(value), name


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs").glob("*.py")), ids=lambda path: path.stem
)
def test_every_config_loads_in_every_variant(path):
    module = load(path)
    tables = [
        getattr(module, name) for name in ("SIZES", "VARIANTS", "PRESETS") if hasattr(module, name)
    ]
    choices = list(itertools.product(*tables))
    seen = [validate(module.get_config(*[",".join(choice)] * bool(choice))) for choice in choices]
    assert all(isinstance(config, Config) for config in seen)
    assert "python -m memsinks_jax.train --config=configs/" in module.__doc__
    for config, choice in zip(seen, choices, strict=False):
        assert not choice or config.variant in choice


def test_the_front_page_is_short_and_every_link_leads_somewhere():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 125
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target, heading in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
            linked = page.parent / target if target else page
            assert "://" in target or linked.exists(), f"{page.name} links to {target}"
            if heading and "://" not in target:
                titles = re.findall(r"^#+ (.*)", linked.read_text(), re.MULTILINE)
                anchors = [
                    re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles
                ]
                assert heading in anchors, f"{page.name} links to {target}#{heading}"


def test_the_version_to_cite_is_that_of_the_package():
    cited = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {memsinks_jax.__version__}\n" in cited
