"""The figure of the audit: claims, table and plot from known results."""

import dataclasses

import pytest
from audited import STEPS, attacked, audited
from conftest import seal_of

from memsinks_jax.config import Config, to_json, with_fields
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.studies.figures import audit
from memsinks_jax.studies.figures.runs import Run


@pytest.fixture
def runs(tmp_path):
    (tmp_path / "config.json").write_text(to_json(Config()))
    capacity = [
        {"removed": n, "selectivity": 3.0, "target_rise": 1.0, "others_rise": 0.3}
        for n in (1, 2, 4, 8)
    ]
    made = []
    for seed in (0, 1):
        of = {name: {} for name in audit.VARIANTS}
        of["sinks_paper"] = {"audit": audited((0.9, 1, 1, 1, 0.55)), "attacks": attacked()}
        of["sinks_paper"] |= {"documents_per_sink": 6.0, "capacity": capacity}
        exposed = audited((0.9, 1, 1, 1, 0.7), exposures=(1.0, 3.0 + seed, 9.0))
        of["ladder_sinks_paper"] = {"audit": exposed}
        of["sinks"] = of["sinks_paper"] | {"audit": audited((0.6, 1, 1, 1, 0.55))}
        of["ladder_sinks"] = of["ladder_sinks_paper"]
        for name in audit._SETTINGS:
            of[f"sinks_paper_{name}"] = {"audit": audited((0.9, 1, 1, 1, 0.5), gap=0.1)}
        made += [Run(name, seed, tmp_path, {"step": 9}, [], found) for name, found in of.items()]
    return made


def test_claims_say_what_was_measured(runs):
    found = {claim.id: claim for claim in audit.FIGURE.claims(runs)}
    assert found["sees_often"].values == [1, 1] and found["sees_often"].holds
    assert found["oracle_at_half"].values == [1, 1]
    assert found["oracle_at_half_ladder"].values == [0, 0]
    assert found["exposure_rises"].values == pytest.approx([1, 1])
    assert found["not_distinguished"].values == pytest.approx([0.35, 0.35])
    assert not found["not_distinguished"].holds
    assert found["not_distinguished"].on_return == pytest.approx([0.05, 0.05])
    assert found["gap_active_0.1"].on_return is None  # of settings of the paper's sinks alone
    assert found["relearnt_few"].values == [0.5, 0.5]
    assert found["relearnt_control"].values == pytest.approx([0.625, 0.625])
    # the oracle's members fall as other text does
    assert found["benign"].values == pytest.approx([0.2, 0.2])
    assert found["int8"].values == pytest.approx([0, 0])
    assert found["int4"].values == pytest.approx([0.3, 0.3])
    assert found["reactivated_best"].values == [0.25, 0.25]
    assert found["gap_shared_0.5"].values == pytest.approx([0.5, 0.5])
    compared = [run for run in runs if not run.variant.startswith("ladder_")]
    assert None not in {claim.holds for claim in found.values()}
    undecided = {claim.id for claim in audit.FIGURE.claims(compared) if claim.holds is None}
    assert undecided == {
        *("sees_often", "oracle_at_half_ladder", "exposure_rises"),
        *("less_distinguished", "not_exposed"),
    }


def test_models_are_audited_without_those_they_could_be_compared_with(runs, tmp_path):
    """Of a standard model and an oracle there are no views then."""
    alone = [run for run in runs if run.variant in ("ladder_sinks", "ladder_sinks_paper")]
    for run in alone:
        subjects = run.details["audit"]["subjects"]
        for name in (audit.STANDARD, audit.ORACLE):
            subjects.pop(name, None)
    assert {claim.holds for claim in audit.FIGURE.claims(alone)} == {None}
    assert len(audit.FIGURE.table(alone)[2]) == 3 + 2
    audit.FIGURE.draw(alone, tmp_path / "figure.png")
    assert audit.sections(alone, tmp_path)


def test_a_loss_above_the_oracles_distinguishes_too(runs):
    for run in runs:
        if run.variant == "sinks_paper":
            run.details["audit"] = audited((0.3, 1, 1, 1, 0.55))
    (claim,) = (claim for claim in audit.FIGURE.claims(runs) if claim.id == "not_distinguished")
    assert claim.values == pytest.approx([-0.25, -0.25]) and not claim.holds


def test_what_no_document_answered_is_not_decided(runs):
    nothing = {"steps": STEPS, "ratio": None, "ratio_from_equal": None, "documents": 0}
    runs[1].details["attacks"]["relearning"]["members"]["other"] = nothing
    found = {claim.id: claim for claim in audit.FIGURE.claims(runs)}
    assert found["relearnt_other"].undecided.endswith("relearning members other ratio has no value")


def test_an_oracle_knows_nothing_only_where_knowledge_would_show(runs):
    """With few documents every interval contains .5, also that of a model that recites."""
    for run in runs:
        if run.variant == "sinks_paper":
            for one in run.details["audit"]["subjects"][audit.STANDARD]["all"].values():
                one["ci95"] = [0.0, 1.0]
    found = {claim.id: claim for claim in audit.FIGURE.claims(runs)}
    assert found["oracle_at_half"].holds is None and found["oracle_at_half_ladder"].holds is False


def test_table_pictures_and_sections(runs, tmp_path):
    columns, labels, rows = audit.FIGURE.table(runs)
    assert len(rows) == len(labels) == 5 + 2 + 5 + 2 + 4
    assert rows[0][columns.index("AUC, best score")] == [0.9, 0.9]
    assert labels[-1] == "sinks dropped, shared 0.5, active 0.1"
    audit.FIGURE.draw(runs, tmp_path / "figure.png")
    page = "".join(audit.sections(runs, tmp_path))
    assert (tmp_path / "figure.png").stat().st_size > 20_000
    assert (tmp_path / "capacity.png").exists()
    assert "6: 3.0 ± 0.0" in page and "optimised on the first half" in page


def test_an_audit_is_cached_until_what_it_is_of_changes(tmp_path, monkeypatch):
    from memsinks_jax.measures import audit as auditing
    from memsinks_jax.studies.attacks import attacks

    asked = []

    def ask(workdir, **rest):
        asked.append(rest)
        return {"n": len(asked)}

    monkeypatch.setattr(auditing, "audit", ask)
    monkeypatch.setattr(attacks, "attack_run", lambda *places: len(places))
    places = {name: tmp_path / name for name in ("sinks_paper", "standard", "no_repeat")}
    for place in places.values():
        place.mkdir()
        (place / "config.json").write_text(to_json(Config()))
        seal_of(place, "a")
    run, *others = [Run(name, 0, place, {"step": 9}, []) for name, place in places.items()]
    of_capacity = [dataclasses.replace(run, details={"capacity": []})]
    monkeypatch.setattr(audit.forgetting_capacity, "measure", lambda runs: of_capacity)
    models = dict(zip(("standard", "no_repeat"), others, strict=True))
    for _ in range(2):
        found = audit._audited(run, models)
        assert found == {"audit": {"n": 1}, "attacks": 3, "capacity": []}
    assert asked[0] == {"standard": places["standard"], "oracle": places["no_repeat"]}
    config = with_fields(workdirs.read_config(places["sinks_paper"]), {"seed": 5})
    (places["sinks_paper"] / "config.json").write_text(to_json(config))
    assert audit._audited(run, models)["audit"] == {"n": 2}
    # the model that it is compared with
    (places["no_repeat"] / "config.json").write_text(to_json(config))
    assert [audit._audited(run, models)["audit"] for _ in range(2)] == [{"n": 3}] * 2
    seal_of(places["standard"], "b")  # trained anew with the same config
    assert [audit._audited(run, models)["audit"] for _ in range(2)] == [{"n": 4}] * 2
