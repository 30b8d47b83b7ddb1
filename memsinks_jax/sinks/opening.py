"""When a document's sinks open: the rule, for NumPy as the rows are counted and for JAX in a step.

`data.opened` has whose opened, in a trained model.
"""

from memsinks_jax.config import SinksConfig


def numbered(seen, epoch):
    """The number of an encounter of a document that was met `seen` times before, in an `epoch` from
    0: 1 for the first. Every document has one encounter per epoch; that is not a return.
    """
    return seen - epoch + 1


def are_open(numbers, sinks: SinksConfig):
    """Whether encounters of these numbers have their document's sinks on -> bool, of their shape.

    At its first encounter a document trains only the shared neurons, as if it had no sinks. When it
    comes back, it writes to sinks that hold nothing else.
    """
    return numbers >= sinks.opens_at


def encounters(batch: dict):
    """Numbers each document's encounter, not counting one per epoch -> int32 (B, N), 1 for the
    first.
    """
    return numbered(batch["seen"], batch["epoch"][:, None])


def opened(batch: dict, sinks: SinksConfig):
    """Which documents of a batch have their sinks open -> bool (B, N); None if all have."""
    return None if sinks.opens_at == 1 else are_open(encounters(batch), sinks)
