"""The capacity of sinks: documents held by number of sinks, active fraction and similarity."""

from typing import NamedTuple

import numpy as np

from memsinks_jax.reporting import report
from memsinks_jax.studies.labs.associative_memory import laws, model, sinks
from memsinks_jax.studies.labs.associative_memory.sinks import Case
from memsinks_jax.studies.labs.associative_memory.study import Figure, FigureSettings
from memsinks_jax.studies.labs.study import Claims, Panel, Study, lines, record, scatter

ACTIVE = (0.03, 0.1, 0.3, 1.0)  # 1 is a memory without masks
ALIKE = (0.0, 0.3, 0.6)
# tolerance of capacities, as a share of the prediction, like that of the laws' exponents
SHARE = 0.15
TOLERATED = 0.05  # share of documents that may be recalled wrongly
FEWEST_ACTIVE = 30  # with at least this many active sinks, a code's length hardly varies
# documents read once per document to recall; number of encounters of the latter
ONCE, COUNTS = 16, (2, 4, 16)
MOST_WITH_ONCE = 128  # limit on sinks, as there are so many more documents


class Recall(NamedTuple):
    """Of a pool: error by documents (groups, X), capacity (groups,), and both as predicted."""

    case: Case
    sizes: np.ndarray
    errors: np.ndarray
    line: np.ndarray
    held: np.ndarray
    predicted: float

    @property
    def found(self) -> bool:
        """Whether every group has a capacity."""
        return not np.isnan(self.held).any()

    @property
    def smooth(self) -> bool:
        """Whether codes have about the same length, as Theorem 1 with d_eff assumes."""
        return self.case.tied and self.case.sinks * self.case.active >= FEWEST_ACTIVE


def recall(
    settings: FigureSettings, cases: list[Case], sizes: tuple[int, ...], once: int = 0
) -> list[Recall]:
    """Every case, with so many documents read once for each document to recall."""
    given = settings.seeds, settings.draws, cases, settings.m, sizes, once
    errors_GCX, every = sinks.measure(*given).mean(1), []
    for case, errors_GX in zip(cases, np.moveaxis(errors_GCX, 1, 0), strict=True):
        crowding = sinks.crowding(case, once)
        line = sinks.predicted_error(case, np.array(sizes) * crowding, settings.m)
        predicted = sinks.predicted_capacity(case, settings.m, TOLERATED) / crowding
        held = sinks.capacity(sizes, errors_GX, TOLERATED)
        every.append(Recall(case, np.array(sizes), errors_GX, line, held, predicted))
    return every


def study(settings: FigureSettings) -> Study:
    """Raises InputError if there are too few sinks or documents to measure."""
    if settings.n < 64:
        raise settings.refusal("n", "the capacity of sinks is searched among at least 64 documents")
    if min(settings.d) < 32:
        raise settings.refusal("d", "give at least 32 sinks, for example --d=128,512")
    outputs, widest, seeds = settings.m, max(settings.d), settings.seeds
    sizes = tuple(int(round(2**power)) for power in np.arange(3, np.log2(settings.n) + 0.01, 0.5))
    cases = [Case(count, p, s) for s in ALIKE for count in settings.d for p in ACTIVE]
    cases += [Case(widest, p, s, False) for s in (0.0, 0.3) for p in (0.1, 0.3)]
    cases += [Case(round(0.3 * widest), 1.0, 0.0)]
    found = {one.case: one for one in recall(settings, cases, sizes)}
    # The prediction assumes interference of many: at least one document per output.
    valid = [
        one for one in found.values() if outputs <= one.predicted <= settings.n / 2 and one.found
    ]
    crowded = _with_once(settings, sizes)
    runs = []
    for name, one in crowded.items():
        runs += record(name, seeds, {}, {"error": ("documents", one.sizes, one.errors)})
    for case, one in found.items():
        name = f"{case.sinks} sinks, p={case.active:g}, s={case.alike:g}"
        name += "" if case.tied else ", untied"
        both = {"capacity": one.held, "predicted": [one.predicted] * len(seeds)}
        metrics = both if one in valid else {}
        runs += record(name, seeds, metrics, {"error": ("documents", sizes, one.errors)})
    return Study(
        "sinks",
        "How many documents sinks can hold",
        _answer(settings, found),
        f"Memory of one item a document, {outputs} outputs drawn at random, masks drawn from the "
        f"document's id; {settings.runs} runs. Capacity: documents at which {TOLERATED:.0%} are "
        "recalled wrongly. Dashed: predicted from d_eff in place of d, nothing fitted. A document "
        "of which L tokens are to be recited takes L items. How alike activations are in a "
        f"trained model is not measured here, and shared neurons are left out. Last: {ONCE} "
        "documents read once are added for each to be recalled.",
        runs,
        _claims(settings, found, valid) + _claims_with_once(crowded),
        _panels(settings, found, valid, crowded),
        [
            report.heading(f"Documents held by {widest} sinks: measured (predicted)"),
            _table(widest, found),
        ],
    )


def _answer(settings: FigureSettings, found: dict[Case, Recall]) -> str:
    widest = max(settings.d)
    per_sink = found[Case(widest, 0.3, 0.0)].predicted / widest
    return (
        f"About {per_sink:.1f} documents a sink with {settings.m} outputs, whatever the active "
        f"fraction p, as long as documents' activations are unrelated and {FEWEST_ACTIVE} sinks "
        "are active: a mask takes as much from the signal as from the interference. What masks "
        "buy is independence of likeness: without them, documents with activations alike to the "
        "degree s cannot be distinguished beyond d_eff = 1/s^2, with them d_eff stays near M "
        "while p < 1/(s sqrt(M)). Rule: choose shared_fraction so that M = (1 - shared_fraction) "
        f"hidden is at least the items to be memorized over {per_sink:.1f}, and active_fraction "
        f"between {FEWEST_ACTIVE}/M and 1/(s sqrt(M)). Masks must be tied to the document: drawn "
        "anew at every access they lower the capacity by p^2. Documents that are read once take "
        "room too, each as much as 1/k^2 of one that has come k times; with sinks that open at "
        "the second encounter, none."
    )


def _claims(settings: FigureSettings, found: dict[Case, Recall], valid: list[Recall]) -> list:
    widest, smooth = max(settings.d), [one for one in valid if one.smooth]
    predicted, held = (
        np.array([getattr(one, name) for one in smooth]) for name in ("predicted", "held")
    )
    slopes = [np.polyfit(np.log(predicted), np.log(row), 1)[0] for row in held.T]
    inside = _inside(settings, found)
    near_one = {"at_least": 1 - SHARE, "at_most": 1 + SHARE}
    rows = Claims()
    which = f"{len(smooth)} cases with {FEWEST_ACTIVE} or more active"
    what = f"capacity over the predicted one, mean of {which}"
    values = (held / predicted[:, None]).mean(0)
    rows.add("capacity", what, "1 from Theorem 1 with d_eff", values, **near_one)
    what = "exponent of the measured capacity in the predicted one, over these cases"
    rows.add("capacity_slope", what, "1", slopes, **near_one)
    what = f"share of {len(inside)} errors between the bounds of Theorem 1 at d_eff"
    rows.add("theorem_1", what, "1", inside.mean(0), at_least=1)

    def compare(name: str, what: str, one: Case, other: Case, least: float, paper="gain"):
        one, other = found[one], found[other]
        if one.found and other.found:
            paper += f", {one.predicted / other.predicted:.2g} predicted"
            rows.add(name, f"capacity {what}", paper, one.held / other.held, at_least=least)

    masked, all_on = Case(widest, 0.3, 0.0), Case(widest, 1.0, 0.0)
    what = "with masks p = 0.3 over none, unrelated activations (s = 0)"
    compare("no_cost", what, masked, all_on, 0.85, "no loss")
    what = "with masks p = 0.1 over p = 0.3, alike activations (s = 0.3)"
    compare("alike", what, Case(widest, 0.1, 0.3), Case(widest, 0.3, 0.3), 1.5)
    what = "with tied masks over fresh ones, p = 0.3, s = 0"
    compare("tied", what, masked, Case(widest, 0.3, 0.0, False), 4)
    what = "of M sinks at p = 0.3 over 0.3 M neurons without masks"
    compare("width", what, masked, Case(round(0.3 * widest), 1.0, 0.0), 2)
    return rows


def _with_once(settings: FigureSettings, sizes) -> dict[str, Recall]:
    """Recall for several opening encounters and several numbers of encounters."""
    count = min(max(settings.d), MOST_WITH_ONCE)
    sizes = tuple(size for size in sizes if size <= 4 * count)
    weights = {f"always open, came {k} times": sinks.weight_of_once(k, 1) for k in COUNTS}
    weights["open at 2, came twice or more"] = sinks.weight_of_once(COUNTS[0], 2)
    cases = [Case(count, 0.3, 0.0, once=weight) for weight in weights.values()]
    return dict(zip(weights, recall(settings, cases, sizes, ONCE), strict=True))


def _claims_with_once(crowded: dict[str, Recall]) -> list:
    always, *_, opened = every = list(crowded.values())
    if not all(one.found for one in every):
        return []
    ratios = np.mean([one.held / one.predicted for one in every], 0)
    claims = Claims()
    which = f"{ONCE} documents read once for each, mean of {len(every)} cases"
    what = f"capacity over the predicted one, {which}"
    paper = "1 from n (1 + U / k^2)"
    claims.add("once", what, paper, ratios, at_least=1 - SHARE, at_most=1 + SHARE)
    which = f"over always open, came {COUNTS[0]} times"
    what = f"capacity of sinks that open at the second encounter {which}"
    paper = f"gain, {opened.predicted / always.predicted:.2g} predicted"
    claims.add("opening", what, paper, opened.held / always.held, at_least=3)
    return claims


def _bounds(d_eff: float, documents: int, outputs: int) -> tuple[float, float]:
    """Lower and upper bound of Theorem 1 for documents stored alike, with d_eff for d."""
    q_N = np.ones(documents)
    y_N = model.outputs(documents, outputs)
    law = model.Law(np.full(documents, 1 / documents))
    given = d_eff, q_N, law, y_N, outputs
    return laws.lower_bound(*given), laws.upper_bound(*given)


def _inside(settings: FigureSettings, found: dict[Case, Recall]) -> np.ndarray:
    """Whether each error is within the bounds, where Theorem 1 applies -> bool (points, groups)."""
    rows = []
    for case, one in found.items():
        d_eff = sinks.effective_dimension(case)
        if one.smooth and d_eff > 8 * np.log(settings.m):
            for size, errors_G in zip(one.sizes, one.errors.T, strict=True):
                if size >= settings.m:
                    low, high = _bounds(d_eff, size, settings.m)
                    rows.append((errors_G >= low) & (errors_G <= high))
    return np.array(rows)


def _table(widest: int, found: dict[Case, Recall]) -> str:
    def cell(one: Recall) -> str:
        return f"{f'{one.held.mean():.0f}' if one.found else '–'} ({one.predicted:.0f})"

    rows = [[f"s = {s:g}", *(cell(found[Case(widest, p, s)]) for p in ACTIVE)] for s in ALIKE]
    return report.table(
        ["activations alike", *map(_active, ACTIVE)], rows, ["", *["number"] * len(ACTIVE)]
    )


def _active(p: float) -> str:
    return f"{p:g} active" if p < 1 else "no masks"


def _panels(
    settings: FigureSettings,
    found: dict[Case, Recall],
    valid: list[Recall],
    crowded: dict[str, Recall],
) -> list[Panel]:
    widest, outputs = max(settings.d), settings.m

    def by_size(title: str, several: dict[str, Recall]) -> Panel:
        shown = {
            name: (one.sizes / one.case.sinks, one.errors, one.line)
            for name, one in several.items()
        }
        how = {"log": "x", "level": TOLERATED, "legend": 2, "ylim": (0, 1)}
        return lines(title, "documents per sink", "error", shown, **how)

    panels = []
    for s in ALIKE[:2]:
        several = {_active(p): found[Case(widest, p, s)] for p in ACTIVE}
        several["0.3 active, fresh masks"] = found[Case(widest, 0.3, s, False)]
        panels.append(by_size(f"{widest} sinks, similarity of activations {s:g}", several))
    places = np.geomspace(3e-3, 3, 60)  # documents per output over effective width
    bounds = [
        _bounds(widest, max(round(value * outputs * widest), outputs), outputs) for value in places
    ]
    line = sinks.predicted_error(Case(widest, 1.0, 0.0), places * outputs * widest, outputs)
    one_curve = {
        "predicted": (places, None, line),
        f"Theorem 1, {widest} sinks": (places, None, *np.transpose(bounds)),
    }
    for p in ACTIVE[1:]:
        smooth = [one for one in valid if one.smooth and one.case.active == p]
        widths = [one.sizes / (outputs * sinks.effective_dimension(one.case)) for one in smooth]
        one_curve[_active(p)] = np.ravel(widths), np.ravel([one.errors.mean(0) for one in smooth])
    title, x = "All cases on one curve", "documents per output over effective width"
    panels.append(lines(title, x, "error", one_curve, ".", log="x", ylim=(0, 1)))
    groups = {
        _active(p): [one for one in valid if one.case.tied and one.case.active == p] for p in ACTIVE
    }
    groups["fresh masks"] = [one for one in valid if not one.case.tied]
    points = {
        name: ([one.predicted for one in ones], [one.held.mean() for one in ones])
        for name, ones in groups.items()
    }
    title = f"Documents held at {TOLERATED:.0%} errors"
    panels.append(scatter(title, "predicted", "measured", points, "equal", log="xy"))
    return [*panels, by_size(f"{ONCE} read once for each document", crowded)]


# n: largest number of documents; m: outputs; d: numbers of sinks
FIGURES = {"sinks": Figure(study, {"runs": 40, "n": 2048, "m": 16, "d": (128, 256, 512)})}
