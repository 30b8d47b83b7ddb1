"""Study contexts: the lookup of stored text, and all of it on tiny models."""

import dataclasses

import numpy as np
import pytest
from conftest import tiny_config
from measured import trained

from memsinks_jax.config import with_fields
from memsinks_jax.measures import forced
from memsinks_jax.measures.subjects import Subject, of_role
from memsinks_jax.model.decoder import CONTEXTS
from memsinks_jax.models.trained import open_run
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.sinks.kinds import NONE
from memsinks_jax.studies.figures import contexts, rivals_measures, sizes
from memsinks_jax.studies.figures import contexts_measures as measures
from memsinks_jax.studies.figures.runs import Run
from memsinks_jax.variants import VARIANTS


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Tiny models of the main cell: {method: run}."""
    folder, found = tmp_path_factory.mktemp("study"), {}
    seldom = {"training.evaluate_every": 100, "training.checkpoint_every": 100}
    enough = {"data.held_out_documents": 10, "data.repeated_documents": 4, "contexts.share": 0.5}
    for name in ("standard", "never", "context", "cap_1"):
        method = contexts.METHODS[name]
        fields = VARIANTS[method.choice] | method.settings | seldom | enough
        config, variant = with_fields(tiny_config(), fields), f"{name}_{contexts.MAIN}"
        found[name] = trained(config, folder / name, variant)
    return found


@pytest.mark.slow
def test_a_capped_run_has_no_memory_and_the_stored_text_has_it(runs):
    model, corpus = open_run(runs["cap_1"].workdir), workdirs.read_corpus(runs["cap_1"].workdir)
    assert not np.asarray(model.params[CONTEXTS]).any()
    side = of_role(corpus, "repeated", "here")
    before = forced.read(Subject("", model, "drop"), side)
    (after,) = measures.looked_up(model, corpus, [side], [before])
    tokenizer, read = model.tokenizer, []
    for role in ("repeated", "unique"):
        for index in corpus.mixture.documents(role).tolist():
            tokens = np.asarray(corpus.tokens(index))[: model.config.data.row_length]
            (often,) = corpus.encounters(np.array([index]))
            rows = model.contexts.rows(tokens, 0, len(tokens) + 1, tokenizer.begin_of_text)
            following = [*tokens.tolist(), tokenizer.end_of_text]
            read += zip(rows.tolist(), following, [often] * len(rows), strict=True)
    for tokens, old, new in zip(side.tokens, before, after, strict=True):
        rows = model.contexts.rows(tokens, 0, len(tokens) + 1, tokenizer.begin_of_text)
        for place in range(0, len(tokens), 7):
            there = [pair for row, *pair in read if row == rows[place] != NONE]
            total = sum(often for _, often in there)
            count = sum(often for following, often in there if following == tokens[place])
            wanted = (count + np.exp(-old.nats[place])) / (total + 1)
            assert np.exp(-new.nats[place]) == pytest.approx(wanted, rel=1e-6)
    assert np.concatenate([of.nats for of in after]).mean() < 0.5
    assert np.concatenate([of.nats for of in before]).mean() > 4


@pytest.mark.slow
def test_all_of_it_on_tiny_models(runs, tmp_path, monkeypatch):
    # takes minutes
    monkeypatch.setattr(rivals_measures, "leaks", lambda *_: {"relearned": 0.9, "auc_loss": 0.5})
    measured = contexts.FIGURE.measure(list(runs.values()))
    table = contexts.FIGURE.of(measured)
    (known,) = table.column("repeated_loss", "context_32_own")
    (text,) = table.column("repeated_loss", "cap_1_32_text")
    assert known < table.column("repeated_loss", "standard_32_drop")[0] and text < 0.5
    assert table.column("relearned", "context_32_drop") == [0.9]
    assert 0.3 < table.column("auc_reference", "never_32_drop")[0] <= 1  # it is its own reference
    # what has no sink in the model with memory by context is new to all
    model, known = open_run(runs["standard"].workdir), open_run(runs["context"].workdir).contexts
    side = of_role(workdirs.read_corpus(runs["never"].workdir), "held_out", "here")
    new, begin = [], model.tokenizer.begin_of_text
    for tokens, of in zip(side.tokens, forced.read(Subject("", model, "drop"), side), strict=True):
        rows = known.rows(tokens, 0, len(tokens) + 1, begin).tolist()
        new += [nats for nats, row in zip(of.nats.tolist(), rows, strict=False) if row == NONE]
    assert 0 < len(new) < sum(map(len, side.tokens))
    assert table.column("new_loss", "standard_32_drop") == [pytest.approx(np.mean(new))]
    losses = (run.metrics for run in measured if run.variant == "standard_32")
    assert next(losses)["held_out_loss"] == pytest.approx(
        table.column("held_out_loss", "standard_32_drop")[0], rel=0.05
    )
    assert any(claim.holds for claim in contexts.FIGURE.claims(measured))
    *_, of_methods = contexts.panels(table)
    assert len(of_methods.names) == 6  # what was measured of four models
    contexts.FIGURE.check()
    contexts.FIGURE.draw(measured, tmp_path / "figure.png")
    assert contexts.FIGURE.sections(measured, tmp_path)


@pytest.mark.slow
def test_the_same_of_models_of_other_sizes(runs, tmp_path):
    of_size = [dataclasses.replace(runs[name], variant=f"{name}_1m2400") for name in sizes.NAMES]
    measured = sizes.FIGURE.measure(of_size)
    claims = {claim.id: claim.holds for claim in sizes.FIGURE.claims(measured)}
    assert claims["closed_1m2400"] is not None and claims["closed_5m2400"] is None
    columns, labels, rows = sizes.FIGURE.table(measured)
    known = dict(zip(labels, rows, strict=True))["1m, 1 million: memory by context, on"]
    assert known[columns.index("repeated")][0] < 4 and len(rows) == 4
    sizes.FIGURE.draw(measured, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000


@pytest.mark.parametrize("cell", sizes.CELLS)
def test_of_every_amount_as_much_is_read_often(cell):
    choice, settings, _ = sizes.FIGURE.variations[f"context_{cell}"]
    copies = settings["data.repeated_documents"] * settings["data.repetitions"]
    assert choice == "context" and settings["model.d_model"] in (128, 256, 512)
    share = copies / (copies + settings["data.unique_documents"])
    assert share == pytest.approx(0.176, abs=0.001)


def test_a_run_without_its_twin_is_not_measured():
    run = Run("context_32", 0, None, {}, [])
    assert contexts.measure([run]) == [dataclasses.replace(run)]
