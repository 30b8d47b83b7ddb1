"""Made-up results of post-hoc methods, for tests of the figures that show them."""

from memsinks_jax.studies.baselines.removal import Point
from memsinks_jax.studies.figures import post_hoc


def details(curves, before=(0.0, 0.0), found=None):
    """{method: [(forgetting, rise), ...]} or {method: {"repeated": [...], "canary": [...]}} ->
    details of a run.

    `before`: the model's loss on repeated and on held-out documents.
    """
    found = found or {"strength": 100.0, "iterations": 100}
    made = {}
    for method, of in curves.items():
        sets = of if isinstance(of, dict) else {"repeated": of}
        made[method] = {
            "asked": post_hoc._asked(method),
            "found": found if method == "hard_concrete" else {},
        }
        made[method] |= {
            name: [
                Point(
                    0.1 * number, forgets, rises, before[0] + forgets, before[1] + rises
                )._asdict()
                for number, (forgets, rises) in enumerate(points, start=1)
            ]
            for name, points in sets.items()
        }
    return made
