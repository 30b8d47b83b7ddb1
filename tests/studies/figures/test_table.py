"""Shared by figures: the table of what was measured, and lines of pictures."""

import dataclasses
import json
import pathlib

import matplotlib.pyplot as plt
import numpy as np
import pytest
from conftest import expect_input_error

from memsinks_jax.reporting import report
from memsinks_jax.reporting.claims import Claim, NotMeasured, summary
from memsinks_jax.reproduce import FIGURES, STUDIES
from memsinks_jax.studies.figures import panels
from memsinks_jax.studies.figures.runs import Run
from memsinks_jax.studies.figures.table import _BOUNDED, _CALL, _NAME, Table, detail


@pytest.mark.parametrize(
    "x, style, marker",
    [([47], "-", "o"), ([47, 94], "-", "None"), ([47], "s--", "s"), ([47, 94], "s--", "s")],
)
def test_a_band_of_one_point_is_seen(x, style, marker):
    figure, axis = plt.subplots()
    panels.band(axis, x, [[1.0, 3.0]] * len(x), "one", "red", style)
    (line,) = axis.get_lines()
    assert line.get_marker() == marker
    assert list(line.get_ydata()) == [2.0] * len(x)
    plt.close(figure)


def test_where_nothing_was_memorized_no_share_of_it_is_closed():
    """Documents whose rows are all the same: a figure must not fail after all trainings."""
    run = Run("standard", 0, pathlib.Path(), {"held_out_loss": 1.0, "repeated_loss": 1.0}, [])
    assert np.isnan(Table([run]).column("closed", "standard"))


def test_runs_of_other_lengths_are_shown_as_far_as_all_go():
    """Another seed fills rows differently, so the last evaluation comes at another step."""
    steps, values_SX = panels.at_same_steps(
        [([47, 94, 100], [3.0, 2.0, 1.4]), ([47, 94], [1.0, 0.0]), ([47, 97], [5, 4])]
    )
    assert list(steps) == [47, 94]
    np.testing.assert_allclose(values_SX, [[3, 2], [1, 0], [5, 4 + 3 / 50]])


def test_an_expression_is_of_the_runs_of_a_seed():
    losses = [("standard_0.5", 0, 1.0), ("standard_0.5", 1, 0.5)]
    losses += [("sinks_0.5", 1, 1.5), ("sinks_0.5", 0, 1.0)]
    runs = [
        Run(variant, seed, pathlib.Path(), {"repeated_loss": loss, "held_out_loss": 2.0}, [])
        for variant, seed, loss in losses
    ]
    measures = {"both": lambda one, other: (one.seed, other.seed)}
    table = Table(runs, measures, lambda variant: "standard_0.5")
    assert table.column("closed", "sinks_0.5") == [1 - 0.5 / 1.5, 0.0]  # in the order of its runs
    assert table.column("2 * max(gap, standard.gap) - gap", "sinks_0.5") == [2.5, 1.0]
    assert table.column("own", "sinks_0.5") == table.column("closed", "nowhere") == []
    assert table.paired("both(standard_0.5, sinks_0.5)") == [(0, 0), (1, 1)]
    assert table.paired("sinks_0.5.repeated_loss / standard_0.5.repeated_loss") == [3.0, 1.0]
    for missing, name in (("sinks_0.5.gap - nowhere.gap", "nowhere"), ("sinks_0.5.own", "own")):
        with pytest.raises(NotMeasured, match=f"{name} was not measured"):
            table.paired(missing)


def test_a_claim_about_both_kinds_of_sinks_has_both_values():
    values = {"sinks_paper": 1.0, "sinks": 2.0}
    runs = [Run(name, 0, pathlib.Path(), {"a": a}, []) for name, a in values.items()]
    written = "id | text | {sinks}.a >= 0.5"
    (claim,) = Table(runs).claims(written)
    assert (claim.values, claim.on_return, claim.at_least) == ([1.0], [2.0], 0.5)
    (claim,) = Table(runs[:1]).claims(written)
    assert claim.on_return is None and claim.holds
    (claim,) = Table(runs[1:]).claims(written)
    assert claim.undecided == "sinks_paper was not measured"
    assert (claim.holds, claim.on_return) == (None, [2.0])


def test_claims_are_read_as_they_are_written():
    runs = [Run(name, 0, pathlib.Path(), {"a": 1.0, "b": 0.0}, []) for name in ("one", "other_0.5")]
    found = Table(runs).claims(
        """
        range | of two
            lines | -0.5 <= one.a - other_0.5.a <= 1e-3 | >= 0.5 (section 1)
        below | text | min(one.a,
            other_0.5.b) <= 2
        needs | text | one.a >= 0 | said | absent
        there | text | one.a >= 0 | said | one other_0.5
        absent | text | one.a / absent.a >= 0
        undefined | text | one.a / one.b >= 0
        """,
        "not asked",
    )
    decided = [claim for claim in found if claim.holds is not None]
    stated = [
        (c.id, c.statement, c.paper, c.values, c.at_least, c.at_most, c.on_return) for c in decided
    ]
    assert stated == [
        ("range", "of two lines", ">= 0.5 (section 1)", [0.0], -0.5, 1e-3, None),
        ("below", "text", "not asked", [0.0], None, 2.0, None),
        ("there", "text", "said", [1.0], 0.0, None, None),
    ]
    assert [c.id for c in found if c.holds is None] == ["needs", "absent", "undefined"]


def misspelled(expression):
    """The expression with a letter more at each of its names in turn."""
    for found in _NAME.finditer(expression):
        if found[1]:
            yield expression[: found.end()] + "x" + expression[found.end() :]


@pytest.mark.parametrize("name", FIGURES | STUDIES)
def test_every_name_of_a_figure_exists(name):
    """Claims, columns, labels, lines: with a letter more, each is refused before training."""
    figure = (FIGURES | STUDIES)[name]
    figure.check()
    wrong = []
    for row in report.rows(figure.statements):
        _, measure, _, _ = _BOUNDED.fullmatch(row[2]).groups()
        names = misspelled(measure.format(sinks="sinks_paper"))
        found = filter(None, _CALL.findall(measure))
        every = [measure.replace(f"{call}(", f"{call}x(") for call in found]
        every += names if not figure.across else ()
        wrong += [{"statements": f"id | text | {one} >= 0"} for one in every]
    for shown in figure.columns.values():
        wrong += [{"columns": {"a": one}} for one in misspelled(shown)]
    for panel in figure.panels(figure.names()):
        for line in panel.lines if isinstance(panel, panels.Panel) else ():
            other = [line._replace(of="absent")]
            other += [line._replace(shown="absent")] * isinstance(line.shown, str)
            made = [dataclasses.replace(panel, lines=[one]) for one in other]
            wrong += [{"panels": lambda table, panel=one: [panel]} for one in made]
    assert wrong or not figure.variants
    for fields in wrong:
        with expect_input_error("there is no (variant|measure|function)"):
            dataclasses.replace(figure, **fields).check()
    if figure.labels and not callable(figure.labels):
        with expect_input_error("there is no variant"):
            dataclasses.replace(figure, labels={"absent": "a label"}).check()


def test_a_measure_that_a_run_lacks_is_said(tmp_path):
    """As in a study of which a part was run: the rest is there, and says why it is not decided."""
    runs = [Run("one", seed, tmp_path, {"a": 1.0}, []) for seed in (0, 1)]
    unequal = [*runs, Run("other", 0, tmp_path, {"a": 1.0}, [])]
    measures = {"detail": detail, "text": lambda run: run.details["text"]}
    written = "c | text | {} >= 0 | said | {}"
    passes = "a model from which nothing was removed passes the same test"
    for measure, needed, why in (
        ("one.a - twin.a", "", "twin was not measured"),
        ("one.a", "twin", "twin was not measured"),
        ("one.b", "", "b was not measured"),
        ("one.text", "", "text was not measured"),
        ("one.a - other.a", "", "other was not measured"),  # with one of the seeds
        ("one.a / (one.a - one.a)", "", "it is not a finite number in every seed"),
        ("if_seen(one.a, one.a < 0)", "", passes),
    ):
        table = Table(unequal if "other" in measure else runs, measures)
        (claim,) = table.claims(written.format(measure, needed))
        assert (claim.holds, claim.measured, claim.undecided) == (None, None, why)
        assert Claim.from_dict(json.loads(json.dumps(claim.to_dict()))).to_dict() == claim.to_dict()
        assert report.claims_table([claim])[1][0][-2:] == ["–", f"not decided: {why}"]
        assert '<p class="note">Not decided, since ' in "".join(report.claims_section([claim]))
    known = dataclasses.replace(runs[0], details={"half": None})
    (claim,) = Table([known]).claims("c | text | detail(one, 'half') >= 0")
    assert claim.undecided == "half has no value"
    other = Claim("d", "s", "p", [1.0], at_least=0)
    assert summary([claim, other]) == "1 of 2 hold, 1 is not decided"
