"""Figures 4 to 8: what gradient descent stores (section 4)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.optimize
from matplotlib.colors import ListedColormap

from memsinks_jax.reporting.pictures import plt
from memsinks_jax.studies.labs.associative_memory import model, optimization
from memsinks_jax.studies.labs.associative_memory.study import Figure, FigureSettings
from memsinks_jax.studies.labs.study import Claims, Panel, Study, lines, record

STEPS = 1000  # of figures 4 to 6


def _shown(steps: int) -> np.ndarray:
    """The steps of a plot, evenly spaced in logarithms."""
    return np.unique(np.geomspace(1, steps, 60).round().astype(int))


def _memory(key, n: int, m: int, d, width: int, law: model.Law, count: int):
    """A memory and `count` samples -> kernel (N, N), gram (M, M), inputs (T,)."""
    of_memory, of_samples = jax.random.split(key)
    e_NR, gram_MM = model.draw(of_memory, n, m, d, width)
    return optimization.kernel(e_NR, d), gram_MM, model.samples(of_samples, law, count)


RULES = {
    "gradient": "SGD (18)",
    "approximation": "update (19)",
    "scheme": "$q_\\gamma$ of (20) in (4)",
}


def figure_4(settings: FigureSettings) -> Study:
    """Is (20) a good approximation of what SGD stores? Yes if d >= N, no if d << N."""
    n, m, seeds, steps = settings.n, settings.m, settings.seeds, _shown(STEPS)
    law, y_N = model.zipf(n, settings.alpha), jnp.asarray(model.outputs(n, m))
    cases = ((n, 10.0), (n, 1.0), (max(n // 10, 1), 1.0))
    d_C, gamma_C = (jnp.array(column, jnp.float32) for column in zip(*cases, strict=True))

    def error(scores_MN):
        return model.error(scores_MN, y_N, law)

    def one_run(key, d, gamma):
        kernel_NN, gram_MM, inputs_T = _memory(key, n, m, d, n, law, STEPS)
        given = kernel_NN, gram_MM, y_N, inputs_T, jnp.full(STEPS, gamma), error
        return jnp.stack([optimization.stream(rule, *given) for rule in RULES])

    over_cases = jax.vmap(one_run, in_axes=(None, 0, 0))
    errors_GRCUT = model.over_runs(
        lambda key: over_cases(key, d_C, gamma_C), seeds, settings.draws, together=True
    )
    errors_GCUX, runs, shown = errors_GRCUT.mean(1)[..., steps - 1], [], []
    for c, ((d, gamma), which) in enumerate(zip(cases, ("One run", "Mean", "Mean"), strict=True)):
        drawn_GUX = (
            errors_GRCUT[:1, 0, c][..., steps - 1] if which == "One run" else errors_GCUX[:, c]
        )
        of_sgd, curves = RULES["gradient"], {}
        for u, (rule, label) in enumerate(RULES.items()):
            curve = {"error": ("T", steps, errors_GCUX[:, c, u])}
            runs += record(f"{rule}, d={d}, gamma={gamma:g}", seeds, {}, curve)
            rows_GX = drawn_GUX[:, u]
            curves[label] = (steps, rows_GX) if label == of_sgd else (steps, None, rows_GX.mean(0))
        title = f"{which}, width {d}, step size {gamma:g}"
        shown.append(lines(title, "steps", "error", curves, legend=2, log="xy"))
    sgd_GCX, scheme_GCX, part = errors_GCUX[:, :, 0], errors_GCUX[:, :, 2], cases[2][0]
    # Distance of the scheme's mean error from SGD's, in logarithms, over the steps of the plot.
    gap_GC = np.abs(np.log(scheme_GCX / sgd_GCX)).mean(-1)
    claims = Claims()
    for c, (_, gamma) in enumerate(cases[:2]):
        what = f"mean |log E(q_gamma) / E(SGD)| at d = N = {n}, gamma = {gamma:g}"
        claims.add(f"close_{gamma:g}", what, "curves coincide", gap_GC[:, c], at_most=0.25)
    what = f"E(q_gamma) / E(SGD) after {STEPS} steps at d = {part}"
    values = scheme_GCX[:, 2, -1] / sgd_GCX[:, 2, -1]
    claims.add("part", what, "the approximation is not valid", values, at_least=1.5)
    what = f"that mean |log| at d = {part} over the one at d = N, gamma = 1"
    claims.add("part_more", what, "breaks when d << N", gap_GC[:, 2] / gap_GC[:, 1], at_least=1.5)
    return Study(
        "4",
        "Figure 4: what SGD stores, and its approximation",
        "With room for all inputs, SGD stores an association with the weight f^n(0) after n "
        "sights of it. In a matrix too "
        "small the gradient also repairs what interference breaks, which no fixed weight does.",
        f"N = {n}, M = {m}, alpha = {settings.alpha:g}, batch size one, W = 0 at the start, "
        f"{settings.runs} runs. Embeddings are divided by sqrt(d), so that a unit of q changes "
        "its own logit by about 1, as (20) assumes; the paper's own rescaling is not in its main "
        "text. Dashed: the approximations.",
        runs,
        claims,
        shown,
    )


# Step sizes of figure 5, and rho of the paper's closest scheme, at alpha = 2, if it gives one.
CLOSEST = {10.0: 0.05, 1.0: None, 0.1: 0.35, 0.01: None, 0.001: 1.0}


def figure_5(settings: FigureSettings) -> Study:
    """The weight f^n(0) of an association seen n times (20), and the closest scheme q_rho.

    Nothing here is random: all seeds agree, and every quantity has one value."""
    n, m, alpha, seeds = settings.n, settings.m, settings.alpha, settings.seeds[:1]
    # Number of times each input was seen: (x + 3)^-alpha, scaled so that the rarest was seen once.
    seen_N = np.round(((np.arange(1, n + 1) + 3.0) / (n + 3)) ** -alpha).astype(int)
    p_N, times, inputs = seen_N / seen_N[0], range(STEPS + 1), range(1, n + 1)
    runs, claims, stored, schemes = [], Claims(), {}, {}
    for gamma, rho in CLOSEST.items():
        weights = np.asarray(optimization.iterates(gamma, m, int(max(seen_N[0], STEPS))))
        q_N, steps_shown = weights[seen_N] / weights[seen_N[0]], weights[: STEPS + 1]

        def distance(rho, q_N=q_N):
            """Of p^rho from q in least squares, both with the largest weight 1."""
            return ((q_N - p_N**rho) ** 2).sum()

        fitted = float(scipy.optimize.minimize_scalar(distance, bounds=(0, 2)).x)
        curves = {"f_n": ("n", times, steps_shown[None]), "q": ("x", inputs, q_N[None])}
        runs += record(f"gamma={gamma:g}", seeds, {"rho": [fitted]}, curves)
        stored[f"step size {gamma:g}"] = times, steps_shown
        schemes[f"step size {gamma:g}, $\\rho={fitted:.2f}$"] = inputs, q_N, p_N**fitted
        if alpha == 2 and rho is not None:
            statement = f"rho of the q_rho closest to q_gamma, gamma = {gamma:g}"
            claims.near(f"rho_{gamma:g}", statement, f"{rho:g}", [fitted], rho, 0.1, digits=2)
    panels = []
    title = "What SGD stores of an input"
    panels.append(lines(title, "times it was seen", "weight $f^n(0)$", stored, ordered=True))
    title = "The scheme it amounts to"
    x, y = "input, by frequency", "weight over the largest"
    panels.append(lines(title, x, y, schemes, ordered=True, log="xy"))
    return Study(
        "5",
        "Figure 5: which scheme SGD finds",
        "A large step stores an association at its first sight and hardly adds to it later, which "
        "is q_0; a small one adds in proportion to the sights, which is q_1.",
        f"f of (20) with M = {m}; inputs seen (x+3)^-{alpha:g} times, the rarest of {n} once. "
        "Dashed: q_rho with the rho closest in least squares.",
        runs,
        claims,
        panels,
    )


def figure_6(settings: FigureSettings) -> Study:
    """The effect of one SGD step on the scores of all inputs.

    Raises InputError for several values of d, and for more inputs than one plot can show.
    """
    (d,) = settings.dimensions("6", "one", "5")
    if settings.n > 50:
        raise settings.refusal("n", "figure 6 shows the scores of every input; give at most 50")
    n, m, seeds, gammas = settings.n, settings.m, settings.seeds, (10.0, 0.1)
    law, y_N = model.zipf(n, settings.alpha), model.outputs(n, m)

    def one_run(key):
        kernel_NN, gram_MM, inputs_T = _memory(key, n, m, d, min(n, d), law, STEPS)
        given = "gradient", kernel_NN, gram_MM, jnp.asarray(y_N), inputs_T
        sizes = [jnp.full(STEPS, gamma) for gamma in gammas]
        return jnp.stack(
            [optimization.stream(*given, size, lambda x: x) for size in sizes]
        ), inputs_T

    scores_GRCTMN, inputs_GRT = model.over_runs(one_run, seeds, settings.draws, together=True)
    right, inputs = scores_GRCTMN.argmax(-2) == y_N, inputs_GRT.astype(int)
    lost_GC = _lost(right, inputs)
    rare_GC = right[:, :, :, STEPS // 2 :, n // 2 :].mean((1, 3, 4))
    runs, shown = [], []
    for c, gamma in enumerate(gammas):
        curves = {"recalled": ("T", range(10, STEPS + 1, 10), right[:, :, c, 9::10].mean((1, 3)))}
        metrics = {"lost": lost_GC[:, c], "rare": rare_GC[:, c]}
        runs += record(f"gamma={gamma:g}", seeds, metrics, curves)
        step = _example(right[0, 0, c], inputs[0, 0])
        for when, at in (("before", step - 1), ("after", step)):
            title = f"Step size {gamma:g}, {when} step {step + 1}"
            shown.append(_matrix(title, scores_GRCTMN[0, 0, c, at], y_N, inputs[0, 0, step]))
    large, small = gammas
    claims = Claims()
    both = f"gamma = {large:g} over gamma = {small:g}"
    what = f"share of recalled inputs lost by a step on an unrecalled one: {both}"
    claims.add("overwrites", what, "a large step erases", lost_GC[:, 0] / lost_GC[:, 1], at_least=1)
    both = f"gamma = {large:g} minus gamma = {small:g}"
    what = f"share of the rarer half of the inputs recalled late: {both}"
    values = rare_GC[:, 0] - rare_GC[:, 1]
    claims.add("misses_rare", what, "a small step does not store the rare", values, at_least=0)
    return Study(
        "6",
        "Figure 6: what one step does to all memories",
        "A large step stores the association of its input and may erase others; a small one "
        "leaves the others alone and needs many steps on an input before it is stored.",
        f"N = {n}, M = {m}, alpha = {settings.alpha:g}, d = {d}, batch size one, embeddings "
        "divided by sqrt(d). Scores u_y^T W e_x, scaled for every input from its lowest to its "
        "highest; lighter is higher. Red: the input of the step and its output; white dots: what "
        f"is recalled; grey rings: what should be. Claims over {settings.runs} runs of {STEPS} "
        "steps.",
        runs,
        claims,
        shown,
    )


def _lost(right, inputs) -> np.ndarray:
    """Share of recalled inputs that a step on an unrecalled one makes forgotten -> (groups, C)."""
    before, after = right[..., :-1, :], right[..., 1:, :]
    here = np.broadcast_to(inputs[:, :, None, 1:, None], (*before.shape[:-1], 1))
    on_wrong = ~np.take_along_axis(before, here, axis=-1)
    gone = (before & ~after & on_wrong).sum((1, 3, 4))
    return (gone + 1e-9) / ((before & on_wrong).sum((1, 3, 4)) + 1e-9)


def _example(right_TN, inputs_T) -> int:
    """The step on an unrecalled input that changes the recall of most others, from the 100th on."""
    steps = np.arange(100, len(inputs_T))
    wrong = ~right_TN[steps - 1, inputs_T[steps]]
    changed = (right_TN[steps - 1] & ~right_TN[steps]).sum(1)
    return int(steps[np.argmax(wrong * (1 + changed))])


def _matrix(title: str, scores_MN, y_N, x: int) -> Panel:
    def draw(axis) -> None:
        low, high, inputs = scores_MN.min(0), scores_MN.max(0), np.arange(len(y_N))
        axis.imshow((scores_MN - low) / np.maximum(high - low, 1e-9), vmin=0, vmax=1, aspect="auto")
        axis.plot(inputs, scores_MN.argmax(0), "o", color="white", markersize=4)
        axis.plot(
            inputs, y_N, "o", markerfacecolor="none", markeredgecolor="#bdc3c7", markersize=10
        )
        corner, frame = (x - 0.5, y_N[x] - 0.5), {"edgecolor": "#e74c3c", "linewidth": 2.5}
        axis.add_patch(plt.Rectangle(corner, 1, 1, fill=False, **frame))
        axis.set(title=title, xlabel="input, by frequency", ylabel="output")
        shown = inputs[:: -(-len(inputs) // 10)]
        axis.set_xticks(shown, shown + 1)

    return draw


SAMPLES = 10000  # of figure 7, except for its large batches
LARGE_BATCH, LARGE_BATCH_STEPS = 1000, 100


def _figure_7_errors(settings: FigureSettings, d: int, narrow: int) -> list[dict[str, np.ndarray]]:
    """Errors after every step by step size, schedule (in width `narrow`), batch size and optimizer
    -> {name: float64 (groups of runs, steps)} for each of the four.
    """
    n, m = settings.n, settings.m
    law, y_N = model.zipf(n, settings.alpha), jnp.asarray(model.outputs(n, m))

    def over_runs(one_run, names) -> dict[str, np.ndarray]:
        """Errors after every step, means over runs -> {name: float64 (groups, steps)}."""
        errors_GRX = model.over_runs(one_run, settings.seeds, settings.draws, together=True).mean(1)
        return dict(zip(names, np.moveaxis(errors_GRX, 1, 0), strict=True))

    def measure(scores_MN):
        return model.error(scores_MN, y_N, law)

    def one_by_one(step_sizes: dict[str, np.ndarray], d: int) -> dict[str, np.ndarray]:
        """SGD of batch size one, with each of these step sizes (T,)."""
        gamma_ST = jnp.asarray(np.stack(list(step_sizes.values())), jnp.float32)

        def one_run(key):
            kernel_NN, gram_MM, inputs_T = _memory(key, n, m, d, min(n, d), law, SAMPLES)
            given = "gradient", kernel_NN, gram_MM, y_N, inputs_T
            return jax.vmap(lambda gamma_T: optimization.stream(*given, gamma_T, measure))(gamma_ST)

        return over_runs(one_run, step_sizes)

    def in_batches(batch: int) -> dict[str, np.ndarray]:
        """SGD in batches, with step size 1/sqrt(batch) for the sum of their gradients."""

        def one_run(key):
            kernel_NN, gram_MM, inputs_T = _memory(key, n, m, d, min(n, d), law, SAMPLES)
            inputs_TB = inputs_T.reshape(-1, batch)
            gamma_T = jnp.full(len(inputs_TB), batch**-0.5)
            return optimization.batches(kernel_NN, gram_MM, y_N, inputs_TB, gamma_T, measure)[None]

        return over_runs(one_run, [f"batch {batch}"])

    # Adam without memory is sign descent. All on W, from the same random start.
    ways = {
        "SGD": (optax.sgd(1.0), False),
        "Adam": (optax.adam(1 / d, b1=0.0, b2=0.0), False),
        "layer norm": (optax.sgd(1.0), True),
    }

    def on_matrix(key):
        of_inputs, of_outputs, of_start, of_samples = jax.random.split(key, 4)
        e_ND, w_DD = (
            jax.random.normal(k, (count, d)) / d**0.5
            for k, count in ((of_inputs, n), (of_start, d))
        )
        u_MD = jax.random.normal(of_outputs, (m, d))
        u_MD = u_MD / jnp.linalg.norm(u_MD, axis=1, keepdims=True)
        inputs_T = model.samples(of_samples, law, LARGE_BATCH * LARGE_BATCH_STEPS)
        inputs_TB = inputs_T.reshape(-1, LARGE_BATCH)
        given = w_DD, e_ND, u_MD, y_N, inputs_TB, law
        return jnp.stack(
            [optimization.descend(way, *given, layer_norm) for way, layer_norm in ways.values()]
        )

    cosine_T = np.asarray(optax.cosine_decay_schedule(10.0, SAMPLES)(jnp.arange(SAMPLES)))
    schedules = {
        "constant 10": np.full(SAMPLES, 10.0),
        "constant 1": np.ones(SAMPLES),
        "10, decaying": cosine_T,
    }
    gammas = (0.01, 0.1, 1.0, 10.0, 100.0)
    steps = one_by_one({f"gamma={gamma:g}": np.full(SAMPLES, gamma) for gamma in gammas}, d)
    decayed = one_by_one(schedules, narrow)
    batches = {"batch 1": steps["gamma=1"]} | in_batches(10) | in_batches(100) | in_batches(1000)
    optimizers = over_runs(on_matrix, ways)
    return [steps, decayed, batches, optimizers]


def figure_7(settings: FigureSettings) -> Study:
    """How step size, batch size, schedules, Adam and layer norm change what is stored."""
    (d,) = settings.dimensions("7", "one", "100")
    narrow = max(d // 4, 1)
    steps, decayed, batches, optimizers = _figure_7_errors(settings, d, narrow)
    runs, shown, claims, large_batch = [], [], Claims(), LARGE_BATCH * LARGE_BATCH_STEPS
    for group, width, title, samples, errors in (
        ("steps", d, "Step sizes, batch 1", SAMPLES, steps),
        ("schedule", narrow, "Schedules, batch 1", SAMPLES, decayed),
        ("batches", d, "Batch sizes, step size $1/\\sqrt{B}$", SAMPLES, batches),
        ("optimizer", d, f"Optimizers, batch {LARGE_BATCH}", large_batch, optimizers),
    ):
        curves = {}
        for name, errors_GT in errors.items():
            places = _shown(errors_GT.shape[1])
            error = curves[name] = places * samples // errors_GT.shape[1], errors_GT[:, places - 1]
            metrics, curve = {"error": errors_GT[:, -1]}, {"error": ("T", *error)}
            runs += record(f"{group}: {name}, d={width}", settings.seeds, metrics, curve)
        title = f"{title}, width {width}"
        shown.append(
            lines(title, "samples $T$", "error", curves, log="xy", ordered=group == "steps")
        )

    def better(id: str, what: str, paper: str, one, other) -> None:
        ratio_G = one[:, -1] / np.maximum(other[:, -1], 1e-9)
        claims.add(id, f"error {what}", paper, ratio_G, at_most=1)

    names, sizes = list(steps), list(batches)
    for small, large in zip(names[:3], names[1:4], strict=True):
        what = f"with {large} over that with {small}, T = {SAMPLES}"
        better(f"larger_{large}", what, "larger steps are better", steps[large], steps[small])
    for small, large in zip(sizes[:-1], sizes[1:], strict=True):
        what, paper = (
            f"with {small} over that with {large}, T = {SAMPLES}",
            "smaller batches are better",
        )
        better(f"smaller_{small}", what, paper, batches[small], batches[large])
    for name in ("Adam", "layer norm"):
        what = f"of {name} over that of SGD, batch {LARGE_BATCH}"
        better(name, what, "better than SGD", optimizers[name], optimizers["SGD"])
    for name in ("constant 10", "constant 1"):
        what, paper = f"with a decaying step over that with {name}", "beats either (scheduling)"
        better(f"decay_{name}", what, paper, decayed["10, decaying"], decayed[name])
    return Study(
        "7",
        "Figure 7: how the optimizer stores",
        "On the same samples a larger step stores more, up to a point; so do smaller batches. "
        "With large batches, where SGD weights associations by their frequency, Adam and layer "
        "norm even that out. A large step that decays beats both the large and the small constant "
        "one when memory is short.",
        f"N = {settings.n}, M = {settings.m}, alpha = {settings.alpha:g}, {settings.runs} runs. "
        "Step sizes are for embeddings divided by sqrt(d), with W = 0 at the start. Batches: "
        "gradients are summed and gamma = 1/sqrt(B), so the variance of the updates of T samples "
        f"does not depend on B. Optimizers, batch {LARGE_BATCH}, mean gradient: W starts N(0, "
        "1/d), where layer norm is defined, and all three move W e_x by about 1 in their first "
        "step on a frequent x: step size 1 for SGD and layer norm, 1/d for the signs of Adam "
        "(beta1 = beta2 = 0). The paper's own rescaling is not in its main text.",
        runs,
        claims,
        shown,
    )


def figure_8(settings: FigureSettings) -> Study:
    """With learned embeddings, two dimensions hold every association."""
    n, seeds, d, length, gamma = settings.n, settings.seeds, 2, 2000, 0.05
    law, runs, claims, shown = model.zipf(n, settings.alpha), [], Claims(), []
    steps = np.arange(length // 100, length + 1, length // 100)
    for m in (settings.m, 2 * settings.m):
        y_N = model.outputs(n, m)
        given = law, jnp.asarray(y_N), m, d, length, gamma
        learn = functools.partial(lambda given, key: optimization.learn(key, *given), given)
        e, u, errors_GRT = model.over_runs(learn, seeds, settings.draws, together=True)
        # The error is a sum of p(x) over unrecalled inputs: without any it is exactly zero.
        solved_G = (errors_GRT[:, :, -1] == 0).mean(1)
        curves = {"error": ("step", steps, errors_GRT[:, :, steps - 1].mean(1))}
        metrics = {"solved": solved_G, "error": errors_GRT[:, :, -1].mean(1)}
        runs += record(f"M={m}", seeds, metrics, curves)
        statement = f"share of runs with zero error, d = {d}, M = {m}, N = {n}"
        paper = "zero error is reached (Fig. 8)"
        claims.add(f"zero_error_{m}", statement, paper, [solved_G.mean()], at_least=0.9)
        kinds = ("outputs", "inputs") if m == settings.m else ("inputs",)
        shown += [_plane(kind, e[0, 0], u[0, 0], y_N) for kind in kinds]
    return Study(
        "8",
        "Figure 8: learned embeddings",
        "Random embeddings hold about d associations in a d x d matrix. Learned ones hold any "
        "number in two dimensions: inputs of one output gather around its direction.",
        f"N = {n}, d = {d}, alpha = {settings.alpha:g}, W = I; e and u learned by Adam (step "
        f"{gamma:g}, {length} steps) on the cross-entropy of the whole law, from N(0, I). Shown: "
        f"seed {seeds[0]}. Areas: argmax_y u_y^T u.",
        runs,
        claims,
        shown,
    )


def _plane(kind: str, e_ND, u_MD, y_N) -> Panel:
    """Regions of argmax_y u_y^T u, with the u_y, or with the e_x coloured by their output."""

    def draw(axis) -> None:
        m, reach = len(u_MD), 1.15 * np.abs(u_MD if kind == "outputs" else e_ND).max()
        colours = plt.get_cmap("turbo")(np.linspace(0, 1, m))
        plane = np.stack(np.meshgrid(*[np.linspace(-reach, reach, 400)] * 2), axis=-1)
        winner, areas = (plane @ u_MD.T).argmax(-1), ListedColormap(colours)
        place = {"origin": "lower", "extent": (-reach, reach) * 2, "aspect": "auto"}
        axis.imshow(
            winner, cmap=areas, vmin=0, vmax=m - 1, alpha=0.3, interpolation="nearest", **place
        )
        if kind == "outputs":
            axis.quiver(
                *np.zeros((2, m)), *u_MD.T, color=colours, angles="xy", scale_units="xy", scale=1
            )
            for y, place in enumerate(u_MD):
                axis.annotate(f"$u_{{{y}}}$", 1.07 * place, ha="center", va="center")
        else:
            axis.scatter(*e_ND.T, c=colours[y_N], s=22, edgecolors="white", linewidths=0.5)
        title = "Outputs $u_y$, areas they win" if kind == "outputs" else "Inputs $e_x$ by output"
        axis.set(title=f"{title}, M = {m}", xlabel="first coordinate", ylabel="second coordinate")
        axis.set_box_aspect(1)

    return draw


FIGURES = {
    "4": Figure(figure_4, {"runs": 100, "alpha": 2.0, "n": 100, "m": 5}),
    "5": Figure(figure_5, {"alpha": 2.0, "n": 100, "m": 5}),
    "6": Figure(figure_6, {"runs": 100, "alpha": 1.5, "n": 10, "m": 5, "d": (5,)}),
    "7": Figure(figure_7, {"runs": 10, "alpha": 2.0, "n": 100, "m": 5, "d": (100,)}),
    "8": Figure(figure_8, {"runs": 10, "alpha": 2.0, "n": 100, "m": 5}),
}
