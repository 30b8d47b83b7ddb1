"""The capacity of sinks: documents held by number of sinks, active fraction and similarity; predicted and measured."""

from typing import NamedTuple

import numpy as np

from memsinks_jax.config import InputError
from memsinks_jax.labs.associative_memory import laws, model, sinks
from memsinks_jax.labs.associative_memory.sinks import Case
from memsinks_jax.labs.associative_memory.study import Settings, curve, mark, record, theory
from memsinks_jax.labs.study import BLUE, GREEN, GREY, RED, VIOLET, Study, finish, panels, save
from memsinks_jax.reporting import report
from memsinks_jax.reporting.claims import Claim

# n: largest number of documents; m: outputs; d: numbers of sinks
DEFAULTS = {"runs": 40, "n": 2048, "m": 16, "d": (128, 256, 512)}
ACTIVE = (0.03, 0.1, 0.3, 1.0)  # 1 is a memory without masks
ALIKE = (0.0, 0.3, 0.6)
SHARE = 0.15  # tolerance of capacities, as a share of the prediction, like that of the laws' exponents
TOLERATED = 0.05  # share of documents that may be recalled wrongly
FEWEST_ACTIVE = 30  # with at least this many active sinks, a code's length hardly varies
ONCE, COUNTS = 16, (2, 4, 16)  # documents read once per document to recall; number of encounters of the latter
MOST_WITH_ONCE = 128  # limit on sinks, as there are so many more documents
COLOURS = dict(zip(ACTIVE, (VIOLET, BLUE, GREEN, RED), strict=True))


class WithOnce(NamedTuple):
    """Recall beside documents read once: error by size (groups, X), capacity (groups,)."""

    case: Case
    sizes: tuple[int, ...]
    errors: np.ndarray
    held: np.ndarray
    predicted: float


def study(settings: Settings) -> Study:
    """Raises InputError if there are too few sinks or documents to measure."""
    if settings.n < 64:
        raise InputError(f"--n={settings.n}: the capacity of sinks is looked for among at least 64 documents")
    if min(settings.d) < 32:
        raise InputError(f"--d={','.join(map(str, settings.d))}: give at least 32 sinks, for example --d=128,512")
    outputs, widest, seeds = settings.m, max(settings.d), settings.seeds
    sizes = tuple(int(round(2**power)) for power in np.arange(3, np.log2(settings.n) + 0.01, 0.5))
    cases = [Case(count, p, s) for s in ALIKE for count in settings.d for p in ACTIVE]
    cases += [Case(widest, p, s, False) for s in (0.0, 0.3) for p in (0.1, 0.3)]
    cases += [Case(round(0.3 * widest), 1.0, 0.0)]
    errors_GCX = sinks.measure(seeds, settings.draws, cases, outputs, sizes).mean(1)
    errors = dict(zip(cases, np.moveaxis(errors_GCX, 1, 0), strict=True))
    held = {case: sinks.capacity(sizes, errors_GX, TOLERATED) for case, errors_GX in errors.items()}
    predicted = {case: sinks.predicted_capacity(case, outputs, TOLERATED) for case in cases}
    # The prediction assumes interference of many: at least one document per output, at most the number tried.
    told = {case: held[case] for case in cases if outputs <= predicted[case] <= settings.n / 2}
    told = {case: values for case, values in told.items() if not np.isnan(values).any()}
    crowded = _with_once(settings, sizes)
    runs = []
    for name, one in crowded.items():
        runs += record(name, seeds, {"error": ("documents", one.sizes, one.errors)})
    for case in cases:
        curves = {"error": ("documents", sizes, errors[case])}
        metrics = {"capacity": held[case], "predicted": np.full(len(seeds), predicted[case])} if case in told else {}
        runs += record(_name(case), seeds, curves, **metrics)
    return Study(
        "sinks", "How many documents sinks can hold", _answer(settings, predicted),
        f"Memory of one item a document, {outputs} outputs drawn at random, masks drawn from the document's id; "
        f"{settings.runs} runs. Capacity: documents at which {TOLERATED:.0%} are recalled wrongly. Dashed: predicted from "
        "d_eff in place of d, nothing fitted. A document of which L tokens are to be recited takes L items. How alike "
        f"activations are in a trained model is not measured here, and shared neurons are left out. Right: {ONCE} documents "
        "read once stand beside each to be recalled.",
        runs, _claims(settings, errors, held, predicted, told, sizes) + _claims_with_once(crowded),
        lambda path: _draw(settings, errors, told, predicted, sizes, crowded, path),
        [report.heading(f"Documents held by {widest} sinks: measured (predicted)"), _table(widest, held, predicted)],
    )  # fmt: skip


def _name(case) -> str:
    count, p, s, tied, _ = case
    return f"{count} sinks, p={p:g}, s={s:g}" + ("" if tied else ", untied")


def _answer(settings: Settings, predicted) -> str:
    widest = max(settings.d)
    per_sink = predicted[Case(widest, 0.3, 0.0)] / widest
    return (
        f"About {per_sink:.1f} documents a sink with {settings.m} outputs, whatever the active fraction p, as long as "
        f"documents' activations are unrelated and {FEWEST_ACTIVE} sinks are active: a mask takes as much from the signal "
        "as from the interference. What masks buy is independence of likeness: without them, documents with activations "
        "alike to the degree s cannot be told apart beyond d_eff = 1/s^2, with them d_eff stays near M while p < 1/(s "
        "sqrt(M)). Rule: choose shared_fraction so that M = (1 - shared_fraction) hidden is at least the items to be "
        f"memorized over {per_sink:.1f}, and active_fraction between {FEWEST_ACTIVE}/M and 1/(s sqrt(M)). Masks must be "
        "tied to the document: drawn anew at every access they lower the capacity by p^2. Documents that are read once take "
        "room too, each as much as 1/k^2 of one that has come k times; with sinks that open at the second encounter, none."
    )


def _claims(settings: Settings, errors, held, predicted, told, sizes) -> list[Claim]:
    widest, rows = max(settings.d), []

    def add(name, statement, paper, values, **bounds):
        rows.append(Claim(name, statement, paper, [float(value) for value in values], **bounds))

    def gain(name, statement, paper, one, other, at_least):
        if not np.isnan(held[one] + held[other]).any():
            expected = f"{paper}, {predicted[one] / predicted[other]:.2g} predicted"
            add(name, statement, expected, held[one] / held[other], at_least=at_least)

    enough = {case: values for case, values in told.items() if case.sinks * case.active >= FEWEST_ACTIVE and case.tied}
    ratios = np.array([values / predicted[case] for case, values in enough.items()])
    add("capacity", f"capacity over the predicted one, mean of {len(enough)} cases with {FEWEST_ACTIVE} or more active",
        "1 from Theorem 1 with d_eff", ratios.mean(0), at_least=1 - SHARE, at_most=1 + SHARE)  # fmt: skip
    logs = np.log([predicted[case] for case in enough])
    slopes = [np.polyfit(logs, np.log(row), 1)[0] for row in np.array(list(enough.values())).T]
    add("capacity_slope", "exponent of the measured capacity in the predicted one, over these cases", "1", slopes,
        at_least=1 - SHARE, at_most=1 + SHARE)  # fmt: skip
    inside = _inside(settings, errors, sizes)
    add("theorem_1", f"share of {len(inside)} errors between the bounds of Theorem 1 at d_eff", "1", inside.mean(0),
        at_least=1)  # fmt: skip
    gain("no_cost", "capacity with masks p = 0.3 over none, unrelated activations (s = 0)", "no loss",
         Case(widest, 0.3, 0.0), Case(widest, 1.0, 0.0), 0.85)  # fmt: skip
    gain("alike", "capacity with masks p = 0.1 over p = 0.3, alike activations (s = 0.3)", "gain",
         Case(widest, 0.1, 0.3), Case(widest, 0.3, 0.3), 1.5)  # fmt: skip
    gain("tied", "capacity with tied masks over fresh ones, p = 0.3, s = 0", "gain",
         Case(widest, 0.3, 0.0), Case(widest, 0.3, 0.0, False), 4)  # fmt: skip
    gain("width", "capacity of M sinks at p = 0.3 over 0.3 M neurons without masks", "gain",
         Case(widest, 0.3, 0.0), Case(round(0.3 * widest), 1.0, 0.0), 2)  # fmt: skip
    return rows


def _with_once(settings: Settings, sizes) -> dict[str, WithOnce]:
    """Recall for several opening encounters and several numbers of encounters."""
    count = min(max(settings.d), MOST_WITH_ONCE)
    sizes = tuple(size for size in sizes if size <= 4 * count)
    weights = {f"always open, came {k} times": sinks.weight_of_once(k, 1) for k in COUNTS}
    weights["open at 2, came twice or more"] = sinks.weight_of_once(COUNTS[0], 2)
    cases = [Case(count, 0.3, 0.0, once=weight) for weight in weights.values()]
    errors_GCX = sinks.measure(settings.seeds, settings.draws, cases, settings.m, sizes, ONCE).mean(1)
    return {
        name: WithOnce(
            case, sizes, errors_GX, sinks.capacity(sizes, errors_GX, TOLERATED),
            sinks.predicted_capacity(case, settings.m, TOLERATED) / sinks.crowding(case, ONCE),
        )
        for name, case, errors_GX in zip(weights, cases, np.moveaxis(errors_GCX, 1, 0), strict=True)
    }  # fmt: skip


def _claims_with_once(crowded: dict[str, WithOnce]) -> list[Claim]:
    always, *_, opened = crowded.values()
    if np.isnan([one.held for one in crowded.values()]).any():
        return []
    ratios = np.mean([one.held / one.predicted for one in crowded.values()], 0)
    return [
        Claim("once", f"capacity over the predicted one, {ONCE} documents read once beside each, mean of {len(crowded)} "
              "cases", "1 from n (1 + U / k^2)", ratios.tolist(), at_least=1 - SHARE, at_most=1 + SHARE),
        Claim("opening", f"capacity of sinks that open at the second encounter over always open, came {COUNTS[0]} times",
              f"gain, {opened.predicted / always.predicted:.2g} predicted", (opened.held / always.held).tolist(),
              at_least=3),
    ]  # fmt: skip


def _bounds(d_eff: float, documents: int, outputs: int) -> tuple[float, float]:
    """Lower and upper bound of Theorem 1 for documents stored alike, with d_eff for d."""
    q_N, y_N, law = np.ones(documents), model.outputs(documents, outputs), model.Law(np.full(documents, 1 / documents))
    pair = (bound(d_eff, q_N, law, y_N, outputs) for bound in (laws.lower_bound, laws.upper_bound))
    return tuple(pair)


def _inside(settings: Settings, errors, sizes) -> np.ndarray:
    """Whether each measured error is within the bounds, where Theorem 1 applies -> bool (points, groups)."""
    rows = []
    for case, errors_GX in errors.items():
        d_eff = sinks.effective_dimension(case)
        if case.sinks * case.active < FEWEST_ACTIVE or not case.tied or d_eff <= 8 * np.log(settings.m):
            continue
        for place, size in enumerate(sizes):
            if size >= settings.m:
                low, high = _bounds(d_eff, size, settings.m)
                rows.append((errors_GX[:, place] >= low) & (errors_GX[:, place] <= high))
    return np.array(rows)


def _table(widest: int, held, predicted) -> str:
    def cell(case):
        mean = f"{held[case].mean():.0f}" if not np.isnan(held[case]).any() else "–"
        return f"{mean} ({predicted[case]:.0f})"

    rows = [[f"s = {s:g}", *(cell(Case(widest, p, s)) for p in ACTIVE)] for s in ALIKE]
    names = ["activations alike", *(f"{p:g} active" if p < 1 else "no masks" for p in ACTIVE)]
    return report.table(names, rows, ["", *["number"] * len(ACTIVE)])


def _draw(settings: Settings, errors, told, predicted, sizes, crowded, path) -> None:
    widest, outputs = max(settings.d), settings.m
    figure, axes = panels(5)
    for axis, s in zip(axes, (ALIKE[0], ALIKE[1]), strict=False):
        shown = [Case(widest, p, s) for p in ACTIVE] + [Case(widest, 0.3, s, False)]
        for case in shown:
            colour = COLOURS[case.active] if case.tied else GREY
            label = ("no masks" if case.active == 1 else f"{case.active:g} active") + (
                "" if case.tied else ", fresh masks"
            )
            curve(axis, np.array(sizes) / widest, errors[case], label, colour)
            line = sinks.predicted_error(case, sizes, outputs)
            theory(axis, np.array(sizes) / widest, line, colour=colour)
        axis.axhline(TOLERATED, color="black", linewidth=0.8, linestyle=":")
        title = f"{widest} sinks, similarity of activations {s:g}"
        finish(axis, title, "documents per sink", "error", log="x", legend=2, ylim=(0, 1))
    for case in told:
        if case.tied and case.sinks * case.active >= FEWEST_ACTIVE:
            x = np.array(sizes) / (outputs * sinks.effective_dimension(case))
            axes[2].plot(x, errors[case].mean(0), ".", color=COLOURS[case.active], markersize=4)
    x = np.geomspace(3e-3, 3, 60)
    theory(axes[2], x, sinks.predicted_error(Case(widest, 1.0, 0.0), x * outputs * widest, outputs), "predicted")
    bounds = np.array([_bounds(widest, max(round(value * outputs * widest), outputs), outputs) for value in x])
    axes[2].fill_between(x, *bounds.T, color=GREY, alpha=0.2, linewidth=0, label=f"Theorem 1, {widest} sinks")
    for p in ACTIVE[1:]:
        axes[2].plot([], [], ".", color=COLOURS[p], label=f"{p:g} active")
    finish(
        axes[2],
        "All cases on one curve",
        "documents per output over effective width",
        "error",
        log="x",
        legend=2,
        ylim=(0, 1),
    )
    for case, values in told.items():
        kind = "o" if case.tied else "x"
        axes[3].plot(
            predicted[case], values.mean(), kind, color=COLOURS[case.active] if case.tied else GREY, markersize=6
        )
    reach = np.array([min(predicted[case] for case in told), max(predicted[case] for case in told)])
    theory(axes[3], reach, reach, "equal")
    for p in ACTIVE:
        axes[3].plot([], [], "o", color=COLOURS[p], label="no masks" if p == 1 else f"{p:g} active")
    axes[3].plot([], [], "x", color=GREY, label="fresh masks")
    finish(axes[3], f"Documents held at {TOLERATED:.0%} errors", "predicted", "measured", log="xy", legend=3)
    ticks = [30, 60, 120, 250, 500]
    mark(axes[3], ticks)
    mark(axes[3], ticks, "y")
    for (name, one), colour in zip(crowded.items(), (RED, VIOLET, GREEN, BLUE), strict=True):
        x = np.array(one.sizes)
        curve(axes[4], x / one.case.sinks, one.errors, name, colour)
        line = sinks.predicted_error(one.case, x * sinks.crowding(one.case, ONCE), outputs)
        theory(axes[4], x / one.case.sinks, line, colour=colour)
    axes[4].axhline(TOLERATED, color="black", linewidth=0.8, linestyle=":")
    finish(axes[4], f"{ONCE} read once beside each document", "documents per sink", "error", log="x", legend=1,
           ylim=(0, 1))  # fmt: skip
    save(figure, path)
