"""The grammar of the stories read backwards: every way in which it can write a text."""

import functools
import math

from memsinks_jax.data.embedded import stories


def derivations(text: str) -> list[float]:
    """The log-probability of every derivation of exactly ``text``, in nats; empty where there is
    none.
    """
    found = []
    branches = [(0, stories._START, {}, 0.0)]
    while branches:
        position, pending, memory, total = branches.pop()
        emitted, choice, pending = stories._advance(pending, memory)
        if not text.startswith(emitted, position):
            continue
        position += len(emitted)
        if choice is None:
            if position == len(text):
                found.append(total)
            continue
        for option in matching(choice, text, position):
            remembered = dict(memory)
            rest = choice.take(option, remembered, pending)
            branches.append((position, rest, remembered, total + choice.log_probability(option)))
    return found


def log_probability(text: str) -> float:
    """Log of the total probability that the grammar writes exactly ``text``, in nats; -inf if it
    cannot.
    """
    ways = derivations(text)
    if not ways:
        return -math.inf
    best = max(ways)
    return best + math.log(math.fsum(math.exp(way - best) for way in ways))


def matching(choice, text: str, position: int) -> list[int]:
    """The options of a choice that can be written at a position of a text."""
    if isinstance(choice, stories._Branch):
        heads = [body[0] if body and isinstance(body[0], str) else "" for body in choice.bodies]
        return [option for option, head in enumerate(heads) if text.startswith(head, position)]
    by_text, lengths = shown(choice.table, choice.slot.article, choice.slot.capital)
    options = (by_text.get(text[position : position + length]) for length in lengths)
    return [
        option
        for option in dict.fromkeys(options)
        if option is not None and option != choice.barred
    ]


@functools.cache
def shown(table, article: str, capital: bool):
    """``({what is shown: position in the table}, the lengths of what is shown)``."""
    by_text = {
        stories._show(word, article, capital): position for position, word in enumerate(table.words)
    }
    return by_text, sorted({len(text) for text in by_text})
