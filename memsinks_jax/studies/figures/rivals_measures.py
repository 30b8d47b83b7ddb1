"""Measures for figure rivals: what a method's model still leaks, what scaling up does."""

import dataclasses

from memsinks_jax.measures.audit import audit
from memsinks_jax.measures.document_loss import DocumentLoss
from memsinks_jax.measures.memorization import Memorization
from memsinks_jax.models.trained import open_run
from memsinks_jax.runs import workdir as workdirs
from memsinks_jax.studies.attacks.attacks import attack_run
from memsinks_jax.studies.baselines import rescaling
from memsinks_jax.studies.figures.cached import cached
from memsinks_jax.studies.figures.rivals import GIVEN, LEAKS
from memsinks_jax.studies.figures.runs import Run


def rescaled(run: Run, name: str) -> Run:
    """A run under another name, with the losses that it has with its shared neurons scaled up."""

    def evaluate() -> dict[str, float]:
        model, corpus = open_run(run.workdir), workdirs.read_corpus(run.workdir)
        factor = rescaling.factors(model.config)["published"]
        params = rescaling.scaled(model.config, model.params, factor)
        measure = Memorization(corpus, DocumentLoss(model.config), model.opened)
        found = dict(measure.run(params))
        return {loss: found[loss] for loss in ("held_out_loss", "repeated_loss")}

    metrics = run.metrics | cached([run], "rescaled", {}, evaluate)
    return dataclasses.replace(run, variant=name, metrics=metrics, lines=[])


def leaks(run: Run, standard: Run, oracle: Run) -> dict[str, float]:
    """{measure: its value} for the exported model; without what it does not allow."""
    attacks, remembering = ("calibration", "relearning"), standard.workdir
    models = [run, standard, oracle]
    if run.variant == "standard":  # has lost nothing that could be relearned
        attacks, remembering, models = ("calibration",), None, [run, oracle]

    def ask() -> dict[str, float]:
        places = {"standard": remembering, "oracle": oracle.workdir}
        found = audit(run.workdir, **places, prefixes=(GIVEN,), samples=0)
        attacked = attack_run(run.workdir, **places, kinds=attacks)
        name = next(iter(found["subjects"]))
        measured = found["subjects"][name]["all"]
        leaks = {key: measured[key]["value"] for key in LEAKS.values() if key in measured}
        for when, of in (attacked["calibration"] or {name: {}})[name].items():
            leaks[f"gap_{when}"] = of["non_members"] - of["members"]
        if relearned := attacked["relearning"]:
            read, unread = (relearned[of]["few"]["ratio"] for of in ("members", "never_seen"))
            leaks |= {"relearned": read / unread} if read is not None and unread else {}
        return leaks

    return cached(models, "leaks", {"given": GIVEN, "attacks": attacks}, ask)
