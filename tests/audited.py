"""Made-up results of an audit, and a check of their form against real ones."""

import random

from memsinks_jax.measures.audit import ALL, OFTEN
from memsinks_jax.studies.figures import audit

RUNGS = (1, 8, 64)
SUBJECTS = (audit.DROPPED, "sinks, own on", "sinks, all on", audit.STANDARD, audit.ORACLE)
STEPS = {audit.DROPPED: {"value": 2.0, "ci95": None}, audit.ORACLE: {"value": 4.0, "ci95": None}}


def measured(value, reach=0.1):
    return {"value": value, "ci95": [value - reach, value + reach]}


def audited(aucs, gap=0.2, exposures=None):
    """What `audit.audit` gives: an AUC for every subject, exposures (one a rung) of the standard
    model.
    """
    subjects = {}
    for subject, auc in zip(SUBJECTS, aucs, strict=True):
        values = {"auc_loss": auc, "auc_zlib": auc, f"exact_{audit._GIVEN}": auc - 0.5}
        values |= {"extraction_strength": 0.1, "length_auc": 0.5, "loss_gap": gap, "exposure": 2.0}
        found = {name: measured(value) for name, value in values.items()}
        subjects[subject] = {ALL: found, OFTEN: found}
        for rung, exposure in zip(RUNGS, exposures or (1.0, 1.0, 1.0), strict=True):
            subjects[subject][str(rung)] = found | {"exposure": measured(exposure)}
    return {"subjects": subjects, "encounters": {str(rung): 1 for rung in RUNGS}}


def attacked():
    """What `attacks.attack` gives."""
    kinds = {"steps": STEPS, "ratio": 0.5, "ratio_from_equal": 0.6, "documents": 3}
    of = {kind: kinds for kind in ("one", "few", "other")}
    unread = {kind: kinds | {"ratio": 0.8} for kind in of}
    fall = {"members": measured(-0.3), "non_members": measured(-0.1)}
    losses = {"float": (1.0, 2.0), "int8": (1.1, 2.1), "int4": (0.8, 2.1)}
    bits = {name: {"members": one, "non_members": two} for name, (one, two) in losses.items()}
    ways = ("dropped", "own", "all", "random", "best", "optimised")
    back = {name: {"loss": 1.0, "recovered": 0.25} for name in ways}
    models = (audit.DROPPED, audit.STANDARD, audit.ORACLE)
    return {
        "relearning": {"members": of, "never_seen": unread},
        "benign": {audit.DROPPED: fall, audit.ORACLE: {name: measured(-0.1) for name in fall}},
        "quantization": dict.fromkeys(models, bits),
        "reactivation": back,
        "residue": {
            name: {"gap": 0.2, "components": {"mlp 0": 0.1, "mlp 1": None}} for name in models
        },
    }


HOSTILE = (
    "</script><script>hacked = 1</script><img src=x onerror='hacked = 2'> <b>bold</b> ${hacked = "
    "3} $title"
)
VIEWS = ["sinks, own on", "sinks dropped", "its own removed", "standard", "oracle"]
GROUPS = {"repeated": 128, "read once": 1, "held out": 0}


def made_up(documents=6, tokens=12, steps=2, hostile=True):
    """What an audit finds, as large as it gets: every number is another one."""
    rng, texts = random.Random(0), [HOSTILE, *(f" word{n}" for n in range(2000))]
    found = []
    for number in range(documents):
        group = list(GROUPS)[number % 3]
        words = [rng.randrange(1, len(texts)) for _ in range(tokens)]
        if number == 0 and hostile:
            words[1] = 0
        read, over = {}, {}
        for place, view in enumerate(VIEWS):
            known = 50 if group == "repeated" and place in (0, 3) else 3000
            nats = [rng.randrange(1, 2 * known) for _ in words]
            read[view] = {
                "nats": nats,
                "rank": [n // 3 for n in nats],
                "guess": rng.sample(range(len(texts)), tokens),
            }
        for view in VIEWS[:2]:
            over[view] = [
                [n + 500 * (steps - 1 - step) for n in read[view]["nats"]] for step in range(steps)
            ]
        own = [] if group == "held out" else sorted(rng.sample(range(154), 40))
        found.append(
            {
                "group": group,
                "id": f"{number:016x}",
                "times": GROUPS[group],
                "length": tokens,
                "opening": 0,
                "tokens": words,
                "loss": {view: sum(of["nats"]) / tokens / 1000 for view, of in read.items()},
                "read": read,
                "written": {view: {4: words[4:10]} for view in (*VIEWS[:2], *VIEWS[3:])},
                "over": over,
                "loss_over": {
                    view: [sum(nats) / tokens / 1000 for nats in of] for view, of in over.items()
                },
                "own": own,
                "carried": own
                and [[rng.gauss(0.1, 0.1) for _ in range(40)] for _ in range(4)]
                or None,
            }
        )
    return {
        "workdir": "runs/made-up",
        "step": 820,
        "views": VIEWS,
        "groups": list(GROUPS),
        "prefixes": [4],
        "suffix": 6,
        "texts": texts,
        "sinks": 154,
        "layers": 4,
        "opens_at": 2,
        "steps": [100 * (step + 1) for step in range(steps)],
        "step_views": VIEWS[:2],
        "curves": {"held_out_loss": [[step, 6 - step / 200] for step in range(0, 800, 10)]},
        "documents": found,
    }


# Dictionaries whose keys are names of models, groups or numbers of reads, by the path that leads to
# them.
NAMED = {"subjects", "subjects *", "encounters", "steps", "benign", "quantization", "residue"}
NAMED |= {"components", "loss", "read", "written", "written *", "over", "loss_over", "own"}
NAMED |= {"carried"}


def paths(value, at=""):
    """Every way to a value: "subjects * * auc_loss ci95". The tests of a page or a figure make
    results up; so that keys of the code that measures are theirs, test_audit.py compares both.
    """
    found = set()
    for key, inner in value.items() if isinstance(value, dict) else ():
        named = at.split(" ")[-1] in NAMED or at in NAMED
        here = f"{at} {'*' if named else key}".strip()
        found |= {here} | paths(inner, here)
    if isinstance(value, list):
        found |= set().union(*(paths(inner, at) for inner in value))
    return found
