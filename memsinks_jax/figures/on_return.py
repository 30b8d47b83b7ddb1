"""Beside what the paper's sinks do, what sinks that open on return do: their variants, and the values of every claim."""

import dataclasses
import functools
from collections.abc import Callable

from memsinks_jax.figures.runs import Run, Variation, by_variant
from memsinks_jax.reporting.claims import Claim

SUFFIX = "_on_return"  # of the name of a variant


def both(variants: dict[str, Variation]) -> dict[str, Variation]:
    """The same, and each with the paper's sinks once more with sinks that open on return, under its name and SUFFIX."""
    ours = {
        name + SUFFIX: one._replace(choice=one.choice.replace("sinks_paper", "sinks"))
        for name, one in variants.items()
        if "sinks_paper" in one.choice
    }
    return variants | ours


def published(variant: str) -> str:
    """The variant with the paper's sinks, all else equal."""
    return variant.removesuffix(SUFFIX)


def of_the_paper(runs: list[Run]) -> list[Run]:
    return [run for run in runs if not run.variant.endswith(SUFFIX)]


def beside(claims: Callable[[list[Run]], list[Claim]]) -> Callable[[list[Run]], list[Claim]]:
    """A figure's claims, which are about the paper's sinks, each with what it measures of sinks that open on return."""

    @functools.wraps(claims)
    def of_both(runs: list[Run]) -> list[Claim]:
        ours = [run for run in runs if run.variant.endswith(SUFFIX)]
        opened = [dataclasses.replace(run, variant=published(run.variant)) for run in ours]
        taken = {run.variant for run in opened}
        others = [run for run in of_the_paper(runs) if run.variant not in taken]
        without_sinks = {one.id for one in claims(others)}
        measured = {one.id: one.values for one in claims(others + opened) if one.id not in without_sinks}
        return [dataclasses.replace(one, on_return=measured.get(one.id)) for one in claims(of_the_paper(runs))]

    return of_both


def labels(runs: list[Run], names: dict[str, str]) -> list[str]:
    """Of the rows of a table, by `names` of the paper's variants; one that is not among them is called by its own name."""
    return [
        names.get(published(name), published(name)) + ", open on return" * name.endswith(SUFFIX)
        for name in by_variant(runs)
    ]
