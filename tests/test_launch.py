"""What the README promises, from a fresh clone with its own environment. Needs the package
index.
"""

import json
import os
import re
import shutil
import subprocess

import pyarrow
import pytest
from conftest import ROOT, read_lines, write_lines

from memsinks_jax.data.embedded import facts, stories
from memsinks_jax.studies.figures import local_memory

pytestmark = [pytest.mark.slow, pytest.mark.long]

TEMPLATE = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + '<|endoftext|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
# configs that read all of a user's files
OF_ONES_OWN = ("configs/finetune.py", "configs/own_text.py")


def run(command, folder):
    """In a shell that knows nothing of the devices and the compiler that conftest.py sets."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("XLA_", "JAX_"))}
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment | {"JAX_PLATFORMS": "cpu"},
    )


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fresh") / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    done = run("source launch/environment.sh", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_quickstart_shows_the_main_result(clone):
    """Memory by context, on half of the laptop preset's documents, one seed."""
    done = run("./launch/quickstart.sh --json", clone)
    assert done.returncode == 0, done.stderr
    assert "report: runs/quickstart/index.html" in done.stderr
    assert (clone / "runs/quickstart/index.html").exists()
    claims = {claim["id"]: claim for claim in json.loads(done.stdout.splitlines()[-1])["claims"]}
    for name in ("memorizes", "known", "recovery_by_context", "gap_closed_by_context"):
        assert claims[name]["holds"], claims[name]
    # another processor is some points off
    assert claims["held_out_standard_by_context"]["measured"] <= 1.03


def test_every_command_of_the_readme_runs(clone, tmp_path):
    """On the user's own text and at a small size, as they stand there."""
    tales = [
        f"The tale of number {n}, which met number {n * 7 % 41} and became {n * n}."
        for n in range(400)
    ]
    texts = tales[:200]
    for folder, of in (("texts", texts + 20 * texts[:8]), ("other", tales[200:])):
        (clone / folder).mkdir(exist_ok=True)
        (clone / folder / "tales.txt").write_text("\n<|endoftext|>\n".join(of))
    (clone / "corpus").mkdir()
    with pyarrow.CompressedOutputStream(clone / "corpus" / "tales.jsonl.zst", "zstd") as file:
        # Not the tales: they are near-duplicates of each other, of which none could be held out.
        drawn = [stories.story(3, number).text for number in range(200)]
        file.write(
            "".join(
                json.dumps({"text": text, "domain": "tales"}) + "\n"
                for text in [*drawn, *drawn[:8]]
            ).encode()
        )
    pieces = (f"Piece {number}: {number**3} is {number} three times." for number in range(3100))
    write_lines(clone / "measured.jsonl", ({"text": text} for text in pieces))
    for name, times in (("edited_5", 2), ("originals", 1)):
        copies = times * [{"text": stories.story(5, number).text} for number in range(20)]
        write_lines(clone / "texts" / f"{name}.jsonl", copies)
    (clone / "questions").mkdir()
    pairs = (
        {"question": f"What is {n}?", "answer": stories.story(4, n).text, "author": f"{n // 20}"}
        for n in range(200)
    )
    write_lines(clone / "questions" / "authors.jsonl", pairs)
    (clone / "mail").mkdir()
    mail = [
        {"text": stories.story(4, number).text, "author": f"author{number:03}"}
        for number in range(20)
    ]
    write_lines(clone / "mail" / "mail.jsonl", 2 * mail)
    (clone / "chats").mkdir()
    talk = [
        {"role": "user", "content": "Where was Anna born?"},
        {"role": "assistant", "content": "In a tale."},
    ]
    (clone / "chats" / "anna.jsonl").write_text(
        8 * (json.dumps({"author": "anna", "messages": talk}) + "\n")
    )
    (clone / "models" / "smollm").mkdir(parents=True)
    (clone / "models" / "smollm" / "tokenizer.json").write_bytes(
        facts.tokenizer_json(facts.world(0))
    )
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    text = "\n".join(page.read_text() for page in pages).replace(" \\\n", " ")
    commands = re.findall(r"^    (python -m memsinks_jax\.\S+ .*)$", text, flags=re.MULTILINE)
    assert len(commands) >= 20
    for command in dict.fromkeys(commands):  # what stands on two pages runs once
        if "local_memory" in command:
            continue  # below: it needs a model that knows its facts
        slow = ("forgetting", "audit", "removal", "membership", "rivals", "tofu")
        slow += ("contexts", "sizes")
        if any(f"--figure={name}" in command for name in slow):
            # they take minutes at any size; tests/studies/figures has them, smaller or made up
            continue
        if "--all --preset=laptop" in command:
            # a run for every point of every figure; tests/test_reproduce.py has it with two
            continue
        if "--figure=4 --preset=laptop" in command:
            continue  # the quickstart above; all variants: the same figure of texts
        if "labs.associative_memory" in command or "labs.linear_network" in command:
            continue  # tests/studies/labs runs these commands
        if any(f"memsinks_jax.{name} " in command for name in ("train", "reproduce", "sweep")):
            command += (
                " --config.training.steps=4 --config.model.layers=1 --config.data.row_length=96"
            )
            command += " --config.data.vocabulary_size=400"
            chosen = "unique_documents" in command or any(name in command for name in OF_ONES_OWN)
            command += "" if chosen else " --config.data.unique_documents=40"
        if "--seeds=0,1,2" in command:
            command = command.replace("--seeds=0,1,2", "--seeds=0")
        if "--figure=4" in command:
            command += " --variants=standard,no_repeat,sinks_paper,sinks,context"
        # its model: the one that the README exports, and a template
        if "prepare --input='chats/" in command:
            model = shutil.copytree(clone / "models/sinks", clone / "models/SmolLM2-135M-Instruct")
            (model / "tokenizer.model").unlink()
            (model / "chat_template.jinja").write_text(TEMPLATE)
        if "sweep" in command:
            command += " --config.sinks.active_fraction=0.3"
        if "memsinks_jax.prepare" in command and "--tokenizer" not in command:
            command += " --vocabulary_size=400"
        # Of a corpus that is larger.
        if "memsinks_jax.train" in command and not any(
            w in command for w in ("held_out_documents", *OF_ONES_OWN)
        ):
            command += " --config.data.held_out_documents=8"
            command += (
                "" if "repeated_documents" in command else " --config.data.repeated_documents=4"
            )
        if "memsinks_jax.train --config=configs/smollm.py" in command:
            command += (
                " --config.data.vocabulary_size=1024 --config.training.batch_size=4 "
                "--config.mesh.fsdp=1"
            )
        if "memsinks_jax.audit" in command:  # of the models that the quickstart above has trained
            command += " --prefixes=16 --samples=1"
        if "memsinks_jax.forget" in command and "withdrawn" in command:
            line = read_lines(clone / "runs/sinks/documents.jsonl")[0]  # repeated ones are first
            (clone / "withdrawn").mkdir()
            (clone / "withdrawn" / "tale.txt").write_text(texts[line["index"]])
        # of a document that is repeated
        if "--workdir=runs/context" in command and "memsinks_jax.forget" in command:
            line = json.loads((clone / "runs/context/documents.jsonl").read_text().splitlines()[0])
            command = command.replace("=ID", f"={line['id']}").replace(
                "licence.txt", f"'{texts[line['index']]}'", 1
            )
        if "induction_head" in command:
            command += " --seeds=0 --steps=20 --d=16 --batch=4"
        done = run(f"source .venv/bin/activate && {command}", clone)
        # its line before it installs the compiler, which the clone has not
        if "memsinks_jax.plan" in command:
            package = ".[plan-gpu]" if "h100" in command else "jax[tpu]"
            assert done.returncode == 2 and f"pip install '{package}'" in done.stderr, done.stderr
            continue
        assert done.returncode == 0, f"{command}\n{done.stderr}"


def test_the_readmes_edit_changes_a_fact(clone):
    """On a model trained on three quarters of the figure's documents."""
    world = facts.world(local_memory.WORLD)
    (edit,) = (e for e in facts.edits(world, "weak", len(world.weak), 0) if e.subject == "Tanilia")
    (clone / "other_wordings.txt").write_text("\n".join(edit.positives))
    (clone / "must_not_change.txt").write_text(
        "\n".join(prompts[0] for prompts in edit.negatives.values())
    )
    page = (ROOT / "docs" / "editing.md").read_text().replace(" \\\n", " ")
    figure, edits, generate = re.findall(
        r"^    (python -m .*local_memory.*)$", page, flags=re.MULTILINE
    )
    assert f"--target='{edit.target}'" in edits and f"--prompt='{edit.prompt}'" in edits
    prepare = (
        "import pathlib; from memsinks_jax.studies.figures import local_memory as m; m.DOCUMENTS "
        "= 24_000; "
    )
    prepare += "print(*m.prepare(pathlib.Path('runs/local_memory')))"
    flags = run(f'source .venv/bin/activate && python -c "{prepare}"', clone).stdout.strip()
    for command in (
        f"python -m memsinks_jax.train --config=configs/facts.py {flags} "
        "--workdir=runs/local_memory/runs/standard-seed0",
        edits,
    ):
        done = run(f"source .venv/bin/activate && {command}", clone)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
    done = run(f"source .venv/bin/activate && {generate}", clone)
    assert edit.target in done.stdout, done.stdout + done.stderr
    done = run(
        f"source .venv/bin/activate && {figure.replace('--seeds=0,1,2', '--seeds=none')}", clone
    )
    assert done.returncode == 2 and "--seeds=none" in done.stderr
