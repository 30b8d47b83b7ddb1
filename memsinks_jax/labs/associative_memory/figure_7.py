"""Figure 7: how step size, batch size, schedules, Adam and layer norm change the memory of the same samples."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from memsinks_jax.config import InputError
from memsinks_jax.labs.associative_memory import model, optimization
from memsinks_jax.labs.associative_memory.study import Settings, curve, record, shades
from memsinks_jax.labs.study import BLUE, GREEN, GREY, ORANGE, RED, Study, finish, panels, save
from memsinks_jax.reporting.claims import Claim

DEFAULTS = {"runs": 10, "alpha": 2.0, "n": 100, "m": 5, "d": (100,)}
SAMPLES = 10000
STEP_SIZES = (0.01, 0.1, 1.0, 10.0, 100.0)
BATCHES = (10, 100, 1000)  # besides batch size one
LARGE_BATCH, LARGE_BATCH_STEPS = 1000, 100
OPTIMIZERS = ("SGD", "Adam", "layer norm")


def study(settings: Settings) -> Study:
    """Raises InputError for several values of d."""
    if len(settings.d) > 1:
        raise InputError(
            f"--d={','.join(map(str, settings.d))}: figure 7 has one dimension; give one, for example --d=100"
        )
    d, seeds = settings.d[0], settings.seeds
    narrow = max(d // 4, 1)
    run = _Runs(settings)
    constant = {f"gamma={gamma:g}": np.full(SAMPLES, gamma) for gamma in STEP_SIZES}
    cosine_T = np.asarray(optax.cosine_decay_schedule(10.0, SAMPLES)(jnp.arange(SAMPLES)))
    schedules = {"constant 10": np.full(SAMPLES, 10.0), "constant 1": np.ones(SAMPLES), "10, decaying": cosine_T}
    steps = run.one_by_one(constant, d)
    decayed = run.one_by_one(schedules, narrow)
    batches = {"batch 1": steps["gamma=1"]} | {f"batch {batch}": run.in_batches(batch, d) for batch in BATCHES}
    optimizers = run.on_matrix(d)
    runs, times = [], {}
    for group, place, errors in (("steps", d, steps), ("schedule", narrow, decayed), ("batches", d, batches),
                                 ("optimizer", d, optimizers)):  # fmt: skip
        for name, errors_GT in errors.items():
            length = errors_GT.shape[1]
            spread = LARGE_BATCH * LARGE_BATCH_STEPS if group == "optimizer" else SAMPLES
            shown = np.unique(np.geomspace(1, length, 60).round().astype(int))
            times[group, name] = shown * spread // length, errors_GT[:, shown - 1]
            curves = {"error": ("T", *times[group, name])}
            runs += record(f"{group}: {name}, d={place}", seeds, curves, error=errors_GT[:, -1])

    def draw(path):
        figure, axes = panels(4)
        optimizer_colours = {"SGD": BLUE, "Adam": RED, "layer norm": GREEN}
        families = {
            "steps": f"Step sizes, batch 1, width {d}",
            "batches": f"Batch sizes, step size $1/\\sqrt{{B}}$, width {d}",
            "optimizer": f"Optimizers, batch {LARGE_BATCH}, width {d}",
            "schedule": f"Schedules, batch 1, width {narrow}",
        }
        for axis, (family, title) in zip(axes, families.items(), strict=True):
            names = [name for group, name in times if group == family]
            colours = dict(zip(names, shades(len(names)), strict=True))
            if family == "schedule":
                colours = dict(zip(names, (ORANGE, GREY, BLUE), strict=True))
            for name in names:
                label = f"step size {name[6:]}" if family == "steps" else name
                curve(axis, *times[family, name], label, optimizer_colours.get(name, colours[name]))
            finish(axis, title, "samples $T$", "error", log="xy", legend=3 if len(names) != 4 else 2)
        save(figure, path)

    return Study(
        "7", "Figure 7: how the optimizer stores",
        "On the same samples a larger step stores more, up to a point; so do smaller batches. With large batches, where SGD "
        "weights associations by their frequency, Adam and layer norm even that out. A large step that decays beats both "
        "the large and the small constant one when memory is short.",
        f"N = {settings.n}, M = {settings.m}, alpha = {settings.alpha:g}, {settings.runs} runs. Step sizes are for "
        "embeddings divided by sqrt(d), with W = 0 at the start. Batches: gradients are summed and gamma = 1/sqrt(B), so "
        f"the variance of the updates of T samples does not depend on B. Optimizers, batch {LARGE_BATCH}, mean gradient: W "
        "starts N(0, 1/d), where layer norm is defined, and all three move W e_x by about 1 in their first step on a "
        "frequent x: step size 1 for SGD and layer norm, 1/d for the signs of Adam (beta1 = beta2 = 0). The paper's own "
        "rescaling is not in its main text.",
        runs, _claims(settings, steps, decayed, batches, optimizers), draw,
    )  # fmt: skip


class _Runs:
    """Errors after every step, averaged over the runs of each group -> float64 (groups, steps)."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.law = model.zipf(settings.n, settings.alpha)
        self.y_N = jnp.asarray(model.outputs(settings.n, settings.m))

    def _over_runs(self, one_run, names) -> dict[str, np.ndarray]:
        errors_GRX = model.over_runs(one_run, self.settings.seeds, self.settings.draws, together=True).mean(1)
        return dict(zip(names, np.moveaxis(errors_GRX, 1, 0), strict=True))

    def _measure(self, scores_MN):
        return model.error(scores_MN, self.y_N, self.law)

    def _memory(self, key, d):
        of_memory, of_samples = jax.random.split(key)
        e_NR, gram_MM = model.draw(of_memory, self.settings.n, self.settings.m, d, min(self.settings.n, d))
        return optimization.kernel(e_NR, d), gram_MM, model.samples(of_samples, self.law, SAMPLES)

    def one_by_one(self, step_sizes: dict[str, np.ndarray], d: int) -> dict[str, np.ndarray]:
        """SGD of batch size one, with each of these step sizes (T,)."""
        gamma_ST = jnp.asarray(np.stack(list(step_sizes.values())), jnp.float32)

        def one_run(key):
            kernel_NN, gram_MM, inputs_T = self._memory(key, d)
            return jax.vmap(
                lambda gamma_T: optimization.stream(
                    "gradient", kernel_NN, gram_MM, self.y_N, inputs_T, gamma_T, self._measure
                )
            )(gamma_ST)

        return self._over_runs(one_run, step_sizes)

    def in_batches(self, batch: int, d: int) -> np.ndarray:
        """SGD in batches, with step size 1/sqrt(batch) for the sum of their gradients."""

        def one_run(key):
            kernel_NN, gram_MM, inputs_T = self._memory(key, d)
            inputs_TB = inputs_T.reshape(-1, batch)
            gamma_T = jnp.full(len(inputs_TB), batch**-0.5)
            return optimization.batches(kernel_NN, gram_MM, self.y_N, inputs_TB, gamma_T, self._measure)[None]

        return self._over_runs(one_run, ("errors",))["errors"]

    def on_matrix(self, d: int) -> dict[str, np.ndarray]:
        """SGD, Adam without memory (sign descent) and SGD through layer norm, on W from the same random start."""
        n, m = self.settings.n, self.settings.m
        ways = ((optax.sgd(1.0), False), (optax.adam(1 / d, b1=0.0, b2=0.0), False), (optax.sgd(1.0), True))

        def one_run(key):
            of_inputs, of_outputs, of_start, of_samples = jax.random.split(key, 4)
            e_ND, w_DD = (jax.random.normal(k, (count, d)) / d**0.5 for k, count in ((of_inputs, n), (of_start, d)))
            u_MD = jax.random.normal(of_outputs, (m, d))
            u_MD = u_MD / jnp.linalg.norm(u_MD, axis=1, keepdims=True)
            inputs_TB = model.samples(of_samples, self.law, LARGE_BATCH * LARGE_BATCH_STEPS).reshape(-1, LARGE_BATCH)
            return jnp.stack([
                optimization.descend(optimizer, w_DD, e_ND, u_MD, self.y_N, inputs_TB, self.law, layer_norm)
                for optimizer, layer_norm in ways
            ])  # fmt: skip

        return self._over_runs(one_run, OPTIMIZERS)


def _claims(settings: Settings, steps, decayed, batches, optimizers) -> list[Claim]:
    def ratio(name, statement, paper, one_GT, other_GT):
        values = [float(value) for value in one_GT[:, -1] / np.maximum(other_GT[:, -1], 1e-9)]
        return Claim(name, statement, paper, values, at_most=1)

    names = list(steps)
    rows = [
        ratio(f"larger_{large}", f"error with {large} over that with {small}, T = {SAMPLES}", "larger steps are better",
              steps[large], steps[small])
        for small, large in zip(names[:3], names[1:4], strict=True)
    ]  # fmt: skip
    rows += [
        ratio(f"smaller_{small}", f"error with {small} over that with {large}, T = {SAMPLES}", "smaller batches are better",
              batches[small], batches[large])
        for small, large in zip(list(batches)[:-1], list(batches)[1:], strict=True)
    ]  # fmt: skip
    rows += [
        ratio(name, f"error of {name} over that of SGD, batch {LARGE_BATCH}", "better than SGD", optimizers[name],
              optimizers["SGD"])
        for name in OPTIMIZERS[1:]
    ]  # fmt: skip
    rows += [
        ratio(f"decay_{name}", f"error with a decaying step over that with {name}", "beats either (scheduling)",
              decayed["10, decaying"], decayed[name])
        for name in ("constant 10", "constant 1")
    ]  # fmt: skip
    return rows
