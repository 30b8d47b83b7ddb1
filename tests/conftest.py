"""Shared by all tests. Nothing above the environment variables may import jax, which reads them
once.

Eight devices on a CPU, so that every mesh of the tests is a real one.
"""

import functools
import gc
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import multiprocess
import pytest

from memsinks_jax.config import (
    Config,
    DataConfig,
    InputError,
    ModelConfig,
    OptimizerConfig,
    SinksConfig,
    TrainingConfig,
    validate,
    with_fields,
)
from memsinks_jax.data.opened import Opened, nobody
from memsinks_jax.runs.command_line import keep_compiled_programs

MOST_CACHED = 2**30  # bytes of compiled programs, after which the tests begin anew
# regions of memory of a process. Linux allows 65,530; at the next one, jaxlib aborts
MOST_MAPPED = 30_000

os.environ["JAX_PLATFORMS"] = "cpu"
# Tests compile far more than they compute: the compiler's effort is turned down, to an eighth of
# its time for a step. Later versions do not know the last flag.
FAST_COMPILER = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
if importlib.metadata.version("jaxlib").startswith("0.10."):
    FAST_COMPILER += " --xla_cpu_use_fusion_emitters=false"
os.environ["XLA_FLAGS"] = f"{FAST_COMPILER} --xla_force_host_platform_device_count=8"

# Many tests, and the commands they start, compile the same programs: each is compiled once and
# cached next to those of the commands, under a hash of all that decides what the compiler makes of
# it. That takes nearly half of the tests' time.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    keep_compiled_programs()
    programs = pathlib.Path(os.environ["JAX_COMPILATION_CACHE_DIR"] + "-tests")
    if sum(path.stat().st_size for path in programs.glob("*")) > MOST_CACHED:
        shutil.rmtree(programs)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(programs)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

# A shell lets what it starts in the background ignore SIGINT, and children inherit that: theirs are
# the usual handlers.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGTERM, signal.SIG_DFL),
):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler)

gc.set_threshold(50_000)  # traces make many objects and few cycles

# of the workers of a session on several cores as well
CACHE = os.environ["JAX_COMPILATION_CACHE_DIR"]
ROOT = pathlib.Path(__file__).resolve().parents[1]


def tiny_config() -> Config:
    """A config small enough to train in seconds: 40 rows of 160 tokens, 2 layers, 16 shared neurons
    and 16 sinks.
    """
    config = Config(
        data=DataConfig(
            unique_documents=24,
            repeated_documents=2,
            repetitions=8,
            held_out_documents=4,
            rows="one_document",
            row_length=160,
            vocabulary_size=1024,
        ),
        model=ModelConfig(layers=2, d_model=16, heads=2, hidden=32),
        training=TrainingConfig(batch_size=8, log_every=1, evaluate_every=2, checkpoint_every=2),
    )
    optimizer = OptimizerConfig(learning_rate=3e-3, b2=0.95, weight_decay=0.1)
    fields = {"optimizer": optimizer, "sinks.shared_fraction": 0.5, "mesh.data": 8}
    return validate(with_fields(config, fields))


def seal_of(workdir: pathlib.Path, weights: str, data: str = "") -> None:
    """Writes what names the weights of a made-up run's only checkpoint."""
    checkpoint = workdir / "checkpoints" / "1"
    (checkpoint / "progress").mkdir(parents=True, exist_ok=True)
    (checkpoint / "progress" / "data.json").write_text(json.dumps({"data": data}))
    files = {"params/token_embedding": [1, weights], "opened.npy": [1, ""]}
    (checkpoint / "seal.json").write_text(json.dumps({"files": files}))


def python(*words, cwd=ROOT, **options) -> subprocess.CompletedProcess:
    """What Python in a process of its own did and said."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, **options)


def read_lines(path: pathlib.Path) -> list:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path: pathlib.Path, rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    """Of all files in a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def expect_input_error(message: str):
    """Expects an InputError that says so."""
    return pytest.raises(InputError, match=message)


EVERYBODY = Opened(SinksConfig(opens_at=1), nobody)  # has sinks that are open


@pytest.fixture
def tiny() -> Config:
    return tiny_config()


@pytest.fixture(autouse=True, scope="session")
def spawned_managers():
    """Of datatrove, which forks one: a process that has started jax may not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiprocess, "Manager", multiprocess.get_context("spawn").Manager)
        yield


@pytest.fixture
def plain_sgd(monkeypatch):
    """Steps are of plain SGD with a rate of 1, in programs that no other test gets."""
    import optax

    from memsinks_jax.training import program, step

    monkeypatch.setattr(step, "make_optimizer", lambda *_: optax.sgd(1.0))
    own = functools.cache(program._of_this_process.__wrapped__)
    monkeypatch.setattr(program, "_of_this_process", own)


@pytest.fixture(autouse=True, scope="module")
def few_programs():
    """Every compiled program holds regions of memory until it is dropped: thousands of tests would
    take all there are.
    """
    yield
    regions = pathlib.Path("/proc/self/maps")
    if regions.exists() and regions.read_bytes().count(b"\n") > MOST_MAPPED:
        import jax

        jax.clear_caches()
        gc.collect()


# mark: module, package
COMPILERS = {"tpu": ("libtpu", "'jax[tpu]'"), "gpu": ("jax_cuda12_plugin", "'.[plan-gpu]'")}


def pytest_collection_modifyitems(items):
    # A file is one worker's: those that take minutes are begun first, so that no worker waits at
    # the end for the other.
    items.sort(key=lambda item: not item.get_closest_marker("long"))
    for mark, (module, package) in COMPILERS.items():
        if importlib.util.find_spec(module) is None:
            skip = pytest.mark.skip(reason=f"the compiler is not installed: pip install {package}")
            for item in items:
                if item.get_closest_marker(mark):
                    item.add_marker(skip)
