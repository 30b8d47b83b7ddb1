"""Schedules of an experiment's repeats: how often, when and under which ids documents come."""

import collections
import itertools

import numpy as np
import pytest
from conftest import expect_input_error
from documents import plan_of

from memsinks_jax import plugin
from memsinks_jax.config import Config, DataConfig, TrainingConfig, with_fields
from memsinks_jax.data.ids import as_numbers
from memsinks_jax.data.packing import Rows

END = 5
SCHEDULES = "memsinks_jax.studies.schedules"
SIZES = [5, 3, 9, 1, 7, 2, 8, 4, 6, 11, 3, 5, 8, 2, 9, 4]


def make(sizes=SIZES, batch_size=4, epochs=1, seed=0, groups=None, opens_at=2, **about):
    """Rows of one document; every token has one document."""
    usual = {"unique_documents": -1, "repeated_documents": 2, "repetitions": 3, "row_length": 16}
    usual |= {"rows": "one_document", "held_out_documents": 1, "held_out_by": "document"}
    training = TrainingConfig(batch_size=batch_size, epochs=epochs)
    config = Config(data=DataConfig(**usual | about), training=training, seed=seed)
    config = with_fields(config, {"sinks.opens_at": opens_at})
    plan, tokens = plan_of(config, sizes, groups=groups)
    return Rows(config, plan, END), plan, tokens


def ids_encountered(rows, tokens, epochs=1):
    """{document: the ids under which it came}, of one document a row."""
    owner = {int(of[0]): index for index, of in enumerate(tokens)}
    found = collections.defaultdict(list)
    for number in range(epochs * rows.rows_per_epoch):
        row = rows[number]
        found[owner[int(row["inputs"][1])]].append(tuple(row["identities"][0].tolist()))
    return found


def test_a_ladder_goes_down_by_halves_and_begins_again():
    _, plan, _ = make([9] * 20, schedule=f"{SCHEDULES}:Ladder", repeated_documents=5, repetitions=7)
    assert plan.encounters(plan.repeated) == [7, 3, 1, 7, 3]
    assert set(plan.encounters(plan.documents("unique"))) == {1}


@pytest.mark.parametrize("ids", ["content", "group"])
@pytest.mark.parametrize(("every", "count", "batch"), [(2, 1, 4), (3, 2, 3), (1, 2, 4)])
@pytest.mark.parametrize("opens_at", [2, 3])
def test_documents_come_in_every_nth_batch_and_the_rest_is_not_disturbed(
    every, count, batch, ids, opens_at
):
    about = {"repeated_documents": count, "batch_size": batch, "ids": ids, "opens_at": opens_at}
    about["groups"] = [f"group {number % 3}" for number in range(len(SIZES))]
    rows, plan, tokens = make(schedule=f"{SCHEDULES}:EveryNth,steps={every}", **about)
    others, _, _ = make(repeats_at_most=0, **about)
    rest = (others[number] for number in itertools.count())
    counted, opened = collections.Counter(), set()
    for number in range(rows.rows_per_epoch):
        assert set(rows.opened(number).tolist()) == {
            key for key, times in counted.items() if times >= opens_at
        }
        row, step = rows[number], number // batch + 1
        if step % every == 0 and number % batch < count:
            document = int(plan.repeated[number % batch])
            assert row["inputs"].tolist()[: SIZES[document] + 1] == [END, *tokens[document]]
            assert row["repeated"][0] and row["weights"].sum() == SIZES[document] + 1
            opened.add(document)
        else:
            other = next(rest)
            assert all((row[name] == other[name]).all() for name in other if name != "seen")
        (key,) = as_numbers(row["identities"]).tolist()
        assert row["seen"].tolist() == [counted[key]]
        counted[key] += 1
    assert opened == set(plan.repeated.tolist())
    read = [(rows[number]["repeated"]).sum() for number in range(rows.rows_per_epoch)]
    assert sum(rows.encounters(plan.repeated)) == sum(read)
    assert others.rows_per_epoch + sum(read) == rows.rows_per_epoch


def test_what_comes_in_every_nth_batch_is_measured_around_it():
    _, plan, _ = make(schedule=f"{SCHEDULES}:EveryNth")
    watched = [step for step in range(1, 100) if plan.schedule.is_watched(step)]
    assert watched == [39, 40, 41, 79, 80, 81]


def test_the_variant_without_repeats_takes_as_many_steps():
    schedule = f"{SCHEDULES}:EveryNth,steps=2"
    rows, _, _ = make(schedule=schedule)
    without, _, _ = make(schedule=schedule, repeats_at_most=0)
    assert without.rows_per_epoch < without.rows_per_epoch_with_repeats == rows.rows_per_epoch


def test_no_noise_leaves_ids_alone_and_full_noise_makes_repeats_independent():
    clean, plan, tokens = make([5] * 12, schedule=f"{SCHEDULES}:WrongIds,rate=0", epochs=9)
    noisy, _, _ = make([5] * 12, schedule=f"{SCHEDULES}:WrongIds,rate=1", epochs=9)
    identities, fresh = plan.table.identities(np.arange(12)), []
    for (document, own), wrong in zip(
        sorted(ids_encountered(clean, tokens).items()),
        sorted(ids_encountered(noisy, tokens, 2).items()),
        strict=True,
    ):
        assert set(own) == {tuple(identities[document].tolist())}
        if document in plan.repeated:
            fresh += wrong[1]
        else:
            assert set(wrong[1]) == set(own)
    assert len(fresh) == len(set(fresh)) == 2 * 2 * 3
    assert not set(fresh) & set(map(tuple, identities.tolist()))


def test_noise_comes_at_its_rate_by_encounter_or_by_document():
    lengths, counts = [3] * 420, {}
    for per_document in (0, 1):
        rows, plan, tokens = make(
            lengths,
            schedule=f"{SCHEDULES}:WrongIds,rate=0.3,per_document={per_document}",
            repeated_documents=400,
            repetitions=10,
        )
        identities = plan.table.identities(np.arange(420))
        encountered = ids_encountered(rows, tokens)
        wrong = np.array(
            [
                sum(each != tuple(identities[i].tolist()) for each in encountered[i])
                for i in plan.repeated
            ]
        )
        assert wrong.sum() == sum(
            each != tuple(identities[i].tolist()) for i in encountered for each in encountered[i]
        )
        counts[per_document] = wrong
        assert abs(wrong.mean() / 10 - 0.3) < 0.07
    assert sorted(counts[1]) == [0] * 280 + [10] * 120
    assert len(set(counts[0])) > 5


@pytest.mark.parametrize(
    ("schedule", "about", "message"),
    [
        ("Ladder", {"repeated_documents": -1}, "leaves it to the files how often a document comes"),
        ("EveryNth", {"repeated_documents": -1}, "leaves it to the files"),
        ("EveryNth", {"repeated_documents": 5}, "5 repeated documents do not fit into one batch"),
        ("EveryNth,steps=1", {"repeated_documents": 4}, "do not fit into one batch of 4 every 1"),
        ("EveryNth,steps=0", {}, r"of steps, it must lie in \[1"),
        ("EveryNth", {"rows": "packed"}, "config.data.rows cannot be packed"),
        ("EveryNth", {"epochs": 2}, "config.training.epochs cannot be 2; set it to 1"),
        ("WrongIds,rate=2", {}, r"config.data.schedule is .*; of rate, it must lie in \[0, 1\]"),
        ("Nobody", {}, "has no attribute 'Nobody'; give MODULE:CLASS"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(schedule, about, message):
    with expect_input_error(message) as refused:
        make(schedule=f"{SCHEDULES}:{schedule}", **about)
    assert "\n" not in str(refused.value)


def test_too_many_encounters_are_refused(monkeypatch):
    monkeypatch.setattr("memsinks_jax.data.epochs.BLOCK", 4)
    with expect_input_error("lists what is read, and an epoch has .* more than 8"):
        make(schedule=f"{SCHEDULES}:WrongIds")


def test_without_a_schedule_nothing_changes():
    schedule = plugin.schedule(Config())
    assert schedule.times(7, 3).tolist() == [7, 7, 7]
    assert schedule.shuffles and not schedule.lists and not schedule.is_watched(1)
