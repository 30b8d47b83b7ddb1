"""Adds sinks that open on return beside the paper's sinks: their variants, and the values of every claim."""

import dataclasses
import functools
from collections.abc import Callable

from memsinks_jax.figures.runs import Run, Variation, by_variant
from memsinks_jax.reporting.claims import Claim

SUFFIX = "_on_return"  # of a variant's name


def both(variants: dict[str, Variation]) -> dict[str, Variation]:
    """The variants, plus a copy of each with the paper's sinks that opens on return, named with SUFFIX."""
    ours = {
        name + SUFFIX: one._replace(choice=one.choice.replace("sinks_paper", "sinks"))
        for name, one in variants.items()
        if "sinks_paper" in one.choice
    }
    return variants | ours


def published(variant: str) -> str:
    """The variant with the paper's sinks and the same other settings."""
    return variant.removesuffix(SUFFIX)


def of_the_paper(runs: list[Run]) -> list[Run]:
    return [run for run in runs if not run.variant.endswith(SUFFIX)]


def beside(claims: Callable[[list[Run]], list[Claim]]) -> Callable[[list[Run]], list[Claim]]:
    """A figure's claims about the paper's sinks, each with the value for sinks that open on return."""

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
    """Labels of a table's rows, from `names` of the paper's variants. Variants without one keep their name."""
    return [
        names.get(published(name), published(name)) + ", open on return" * name.endswith(SUFFIX)
        for name in by_variant(runs)
    ]
