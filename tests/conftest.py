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

import pytest

from memsinks_jax.config import (
    Config,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    SinksConfig,
    TrainingConfig,
    flatten,
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
    config = with_fields(
        config, {"optimizer": OptimizerConfig(learning_rate=3e-3, b2=0.95, weight_decay=0.1)}
    )
    config = with_fields(config, {"sinks.shared_fraction": 0.5, "mesh.data": 8})
    return validate(config)


def seal_of(workdir: pathlib.Path, weights: str, data: str = "") -> None:
    """Writes what names the weights of a made-up run's only checkpoint."""
    checkpoint = workdir / "checkpoints" / "1"
    (checkpoint / "progress").mkdir(parents=True, exist_ok=True)
    (checkpoint / "progress" / "data.json").write_text(json.dumps({"data": data}))
    files = {"params/token_embedding": [1, weights], "opened.npy": [1, ""]}
    (checkpoint / "seal.json").write_text(json.dumps({"files": files}))


def prepare_apart(
    source: pathlib.Path, out: pathlib.Path, tokenizer: pathlib.Path, **flags
) -> None:
    """Prepares a corpus in another process: it forks, which a process that uses jax may not."""
    flags |= {"input": source, "out": out, "tokenizer": tokenizer}
    command = [
        sys.executable,
        "-m",
        "memsinks_jax.prepare",
        *(f"--{name}={value}" for name, value in flags.items()),
    ]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)


EVERYBODY = Opened(SinksConfig(opens_at=1), nobody)  # has sinks that are open


@pytest.fixture
def tiny() -> Config:
    return tiny_config()


# Fields that do not enter the program: runs that differ in them alone share one. test_settings.py
# changes them all. What is not named here does enter, a new field too.
NOT_COMPILED = (
    "variant",
    "data.files",
    "data.unique_documents",
    "data.repeated_documents",
    "data.repetitions",
    "data.held_out_documents",
    "data.held_out_by",
    "data.copies",
    "data.repeats",
    "data.schedule",
    "data.ids",
    "data.rows",
    "data.tokenizer",
    "general.files",
    "general.token_budget",
    "canaries.documents",
    "canaries.length",
    "model.initial",
    "training.epochs",
    "training.steps",
    "training.repeats_capped_at",
    "training.count_removed_repeats",
    "training.log_every",
    "training.evaluate_every",
    "training.checkpoint_every",
    "training.keep_every",
    "training.skips_in_a_row",
    "monitor.seen_over",
)


def compiled(config: Config) -> Config:
    """What of a config enters the program; of the monitor's steps, whether there are any."""
    defaults = flatten(Config())
    fixed = {name: defaults[name] for name in NOT_COMPILED} | {
        "monitor.every": min(config.monitor.every, 1)
    }
    return with_fields(config, fixed)


@functools.cache
def _program(config, optimizer, *others):
    from memsinks_jax.training import program

    return program.train_program(config, *others)


def train_program(config, *others):
    """That of training/program.py, traced once in a process: it takes most of a small run's time."""
    from memsinks_jax.training import step

    # some tests put another optimizer there
    return _program(compiled(config), step.make_optimizer, *others)


@pytest.fixture(autouse=True, scope="session")
def shared_programs():
    """Runs of one process share them."""
    from memsinks_jax import loop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "train_program", train_program)
        yield


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


# A file is one worker's: those that take longest are begun first, so that no worker waits at the
# end for the other. Of the first ones, the slow tests are.
LONG = (
    "test_processes",
    "test_launch",
    "test_chaos",
    "test_suite",
    "test_associative_memory_command",
    "test_published",
    "test_first_steps",
    "test_disjoint",
    "test_settings",
    "test_active_rows",
    "test_step",
    "test_commands",
    "test_edit",
    "test_train",
    "test_whose_sinks_are_on",
    "test_launch_scripts",
    "test_sources",
    "test_associative_memory",
    "test_hugging_face",
    "test_generation",
    "test_audit",
    "test_induction_head_command",
    "test_induction_head_training",
    "test_induction_head",
    "test_checkpoint",
    "test_forget",
    "test_prepare",
    "test_gradient_masking",
    "test_evals",
    "test_export",
    "test_rows_properties",
    "test_origin",
    "test_decoder",
    "test_plan",
    "test_moved",
    "test_sinks",
    "test_vocabulary",
    "test_patching",
    "test_associative_memory_sinks",
    "test_local_memory",
    "test_monitor",
    "test_trained",
    "test_guard",
    "test_selective_masking",
    "test_attention",
    "test_linear_network",
    "test_seal",
    "test_associative_memory_training",
    "test_learned_masks",
    "test_house",
    "test_api",
    "test_scores",
)


def pytest_collectstart():
    """What tests import is this module, with the programs that runs share; pytest has another name
    for it.
    """
    sys.modules["conftest"] = sys.modules[__name__]


# mark: module, package
COMPILERS = {"tpu": ("libtpu", "'jax[tpu]'"), "gpu": ("jax_cuda12_plugin", "'.[plan-gpu]'")}


def pytest_collection_modifyitems(items):
    places = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONG)))
    for mark, (module, package) in COMPILERS.items():
        if importlib.util.find_spec(module) is None:
            skip = pytest.mark.skip(reason=f"the compiler is not installed: pip install {package}")
            for item in items:
                if item.get_closest_marker(mark):
                    item.add_marker(skip)
