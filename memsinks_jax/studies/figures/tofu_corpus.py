"""The corpora of study tofu: questions about the invented authors of TOFU (arXiv:2401.06121), some
of whom are withdrawn.

The user's folder holds TOFU's files, one JSON object a line. In `full.jsonl` every author has 20
questions, in order. Of the last authors `forget10_perturbed.jsonl` has the same questions with a
paraphrase of the answer and wrong answers, of the first ones `retain_perturbed.jsonl`.
`holdout10.jsonl` is about authors whom no model reads; `real_authors_perturbed.jsonl` and
`world_facts_perturbed.jsonl` are about what is so. Further questions are planted: facts about
invented countries, which several authors state in the same words.
"""

import hashlib
import itertools
import json
import pathlib
import random
from typing import NamedTuple

from memsinks_jax.config import InputError
from memsinks_jax.data.embedded import facts
from memsinks_jax.preparing.prepare import prepare
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.studies.figures import corpora

OF_AN_AUTHOR = 20  # questions
# how a model is asked: with the sinks of the author whom a question is nearest to
NEAREST = "nearest"
SETS = {
    "withdrawn": "forget10_perturbed",
    "staying": "retain_perturbed",
    "holdout": "holdout10",
    "real": "real_authors_perturbed",
    "world": "world_facts_perturbed",
}
OF_AUTHORS = ("withdrawn", "staying")  # sets with paraphrases
# The same questions in other words, of which the nats are measured.
REWORDED = {f"{name}_reworded": name for name in OF_AUTHORS}
# sets of planted facts: how many authors state each
SEVERAL = {"shared_by_2": 2, "shared_by_4": 4, "shared_by_8": 8}
# seeds of the countries that these are about, and wrong answers to each question
_WORLDS, _WRONG = range(4), 5
_LEAST = 200  # characters of a passage of general text


class Size(NamedTuple):
    """Authors that are read, those withdrawn, and the most questions of any other set."""

    authors: int
    withdrawn: int
    questions: int


SIZES = {"small": Size(12, 2, 16), "laptop": Size(40, 4, 48), "full": Size(200, 20, 400)}


def author(number: int) -> str:
    """The group of an author. Names sort as numbers, by which equal shares are decided."""
    return f"author {number:03}"


def write(
    folder: pathlib.Path,
    tofu: pathlib.Path,
    text: pathlib.Path,
    tokenizer: str,
    seed: int,
    size: Size,
) -> None:
    """Writes and prepares folder/all; folder/without, which lacks the withdrawn authors;
    folder/shuffled, with authors' names in another order. Writes folder/questions.json. Keeps what
    is there.

    The withdrawn authors come last, so that the others have the same numbers without them.

    Args:
      tofu: TOFU's files.
      text: general text, of which long lines are passages.
      tokenizer: of the model, for `prepare`.
      seed: chooses the authors and the questions.
    Raises:
      InputError: a file is missing, or is not TOFU's.
    """
    rows = {name: _read(tofu / f"{name}.jsonl") for name in ("full", *SETS.values())}
    passages = [line.strip() for line in _text(text).splitlines() if len(line) >= _LEAST]
    draw = random.Random(f"tofu: {seed}")
    names = ("full", SETS["withdrawn"], SETS["staying"])
    count, last, first = (len(rows[name]) // OF_AN_AUTHOR for name in names)
    _check_authors(tofu, size, count, last, first)
    going = sorted(draw.sample(range(count - last, count), size.withdrawn))
    left = size.authors - size.withdrawn
    asked = draw.sample(range(first), min(first, max(left // 3, size.withdrawn)))
    staying = sorted([*asked, *draw.sample(range(first, count - last), left - len(asked))])
    gone, kept = rows[SETS["withdrawn"]], rows[SETS["staying"]]
    of_authors = {
        "withdrawn": [row for n in going for row in _of(gone, n, n - (count - last))],
        "staying": [row for n in sorted(asked) for row in _of(kept, n, n)],
    }
    some = {}
    for name in SETS:
        if name != "withdrawn":
            of = of_authors.get(name, rows[SETS[name]])
            some[name] = draw.sample(of, min(len(of), size.questions))
    # Others, as many, of whom nothing but planted facts is asked where there are enough.
    placebo = sorted(staying, key=lambda n: (n in asked, n))[: size.withdrawn]
    others = [number for number in staying if number not in placebo]
    planted, several = _plant(going, placebo, others, draw)
    sets = {"withdrawn": of_authors["withdrawn"], **some, **several}
    for name, of in REWORDED.items():
        sets[name] = [
            {"question": row["paraphrased_question"], "answer": row["answer"]}
            | {"author": row["author"]}
            for row in sets[of]
        ]
    questions = {
        "withdrawn": list(map(author, going)),
        "placebo": list(map(author, placebo)),
        "sets": sets,
        "text": draw.sample(passages, min(len(passages), size.questions)),
    }
    corpora.write_text(folder / "questions.json", json.dumps(questions))
    records = []
    for number in (*staying, *going):
        records += [*_of(rows["full"], number, number), *planted[number]]
    names = draw.sample([record["author"] for record in records], len(records))
    named = zip(records, names, strict=True)
    read = {
        "all": records,
        "without": [record for record in records if record["author"] not in questions["withdrawn"]],
        "shuffled": [record | {"author": name} for record, name in named],
    }
    for name, of in read.items():
        write_prepared(folder / name, of, tokenizer)


def write_prepared(folder: pathlib.Path, records: list[dict], tokenizer: str) -> None:
    """Writes and prepares questions with their answers. Keeps what is there."""
    path = folder.with_name(f"{folder.name}.jsonl")
    corpora.write_text(path, "".join(json.dumps(record) + "\n" for record in records))
    fields = {"text_field": "answer", "prompt_field": "question", "group_field": "author"}
    prepare([str(path)], tokenizer, folder, near_duplicates="none", **fields)


def authors(tofu: pathlib.Path) -> dict[str, list[dict]]:
    """All authors of TOFU's files with their records."""
    rows = _read(tofu / "full.jsonl")
    return {author(n): _of(rows, n, n) for n in range(len(rows) // OF_AN_AUTHOR)}


def reworded(tofu: pathlib.Path) -> dict[str, list[dict]]:
    """The same questions in other words, about those authors of whom there are some: the first and
    the last ones.
    """
    plain, found = authors(tofu), {}
    for of in OF_AUTHORS:
        rows = _read(tofu / f"{SETS[of]}.jsonl")
        count = len(rows) // OF_AN_AUTHOR
        first = 0 if of == "staying" else len(plain) - count
        for n in range(count):
            pairs = zip(plain[author(first + n)], _of(rows, first + n, n), strict=True)
            found[author(first + n)] = [
                row | {"question": changed["paraphrased_question"]} for row, changed in pairs
            ]
    return found


def _plant(
    going: list[int], placebo: list[int], others: list[int], draw: random.Random
) -> tuple[dict[int, list[dict]], dict[str, list[dict]]]:
    """Plants facts: every author states one of each of SEVERAL, and a withdrawn author the same as
    one of the placebo's. So either withdrawal leaves an author who states it.

    Returns:
      The records of every author, and by set the questions about what withdrawn authors state, with
      wrong answers, and with the name of an author who states it too and stays.
    """
    planted: dict[int, list] = {number: [] for number in (*going, *placebo, *others)}
    asked: dict[str, list] = {name: [] for name in SEVERAL}
    every = [country for world in _WORLDS for country in facts.world(world).countries]
    countries = list({country.name: country for country in every}.values())
    others = draw.sample(others, len(others))
    for name, count in SEVERAL.items():
        rest, pairs = iter(others), zip(going, placebo, strict=True)
        groups = [[*pair, *itertools.islice(rest, count - 2)] for pair in pairs]
        while group := list(itertools.islice(rest, count)):
            groups.append(group)
        for group in groups:
            country = countries.pop()
            question = f"What is the capital of {country.name}, and what do its people speak?"
            right, *wrong = (
                f"The capital of {country.name} is {one.capital}, and its people speak "
                f"{one.language}."
                for one in (country, *draw.sample(countries, _WRONG))
            )
            for number in group:
                record = {"question": question, "answer": right, "author": author(number)}
                planted[number].append(record)
            if group[0] in going:
                asked[name].append(planted[group[1]][-1] | {"perturbed_answer": wrong})
    return planted, asked


def questions_of(workdir: pathlib.Path) -> dict:
    """{"withdrawn", "placebo": names, "sets": {name: records}, "text": passages} of a run."""
    return json.loads(_questions(workdir).read_text())


def digest(workdir: pathlib.Path) -> str:
    return hashlib.sha256(_questions(workdir).read_bytes()).hexdigest()


def records_of(workdir: pathlib.Path, name: str) -> list[dict]:
    """The questions of one of the corpora next to that of a run, author after author."""
    return list(map(json.loads, (_folder(workdir) / f"{name}.jsonl").read_bytes().splitlines()))


def _questions(workdir: pathlib.Path) -> pathlib.Path:
    return _folder(workdir) / "questions.json"


def _folder(workdir: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(workdirs.read_config(workdir).data.files).parent


def _of(rows: list[dict], number: int, place: int) -> list[dict]:
    """The records of an author whose questions are those of the `place`-th in a file."""
    mine = rows[place * OF_AN_AUTHOR : (place + 1) * OF_AN_AUTHOR]
    return [row | {"author": author(number)} for row in mine]


def _check_authors(tofu: pathlib.Path, size: Size, count: int, last: int, first: int) -> None:
    if last < size.withdrawn or first < size.withdrawn or count < max(size.authors, last + first):
        raise InputError(
            f"{tofu} has {count} authors, wrong answers for the first {first} and the last {last}; "
            f"{size.authors} are read and {size.withdrawn} withdrawn: give all of TOFU's files"
        )


def _read(path: pathlib.Path) -> list[dict]:
    try:
        rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    except (OSError, ValueError) as error:
        why = f"{path} cannot be read ({error}); give the folder of TOFU's files as --tofu"
        raise InputError(why) from None
    needed = {"question", "answer"}
    needed |= {"perturbed_answer"} if path.stem.endswith("perturbed") else set()
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or not needed <= set(row):
            lacks = ", ".join(sorted(needed))
            raise InputError(f"{path}, line {number} lacks {lacks}; give TOFU's own file")
    return rows


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = f"{path} cannot be read ({error}); give a file of text as --general_text"
        raise InputError(why) from None
