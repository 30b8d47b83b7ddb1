"""Trains every point of a grid: python -m memsinks_jax.sweep --config=configs/sweeps/table_3.py
--out=runs/table_3

The config file defines the grid (GRID: all combinations of its fields' values; or several grids)
and the metric to sort points by (MEASURE). A field set on the command line is not varied:
--config.optimizer.learning_rate=5e-3. Trains several runs in parallel; after an interruption the
same command resumes. Writes results.json, a picture and index.html.
"""

import dataclasses
import itertools
import pathlib
import statistics
import sys

from absl import flags
from ml_collections import config_flags

from memsinks_jax.config import RULES, Config, InputError, nearest_field, shown
from memsinks_jax.reporting import report
from memsinks_jax.reporting.pictures import plt, save, tidy
from memsinks_jax.runs import command_line
from memsinks_jax.runs.command_line import REQUIRED, option
from memsinks_jax.runs.interruption import atomic_folder
from memsinks_jax.studies.figures.runs import (
    Run,
    Variation,
    by_variant,
    default_jobs,
    make_jobs,
    train_all,
)
from memsinks_jax.studies.figures.table import LOSSES, METRICS, Table
from memsinks_jax.variants import open_config

CONTROL = "control"  # name of the run to compare all others with
MEASURES = ["gap_closed", *sorted(METRICS)]  # by which points can be sorted


def grid(module, overrides: list[str], choice: str) -> dict[str, Variation]:
    """{name: variation} of every point of GRID, without the fields that `overrides` fix; the
    control, if any, first.
    """
    grids = module.GRID if isinstance(module.GRID, tuple) else (module.GRID,)
    fixed = {flag.removeprefix("--config.").split("=")[0] for flag in overrides}
    fields = dict.fromkeys(field for one in grids for field in one)
    if fixed >= set(fields):
        raise InputError(
            f"every field of the grid is set: leave one of {', '.join(fields)} to be varied"
        )
    found = (
        {CONTROL: Variation(",".join(filter(None, (module.CONTROL, choice))))}
        if module.CONTROL
        else {}
    )
    for one in grids:
        varied = {field: values for field, values in one.items() if field not in fixed}
        for values in itertools.product(*varied.values()) if varied else ():
            settings = dict(zip(varied, values, strict=True))
            name = ",".join(
                f"{field.rsplit('.', 1)[-1]}={_text(value)}" for field, value in settings.items()
            )
            if found.setdefault(name, Variation(choice, settings)).settings != settings:
                raise InputError(
                    f"two points of the grid are called {name}; give values that differ in six "
                    "digits"
                )
    return found


def _text(value: object) -> str:
    """A value in the name of a point, which is also a folder's."""
    return str(value).replace("/", "_") if isinstance(value, str) else f"{value:g}"


def order(runs: list[Run], measure: str) -> list[str]:
    """Names of the points, best first: with the highest mean of gap_closed, or the lowest of a
    loss. Raises InputError if a point lacks it.
    """
    table = _table(runs)

    def value(name: str) -> float:
        found = table.column("closed" if measure == "gap_closed" else measure, name)
        if not found:
            raise InputError(
                f"MEASURE is {measure}, which {name} did not measure; choose another, or see its "
                "log"
            )
        return statistics.mean(found) * (-1 if measure == "gap_closed" else 1)

    return sorted((name for name in table.groups if name != CONTROL), key=value)


def _table(runs: list[Run]) -> Table:
    return Table(runs, standard_of=lambda name: CONTROL)


def sweep(
    path: pathlib.Path,
    choice: str,
    seeds: list[int],
    overrides: list[str],
    out: pathlib.Path,
    at_once: int,
    command: str,
) -> dict:
    """Trains, sorts, draws, writes -> the content of results.json. Raises as `train_all` does."""
    module = _load(path)
    about = (module.__doc__ or "").strip().splitlines()
    jobs = make_jobs(path, "", grid(module, overrides, choice), seeds, overrides, out, {})
    runs = train_all(jobs, at_once)
    names = order(runs, module.MEASURE)
    names = ([CONTROL] if module.CONTROL else []) + names
    ordered = [run for name in names for run in by_variant(runs)[name].values()]
    columns, table = LOSSES | {"steps": "step"}, _table(ordered)
    rows = [[table.column(shown, name) for shown in columns.values()] for name in names]
    cells = [
        [name, *report.numbers(list(columns), row)] for name, row in zip(names, rows, strict=True)
    ]
    draw(ordered, out / "sweep.png")
    content = {
        "sweep": path.stem,
        "choice": choice,
        "seeds": seeds,
        "measure": module.MEASURE,
        "command": command,
        "best": names[bool(module.CONTROL)],
        "runs": [run.to_dict() for run in ordered],
    }
    title = f"Sweep {path.stem}, sorted by {module.MEASURE.replace('_', ' ')}"
    report.write_json(out / "results.json", content)
    report.write_page(
        out / "index.html",
        title,
        [
            *([report.paragraph(about[0], "lead")] if about else []),
            report.picture(out / "sweep.png", title),
            report.text_table(["point", *columns], cells, len(columns)),
            report.paragraph(
                "Mean ± half of the 95% interval over seeds; losses in nats per token, sinks "
                "dropped.",
                "note",
            ),
            *([report.heading("Its config"), report.code(module.__doc__)] if about else []),
            report.heading("How it was made"),
            report.code(command),
        ],
    )
    print(report.plain_table(["point", *columns], cells), file=sys.stderr)
    print(f"\nreport: {out / 'index.html'}", file=sys.stderr)
    return content


def draw(runs: list[Run], path: pathlib.Path) -> None:
    """Draws both losses of every point, in the order of `runs`, one dot per seed. With a control,
    also the trade-off.
    """
    groups = by_variant(runs)
    columns = 2 if CONTROL in groups else 1
    size = (1 + 0.08 * max(map(len, groups)) + 5 * columns, max(1.4 + 0.26 * len(groups), 4.0))
    figure, axes = plt.subplots(1, columns, figsize=size, layout="constrained", squeeze=False)
    axis = axes[0, 0]
    for name, colour in (("held_out_loss", "#1f618d"), ("repeated_loss", "#c0392b")):
        for place, group in enumerate(groups.values()):
            values = [run.metrics[name] for run in group.values()]
            axis.plot(
                values,
                [place] * len(values),
                "o",
                color=colour,
                alpha=0.6,
                markersize=5,
                label=f"{name.split('_loss')[0].replace('_', '-')}, dropped"
                if place == 0
                else None,
            )
    axis.set_yticks(range(len(groups)), [f"{name}  ({place})" for place, name in enumerate(groups)])
    axis.invert_yaxis()
    axis.set(xlabel="loss (nats per token)", xlim=(0, None))
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)
    if CONTROL in groups:
        _draw_trade(axes[0, 1], _table(runs))
    for axis in axes[0]:
        tidy(axis)
    save(figure, path, dpi=130)


def _draw_trade(axis, table: Table) -> None:
    """Draws the share of the control's gap that points close against the held-out loss; up and left
    is good.
    """
    for place, name in enumerate(table.groups):
        cost, closed = (
            statistics.mean(table.column(shown, name)) for shown in ("held_out_ratio", "closed")
        )
        axis.plot(
            cost, closed, "o", color="#566573" if name == CONTROL else "#1f618d", markersize=5
        )
        axis.annotate(
            str(place), (cost, closed), xytext=(4, 3), textcoords="offset points", fontsize=8.5
        )
    axis.set(xlabel="held-out loss over the control's", ylabel="gap closed", ylim=(None, 1))
    axis.locator_params(axis="x", nbins=5)  # the costs may differ in the third digit alone


def _load(path: pathlib.Path):
    """Loads a sweep's config file. Raises InputError if it is not one."""
    module = open_config(path)
    missing = [name for name in ("GRID", "MEASURE", "CONTROL") if not hasattr(module, name)]
    if missing:
        raise InputError(
            f"--config={path} has no {', '.join(missing)}; give a file of configs/sweeps"
        )
    grids = module.GRID if isinstance(module.GRID, tuple) else (module.GRID,)
    varied = [item for one in grids if isinstance(one, dict) for item in one.items()]
    if not varied or not all(isinstance(one, dict) and one for one in grids):
        raise InputError(
            f"--config={path}: GRID is no {{field: [values]}}, or several of them; see "
            "configs/sweeps"
        )
    for field, values in varied:
        if field not in RULES:
            raise InputError(
                f"--config={path}: GRID varies {shown(str(field))}; did you mean "
                f"{nearest_field(str(field))!r}?"
            )
        if not isinstance(values, list | tuple) or not values:
            raise InputError(
                f"--config={path}: GRID has {values!r:.60} for {field}; give a list of values"
            )
    if module.MEASURE not in MEASURES:
        raise InputError(
            f"--config={path}: MEASURE is {module.MEASURE!r:.60}; choose one of: "
            f"{', '.join(MEASURES)}"
        )
    if module.MEASURE == "gap_closed" and not module.CONTROL:
        raise InputError(
            f"--config={path}: MEASURE is gap_closed, that of a control; name one in CONTROL, or "
            "take a loss"
        )
    return module


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    config: Config
    seeds: tuple[str, ...] = option(("0",), "Seeds; every point is trained once with each.")
    out: str = option(REQUIRED, "Folder for results and runs.")
    jobs: int = option(0, "Parallel runs; 0: one per core on a CPU, up to 8, else one.", 0)


def main(options: Options) -> dict:
    seeds, overrides = list(command_line.seeds(options.seeds)), command_line.overrides()
    name = config_flags.get_config_filename(flags.FLAGS["config"])
    path, _, choice = name.partition(":")
    command = " ".join(
        [
            f"python -m memsinks_jax.sweep --config={name} --seeds={','.join(map(str, seeds))}",
            *overrides,
            f"--out={options.out}",
        ]
    )
    out, at_once = pathlib.Path(options.out), options.jobs or default_jobs()
    with atomic_folder(out / "results.json"):  # one command at a time
        return sweep(pathlib.Path(path), choice, seeds, overrides, out, at_once, command)


if __name__ == "__main__":
    command_line.run(main, Options)
