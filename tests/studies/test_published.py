"""The article's numbers: the copies are consistent, and every number of a measured model is
compared.
"""

import dataclasses
import functools
import os
import pathlib
import re

import numpy as np
import pytest
from conftest import EVERYBODY, tiny_config
from test_generation import model_of

from memsinks_jax.config import InputError, with_fields
from memsinks_jax.editing import boundary, patching
from memsinks_jax.editing.memory import bounding
from memsinks_jax.editing.probe import Probe
from memsinks_jax.editing.prompts import encode
from memsinks_jax.models.trained import Trained, open_run
from memsinks_jax.reporting import report
from memsinks_jax.studies.published import comparison as published
from memsinks_jax.studies.published import tables

pytestmark = pytest.mark.long

GPT2 = os.environ.get("MEMSINKS_JAX_GPT2")
RUNS = [(experiment, site) for experiment in tables.EXPERIMENTS for site in experiment.sites]
each_experiment = pytest.mark.parametrize(
    "experiment", tables.EXPERIMENTS, ids=lambda experiment: experiment.name
)
each_run = pytest.mark.parametrize(
    ("experiment", "site"), RUNS, ids=lambda x: x if isinstance(x, str) else x.name
)


# The tables fit each other.


@each_experiment
def test_the_prompt_is_its_pieces_and_the_first_positive(experiment):
    assert "".join(experiment.pieces) == experiment.prompt
    assert len(set(experiment.prompts)) == len(experiment.prompts)


@each_run
def test_a_map_is_of_all_layers_and_tokens_and_its_stars_are_the_lowest(experiment, site):
    run = experiment.sites[site]
    assert run.losses.shape == (12, len(experiment.pieces))
    stars = np.array([cell in run.successes for cell in np.ndindex(run.losses.shape)])
    stars = stars.reshape(run.losses.shape)
    # Nothing but the last token's activation of the last layer is read out: patches elsewhere
    # change nothing.
    np.testing.assert_allclose(run.losses[11, :-1], run.base_loss, atol=run.colour_step)
    assert run.losses[stars].max() < run.losses[~stars].max()


@pytest.mark.parametrize(
    ("name", "site", "first", "successes", "chosen", "lowest", "highest"),
    [
        ("nepal", "attention", (5, 7), 5, 1.10, 0.504, 3.849),
        ("nepal", "mlp", (2, 7), 12, 0.81, 0.009, 10.063),
        ("tokyo", "attention", (9, 8), 3, 0.39, 0.0, 13.444),
        ("tokyo", "mlp", (7, 8), 5, 1.57, 0.0, 15.122),
    ],
)
def test_a_map_lies_in_the_range_of_its_colours(
    name, site, first, successes, chosen, lowest, highest
):
    run = next(e for e in tables.EXPERIMENTS if e.name == name).sites[site]
    assert run.site == first and len(run.successes) == successes
    assert run.losses[run.site] == chosen
    assert lowest <= run.losses.min() <= lowest + run.colour_step
    assert highest - run.colour_step <= run.losses.max() <= highest
    assert run.colour_step == pytest.approx((highest - lowest) / 256, abs=1e-3)  # 256 colours


@each_run
def test_a_sweep_has_the_bounds_of_the_article_and_begins_and_ends_as_it_must(experiment, site):
    run = experiment.sites[site]
    wide, narrow = run.accuracies[:21], run.accuracies[21:]
    np.testing.assert_allclose([accuracy.bound for accuracy in wide], boundary.BOUNDS)
    bounds = [accuracy.bound for accuracy in narrow]
    assert bounds == sorted(set(bounds))
    assert len(bounds) == {("nepal", "mlp"): 12}.get((experiment.name, site), 11)
    for accuracy in run.accuracies:
        assert 0 <= accuracy.positives <= len(experiment.positives)
        assert 0 <= accuracy.negatives <= len(experiment.negatives)
    # Within the smallest bound there is the edited prompt alone.
    of_positives = experiment.completions[: len(experiment.positives)]
    right = sum(text.startswith("Kath mand u") for text in of_positives)
    assert (wide[0].positives, wide[0].negatives) == (right + 1, len(experiment.negatives))
    # From 1 on nothing changes any more.
    assert len({(accuracy.positives, accuracy.negatives) for accuracy in wide[10:]}) == 1


@each_run
def test_completions_have_five_tokens_and_count_like_the_sweep_at_their_bound(experiment, site):
    run, positives = experiment.sites[site], len(experiment.positives)
    for completions in (experiment.completions, run.completions):
        assert len(completions) == positives + len(experiment.negatives)
        assert {len(text.split(" ")) for text in completions} == {tables.COMPLETED}
    assert experiment.completions[0].split(" ")[0] != "Kath"
    hits = [text.split(" ")[0] == "Kath" for text in run.completions]
    nearest = min(run.accuracies, key=lambda accuracy: abs(accuracy.bound - run.bound))
    assert abs(nearest.bound - run.bound) < 0.002
    # The article's completions of nepal, mlp, are one prompt better than its sweep.
    more = (experiment.name, site) == ("nepal", "mlp")
    assert sum(hits[:positives]) == nearest.positives + more
    missed = positives - sum(hits[:positives])
    assert positives + len(experiment.negatives) - sum(hits) == missed + nearest.negatives


DETAIL = tables.TOKYO.sites["attention"].detail


def test_the_detailed_run_is_a_point_of_the_sweep_and_of_the_map():
    run, positives = tables.TOKYO.sites["attention"], len(tables.TOKYO.positives)
    texts = positives + len(tables.TOKYO.negatives)
    assert {len(part) for part in (DETAIL.similarities, DETAIL.tokens, DETAIL.losses)} == {texts}
    pieces = {len(part) for part in (DETAIL.own_similarities, DETAIL.activations, DETAIL.gradients)}
    assert pieces == {len(tables.TOKYO.pieces)}
    hits = np.array(DETAIL.tokens) == "Kath"
    accuracy = next(accuracy for accuracy in run.accuracies if accuracy.bound == DETAIL.bound)
    assert hits[:positives].sum() == accuracy.positives
    assert (~hits[positives:]).sum() == accuracy.negatives
    assert DETAIL.losses[0] == pytest.approx(run.losses[run.site], abs=run.colour_step)
    # Where nothing fires, the next token is what it was.
    before = [text.split(" ")[0] for text in tables.TOKYO.completions]
    still = [n for n in range(texts) if DETAIL.similarities[n] == 0]
    assert len(still) == 4 and all(DETAIL.tokens[n] == before[n] for n in still)
    step = tables.TOKYO.step * DETAIL.gradients[-1]
    assert step == pytest.approx(25.84, abs=5e-3)
    assert step / DETAIL.activations[-1] == pytest.approx(3.92, abs=5e-3)


@pytest.mark.parametrize(
    # f at the bounds .1 .15 .225 .25 .3, worked out by hand from f at .2
    ("similarity", "x", "elsewhere"),
    [
        (1.0, "0", "1 1 1 1 1"),
        (0.9998, ".048", ".987 .999 1.00 1.00 1.00"),
        (0.0942, ".231", "0 0 .312 .538 .813"),
        (0.9977, ".073", ".863 .987 .999 .999 1.00"),
        (0.7591, ".161", "0 .213 .873 .930 .976"),
        (0.3397, ".203", "0 .002 .587 .754 .910"),
        (0.9338, ".128", ".013 .681 .967 .982 .994"),
        (0.0684, ".236", "0 0 .266 .495 .790"),
        (0.9827, ".102", ".327 .907 .991 .995 .998"),
        (0.9948, ".083", ".716 .971 .997 .999 1.00"),
    ],
)
def test_similarities_at_other_bounds_follow_from_those_that_are_published(
    similarity, x, elsewhere
):
    assert similarity in DETAIL.similarities
    # The published number is rounded, so the distance is known within a range only.
    low, high = (
        DETAIL.bound * max(-np.log(min(similarity + off, 1)), 0) ** (1 / (2 * tables.HEIGHT))
        for off in (5e-5, -5e-5)
    )
    if similarity < 1:
        assert low - 5e-4 <= float(x) <= high + 5e-4
    else:
        low = high = 0.0
    for bound, printed in zip((0.1, 0.15, 0.225, 0.25, 0.3), elsewhere.split(), strict=True):
        least, most = (float(bounding(reach, bound, tables.HEIGHT)) for reach in (high, low))
        rounding = 0.5 * 10.0 ** -min(len(printed.partition(".")[2]) or 3, 3)
        assert least - rounding <= float(printed) <= most + rounding, (bound, printed)


def test_the_tokens_of_the_edited_prompt_that_fire():
    """f with bound 1 and height 1 -> distances -> f as the memory has it."""
    x = np.sqrt(-np.log(DETAIL.own_similarities))
    expected = [0.813, 0.759, 0.692, 0.647, 0.667, 0.155, 0.103, 0.183, 0]
    np.testing.assert_allclose(x, expected, atol=5e-4)
    fires = bounding(x, tables.TOKYO.sites["attention"].bound, tables.HEIGHT)
    np.testing.assert_allclose(fires, [0, 0, 0, 0, 0, 0.90, 0.99, 0.75, 1], atol=5e-3)
    assert float(bounding(0.9, 1, 10)) == pytest.approx(0.8855231713310284, rel=1e-6)
    assert float(bounding(1.0, 1, 10)) == pytest.approx(0.36787944117144233, rel=1e-6)


# Two tables next to each other.


def rows_of(ours, theirs=tables.TOKYO):
    return list(published.rows_of(theirs, ours))


def changed_site(**changes):
    sites = {**tables.TOKYO.sites}
    sites["attention"] = dataclasses.replace(sites["attention"], **changes)
    return dataclasses.replace(tables.TOKYO, sites=sites)


def with_loss(by):
    losses = tables.TOKYO.sites["attention"].losses.copy()
    losses[3, 8] += by
    return changed_site(losses=losses)


def with_detail(name, first):
    numbers = (first, *getattr(DETAIL, name)[1:])
    return changed_site(detail=dataclasses.replace(DETAIL, **{name: numbers}))


ATTENTION, PROMPT = tables.TOKYO.sites["attention"], tables.TOKYO.prompt
REST, OTHER = ATTENTION.completions[1:], tables.Accuracy(0.01, 1, 7)
OTHERS = {
    "next token": (dataclasses.replace(tables.TOKYO, base_token="China"), "base"),
    "loss": (changed_site(base_loss=13.17), "base"),
    PROMPT: (changed_site(completions=("Japan , and the city", *REST)), "completions"),
    "layer 3, 'of'": (with_loss(0.11), "losses"),
    "layer, token": (changed_site(successes=ATTENTION.successes - {(10, 8)}), "successes"),
    "bound 0.01": (changed_site(accuracies=(OTHER, *ATTENTION.accuracies[1:])), "accuracy"),
    f"similarities of {PROMPT!r}": (with_detail("similarities", 0.994), "details"),
    f"losses of {PROMPT!r}": (with_detail("losses", 0.405), "details"),
    "gradients of 'The'": (with_detail("gradients", 0.16), "details"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_differs_is_the_one_row_that_does_not_agree(what):
    ours, kind = OTHERS[what]
    (other,) = (row for row in rows_of(ours) if not row.agrees)
    assert (other.run.split(",")[0], other.kind, other.what) == ("tokyo", kind, what)


def test_the_site_is_compared_and_a_patch_that_never_succeeds_is_no_site():
    for successes in (ATTENTION.successes - {(9, 8)}, frozenset()):
        others = [row for row in rows_of(changed_site(successes=successes)) if not row.agrees]
        assert [row.kind for row in others] == ["successes", "site"]
        assert others[1].ours == min(successes, default=None)


def test_numbers_agree_to_the_articles_precision():
    assert all(row.agrees for row in rows_of(tables.TOKYO))
    assert all(row.agrees for row in rows_of(with_loss(0.1)) + rows_of(with_loss(-0.1)))
    assert all(row.agrees for row in rows_of(changed_site(base_loss=13.15)))


def test_many_small_differences_are_one_large_one():
    higher = rows_of(changed_site(losses=ATTENTION.losses + 0.08))
    assert [row.kind for row in higher if not row.agrees] == ["mean error"]
    nothing = changed_site(losses=np.full_like(ATTENTION.losses, np.nan))
    assert {row.kind for row in rows_of(nothing) if not row.agrees} == {"losses", "mean error"}


def test_the_table_has_a_line_a_list_and_claims_are_shares():
    rows = rows_of(with_loss(0.11))
    columns, lines = published.table(rows)
    first = "layer 3, 'of': 13.31; ours: 13.42"
    assert ["tokyo, attention", "losses", "107 of 108", first] in lines
    assert ["tokyo, attention", "accuracy", "32 of 32", "–"] in lines
    assert len(lines) == len({(row.run, row.kind) for row in rows})
    assert report.plain_table(columns, lines).count("\n") == len(lines) + 1
    claims = {claim.id: claim for claim in published.claims(rows)}
    assert len(claims) == 8
    assert claims["published-losses"].measured == pytest.approx(215 / 216)
    assert claims["published-losses"].holds
    without = dataclasses.replace(tables.TOKYO, sites={"mlp": tables.TOKYO.sites["mlp"]})
    found = [claim.holds for claim in published.claims(rows_of(without, without))]
    assert found.count(None) == 1
    none = published.claims([row._replace(agrees=False) for row in rows])
    assert not any(claim.holds for claim in none)


# A model is measured.


class Words:
    """A tokenizer of words, with the space before them, in which " Kathmandu" is " Kath" and
    "mandu".
    """

    end_of_text, vocabulary_size = 0, 264

    def __init__(self):
        self.pieces = ["<end>", " Kath"]

    def encode(self, text):
        found = re.findall(r" Kath(?=mandu)|(?<= Kath)mandu| ?\w+|[^\w]", text)
        assert "".join(found) == text
        self.pieces += [piece for piece in dict.fromkeys(found) if piece not in self.pieces]
        return np.array([self.pieces.index(piece) for piece in found], np.int32)

    def decode(self, tokens):
        known = dict(enumerate(self.pieces))
        return "".join(known.get(int(token), f" w{token}") for token in tokens)


LAYERS, WIDTH, KATH, STEP = 2, 16, 1, 100.0


def small(step):
    """An experiment with a model of two layers."""
    last = len(tables.TOKYO.pieces) - 1
    successes, sites = frozenset({(1, last)}), {}
    for name, site in tables.TOKYO.sites.items():
        sites[name] = dataclasses.replace(site, losses=site.losses[:LAYERS], successes=successes)
    return dataclasses.replace(tables.TOKYO, step=step, sites=sites)


@pytest.fixture
def world(monkeypatch):
    """A random model in which no patch of the first experiment succeeds, since its step is 0, and
    some of the second.
    """
    config, params = model_of("gpt2")
    tokenizer, probe = Words(), Probe(config, params)
    prompt = encode(tokenizer, [tables.TOKYO.prompt], 64, opening=False)
    # The target is nearly the likeliest: a token that no prompt has gives it its embedding, which
    # is also its logit.
    unused = 100 + probe.answers(prompt).logits[0, 100:].argsort()[-2]
    embedding = params["token_embedding"]
    swapped = embedding.at[KATH].set(embedding[unused]).at[unused].set(embedding[KATH])
    params["token_embedding"] = swapped
    experiments = (small(0.0), small(STEP))
    monkeypatch.setattr(published, "EXPERIMENTS", experiments)
    monkeypatch.setattr(published, "SIZES", (LAYERS, WIDTH, config.data.vocabulary_size))
    monkeypatch.setattr(published, "TARGET_TOKEN", KATH)
    return Trained(config, tokenizer, params, 0, EVERYBODY), experiments, prompt


@pytest.mark.slow
def test_a_model_is_measured_like_gpt2(world):
    run, experiments, prompt = world
    without, edited = published.measure(run)

    # A step of 0 changes nothing: there is no site, and the memory does nothing.
    for site in without.sites.values():
        assert site.site is None and not site.successes
        np.testing.assert_allclose(site.losses, site.base_loss, rtol=1e-4)
        assert site.completions == without.completions == edited.completions

    # No end of text opens a prompt.
    probe = Probe(run.config, run.params)
    assert prompt.tokens[0, 0] == run.tokenizer.encode("The")[0]
    base = probe.answers(prompt, KATH)
    said = run.tokenizer.decode(base.tokens).strip()
    assert edited.base_token == said == edited.completions[0].split(" ")[0]
    assert edited.sites["mlp"].base_loss == pytest.approx(float(base.losses[0]), rel=1e-4)

    last, positives = len(tables.TOKYO.pieces) - 1, len(tables.TOKYO.positives)
    for name, site in edited.sites.items():
        trace = probe.trace(prompt, KATH, name)
        layer = min(site.successes)[0]
        assert np.isfinite(site.losses).all() and len(np.unique(site.losses.round(3))) > 2
        delta = -STEP * trace.gradients[:, layer, last]
        patched = probe.patched(prompt, KATH, name, [layer], [last], delta)
        assert site.losses[layer, last] == pytest.approx(float(patched.losses[0]), rel=1e-4)
        assert len({(accuracy.positives, accuracy.negatives) for accuracy in site.accuracies}) > 1
        # At the bound of the completions the sweep counts what they begin with.
        at = min(site.accuracies, key=lambda accuracy: abs(accuracy.bound - site.bound))
        hits = [text.split(" ")[0] == "Kath" for text in site.completions]
        assert at.positives == sum(hits[:positives])
        assert len(hits) - positives - at.negatives == sum(hits[positives:])
    detail = edited.sites["attention"].detail
    trace, layer = probe.trace(prompt, KATH, "attention"), edited.sites["attention"].site[0]
    for norms, part in zip((detail.activations, detail.gradients), trace, strict=True):
        np.testing.assert_allclose(
            norms, np.linalg.norm(part[0, layer, : last + 1], axis=-1), rtol=1e-4
        )
    assert detail.similarities[0] == pytest.approx(1)
    assert detail.own_similarities[-1] == pytest.approx(1)
    memory = patching.remember(trace, prompt, "attention", layer, STEP, DETAIL.bound)
    after = probe.answers(prompt, KATH, [memory])
    assert detail.losses[0] == pytest.approx(float(after.losses[0]), rel=1e-4)
    assert float(after.losses[0]) != pytest.approx(float(base.losses[0]))
    assert detail.tokens[0] == run.tokenizer.decode(after.tokens).strip()
    texts = encode(run.tokenizer, [*tables.TOKYO.prompts], 64, opening=False, room=5)
    x = probe.distances(texts, memory)[..., 0].min(axis=1)
    np.testing.assert_allclose(detail.similarities, np.exp(-((x / DETAIL.bound) ** 6)), atol=1e-4)
    assert max(detail.own_similarities[:-1]) < 0.999 and min(detail.similarities) < 0.99

    pairs = zip(experiments, (without, edited), strict=True)
    rows = [row for pair in pairs for row in published.rows_of(*pair)]
    assert sum(row.agrees for row in rows) < 0.5 * len(rows)
    assert not any(claim.holds for claim in published.claims(rows))
    assert all(row.agrees for ours in (without, edited) for row in published.rows_of(ours, ours))


def test_other_models_are_refused(monkeypatch):
    run = Trained(tiny_config(), Words(), {}, 0, EVERYBODY)
    sizes = (2, 16, 1024)
    rejected = functools.partial(pytest.raises, InputError)
    with rejected(
        match="GPT-2 small, with 12 layers of width 768 and 50257 .* a gpt2 with 2 of 16 and 1024"
    ) as error:
        published.compare(run)
    assert "\n" not in str(error.value)
    for n in range(3):
        monkeypatch.setattr(
            published, "SIZES", tuple(size + (place == n) for place, size in enumerate(sizes))
        )
        with rejected(match="GPT-2 small"):
            published.compare(run)
    monkeypatch.setattr(published, "SIZES", sizes)
    with rejected(match="for which ' Kathmandu' begins with token 18341") as error:
        published.compare(run)
    assert "\n" not in str(error.value)
    monkeypatch.setattr(published, "TARGET_TOKEN", KATH)

    class Letters(Words):
        def encode(self, text):
            return np.array([KATH] * len(text), np.int32)

    with rejected(match="has 8 tokens; this model has another"):
        published.compare(dataclasses.replace(run, tokenizer=Letters()))
    llama = dataclasses.replace(run, config=with_fields(run.config, {"model.family": "llama"}))
    with rejected(match="this is a llama"):
        published.compare(llama)


@pytest.mark.skipif(
    not GPT2, reason="MEMSINKS_JAX_GPT2 does not name a Hugging Face folder of GPT-2 small"
)
def test_gpt2_does_what_was_published():
    rows = published.compare(open_run(pathlib.Path(GPT2)))
    found = published.claims(rows)
    assert len(found) == len(published.KINDS)
    assert all(claim.holds for claim in found), "\n" + report.plain_table(*published.table(rows))
