"""Is it only the output that hides it? Trains a bias of the logits, nothing else, and measures
again.

A model that knows a text but avoids its words returns it then. The recipe is that of SGTM's authors
(arXiv 2512.05648), who calibrate every model before they compare: the loss of members plus RETAINED
times that of non-members, AdamW, a rate that falls along a cosine to a tenth. Half of the documents
are practised, the others measured.

R rows, B rows of a step, S steps, T positions, D channels, V tokens of the vocabulary.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from memsinks_jax.measures.document_loss import applied, nats_of
from memsinks_jax.measures.documents import Documents
from memsinks_jax.measures.rows import rows_of
from memsinks_jax.measures.subjects import Subject
from memsinks_jax.model import placement

STEPS, RATE, SPREAD, RETAINED = 200, 1e-2, 0.1, 100.0
BATCH = 8  # documents of each kind per step
MOST = 2**17  # positions of the documents of each kind: their hidden states are kept


def calibrate(subject: Subject, members: Documents, non_members: Documents) -> dict:
    """{"before", "after": {"members", "non_members"}}: nats per token of the measured documents,
    without and with the bias.

    Needs two documents of each kind.
    """
    config, params = subject.run.config, subject.run.params
    apply = applied(config, subject.mode)
    states = placement.jit(
        lambda params, rows: apply(params, rows, lambda x_RTD, head_DV: (x_RTD, head_DV))
    )

    def loss(bias_V: jax.Array, head_DV: jax.Array, x_RTD: jax.Array, rows: dict) -> jax.Array:
        # The bias is one row more of the head, and every state has a 1 for it.
        x_RTD = jnp.concatenate([x_RTD, jnp.ones_like(x_RTD[..., :1])], axis=-1)
        head_DV = jnp.concatenate([head_DV, bias_V[None].astype(head_DV.dtype)])
        nats_RT = nats_of(x_RTD, head_DV, rows, config.compute.loss_chunks)
        return nats_RT.sum() / rows["weights"].sum()

    optimizer = optax.adamw(optax.cosine_decay_schedule(RATE, STEPS, alpha=0.1))

    @placement.jit
    def trained(bias_V: jax.Array, head_DV: jax.Array, orders_SB: tuple, practised: tuple):
        def objective(bias_V: jax.Array, chosen_B: tuple) -> jax.Array:
            chosen = zip(practised, chosen_B, strict=True)
            some = [jax.tree.map(lambda x, at_B=at_B: x[at_B], of) for of, at_B in chosen]
            members, non_members = (loss(bias_V, head_DV, *of) for of in some)
            return members + RETAINED * non_members

        def step(state: tuple, chosen_B: tuple) -> tuple[tuple, None]:
            bias_V, moments = state
            update, moments = optimizer.update(
                jax.grad(objective)(bias_V, chosen_B), moments, bias_V
            )
            return (optax.apply_updates(bias_V, update), moments), None

        return jax.lax.scan(step, (bias_V, optimizer.init(bias_V)), orders_SB)[0][0]

    practised, tested, most = [], {}, max(MOST // config.data.row_length, 2)
    for name, documents in (("members", members), ("non_members", non_members)):
        rows = {key: values[:most] for key, values in rows_of(documents, subject.run).items()}
        halves = [{key: values[half::2] for key, values in rows.items()} for half in range(2)]
        (practised_RTD, head_DV), (tested_RTD, _) = (states(params, half) for half in halves)
        practised.append((practised_RTD, halves[0]))
        tested[name] = tested_RTD, halves[1]
    counts = [len(x_RTD) for x_RTD, _ in practised]
    orders_SB = tuple(np.resize(np.arange(count), (STEPS, min(BATCH, count))) for count in counts)
    drawn_V = SPREAD * jax.random.normal(jax.random.key(config.seed), head_DV.shape[1:])
    after_V = trained(drawn_V, head_DV, orders_SB, tuple(practised))
    biases = {"before": jnp.zeros_like(drawn_V), "after": after_V}
    measured = placement.jit(loss)
    return {
        when: {name: float(measured(bias_V, head_DV, *of)) for name, of in tested.items()}
        for when, bias_V in biases.items()
    }
