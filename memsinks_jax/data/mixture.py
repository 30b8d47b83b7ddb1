"""How often each document is seen: roles as functions of the seed, fixed before any token is
read.
"""

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from memsinks_jax import plugin
from memsinks_jax.config import Config, DataConfig, GeneralConfig, InputError
from memsinks_jax.data import ids, prepared
from memsinks_jax.data.order import Bijection
from memsinks_jax.data.roles import Units, Window, chunks, draw_roles, take
from memsinks_jax.data.table import Table, is_in, truncated

# documents.jsonl lists up to this many documents; for larger corpora, the repeated and the held-out
# ones
LISTED = 2**17
NOTHING = (
    "the plan holds no training document; lower config.data.held_out_documents, or raise "
    "config.data.unique_documents, "
    "repetitions or general.token_budget"
)


class Sums(NamedTuple):
    """Sums over the records that an epoch reads at their place in the table, without the repeats
    that a plan adds.
    """

    slots: np.ndarray  # int64 (runs of the table,), records
    tokens: np.ndarray  # int64 (runs,), with end of text
    documents: np.ndarray  # int64 (sources,)
    longer: np.ndarray  # int64 (sources,), records that are longer than a row
    beyond: np.ndarray  # int64 (sources,), their tokens that do not fit one row


@dataclasses.dataclass(frozen=True, eq=False)
class Mixture:
    """Roles of the documents of a table (paper section 3.1). Documents are given by their first
    copies.

    A document of `data.files` is repeated, held out, left out (since others of its unit have
    another role), or unique; those of general sources are unique. Unique ones have no list: `reads`
    decides about any record.
    """

    table: Table
    data: DataConfig
    # seen as often as the schedule says, or as the files hold them
    repeated: np.ndarray
    held_out: np.ndarray  # never seen
    times: np.ndarray  # (repeated,): how often an epoch with every repeat kept would see each
    epoch_counts: np.ndarray  # (repeated,): how often an epoch sees each
    left_out: np.ndarray  # without a role
    # of each source, which of its other documents are unique; None: all
    windows: tuple[Window | None, ...]
    canaries: np.ndarray  # those of `repeated` that carry a canary
    schedule: plugin.Schedule

    @property
    def injected(self) -> bool:
        """Whether the plan repeats documents, not the files."""
        return self.data.repeated_documents >= 0

    @functools.cached_property
    def _not_unique(self) -> np.ndarray:
        listed = [
            self.held_out,
            self.left_out,
            self.repeated if self.injected else self.repeated[:0],
        ]
        return np.sort(np.concatenate(listed))

    @functools.cached_property
    def _sorted_repeated(self) -> np.ndarray:
        return np.sort(self.repeated)

    def is_repeated(self, first_copies: np.ndarray) -> np.ndarray:
        return is_in(first_copies, self._sorted_repeated)

    def reads(self, records: np.ndarray) -> np.ndarray:
        """Whether an epoch reads each record at its place in the table: bool (n,)."""
        first_copies = self.table.first_copies(records)
        source, read = self.table.source_of(first_copies), ~is_in(first_copies, self._not_unique)
        first_only = self.data.copies == "once"
        again = np.zeros(len(records), bool)
        if not self.injected:
            again = read & (source == 0) & (self.table.copies(first_copies) > 1)
        for number, window in enumerate(self.windows):
            if window:
                there = np.flatnonzero(read & ~again & (source == number))
                read[there] = window.holds(first_copies[there])
        if not self.injected and self.data.repeats_at_most >= 0:
            read &= ~again | ((records == first_copies) & (self.data.repeats_at_most == 1))
        return read & (records == first_copies) if first_only else read

    @functools.cached_property
    def sums(self) -> Sums:
        """Taken from the table's own sums if a whole source is unique; else by reading its
        records.
        """
        table, column, row_length = (
            self.table,
            int(self.data.copies == "once"),
            self.data.row_length,
        )
        slots, tokens = np.zeros((2, len(table.runs)), np.int64)
        by_source = np.zeros((3, len(table.sources)), np.int64)
        apart = np.unique(
            np.concatenate([self._records_of(self._not_unique), table.cross_source_copies])
        )
        is_read = self.reads(apart)
        elsewhere, apart = apart[is_read & (table.first_copies(apart) != apart)], apart[~is_read]
        if column:
            apart = apart[table.is_first_of_source(apart)]
        for number, source in enumerate(table.sources):
            runs = np.flatnonzero(table.runs[:, 2] == number)
            natural = number or self.injected or self.data.repeats_at_most < 0
            if self.windows[number] or not natural:
                for run in runs.tolist():
                    records = np.arange(*table.runs[run, :2])
                    records = records[self.reads(records)]
                    sizes = table.lengths[records] + 1
                    slots[run], tokens[run] = len(records), sizes.sum()
                    longer, beyond = truncated(sizes - 1, row_length)
                    by_source[:, number] += (
                        (table.first_copies(records) == records).sum(),
                        longer,
                        beyond,
                    )
                continue
            slots[runs], tokens[runs] = source.runs[:, column].T
            there = apart[table.source_of(apart) == number]
            sizes, run = (
                table.lengths[there] + 1,
                runs[0] + (there - table.bounds[number]) // prepared.RUN,
            )
            np.subtract.at(slots, run, 1)
            np.subtract.at(tokens, run, sizes)
            less = (table.is_first_of_source(there).sum(), *truncated(sizes - 1, row_length))
            by_source[:, number] = (
                table.documents(number),
                *table.truncated(number, row_length, bool(column)),
            )
            by_source[:, number] -= less
            by_source[0, number] -= (
                table.is_first_of_source(elsewhere) & (table.source_of(elsewhere) == number)
            ).sum()
        return Sums(slots, tokens, *by_source)

    def _records_of(self, first_copies: np.ndarray) -> np.ndarray:
        """All copies of some documents."""
        _, records = self.table.cluster_members(np.unique(self.table.clusters(first_copies)))
        return records[is_in(self.table.first_copies(records), np.sort(first_copies))]

    def encounters(self, first_copies: np.ndarray) -> list[int]:
        """How often the random order of an epoch has each document."""
        natural = (
            self.table.copies(first_copies)
            if self.data.copies == "keep"
            else np.ones_like(first_copies)
        )
        if not self.injected and self.data.repeats_at_most >= 0:
            natural = np.where(self.is_repeated(first_copies), self.data.repeats_at_most, natural)
        times = np.where(self.reads(first_copies), natural, 0)
        epoch_counts = (
            dict(zip(self.repeated.tolist(), self.epoch_counts.tolist(), strict=True))
            if self.injected
            else {}
        )
        found = zip(first_copies.tolist(), times.tolist(), strict=True)
        return [epoch_counts.get(first, often) for first, often in found]

    def documents(self, role: str) -> np.ndarray:
        """The documents of a role: repeated, held_out, or unique; of these the first LISTED in the
        table's order.
        """
        if role != "unique":
            return getattr(self, role)
        found, count = [self.repeated[:0]], 0
        for start, stop, _ in self.table.runs.tolist():
            records = np.arange(start, stop)
            records = records[(self.table.first_copies(records) == records) & self.reads(records)]
            found.append(records[~self.is_repeated(records)])
            count += len(found[-1])
            if count >= LISTED:
                break
        return np.concatenate(found)[:LISTED]


def plan_mixture(config: Config, table: Table) -> Mixture:
    """The plan of a run.

    Raises:
      InputError: fewer documents than the plan needs, or nothing to train on; a general source that
        is too small for its share or number, or nothing of the budget left for it.
    """
    data, schedule = config.data, plugin.schedule(config)
    repeated, held_out, left_out, window = draw_roles(data, table, config.seed)
    times = table.copies(repeated) if data.copies == "keep" else np.ones_like(repeated)
    if data.repeated_documents >= 0:
        times = times * schedule.times(data.repetitions, len(repeated))
    most = data.repeats_at_most
    epoch_counts = times * schedule.shuffles if most < 0 else np.minimum(times, most)
    carriers = config.canaries.documents if config.canaries.documents >= 0 else len(repeated)
    plan = Mixture(
        table,
        data,
        repeated,
        held_out,
        times,
        epoch_counts,
        left_out,
        (window,) + (None,) * (len(table.sources) - 1),
        canaries=repeated[:carriers],
        schedule=schedule,
    )
    if config.general.files:
        plan = _fill_up(plan, config)
    # what a schedule places is placed among others
    if not plan.sums.slots.sum() + epoch_counts.sum():
        raise InputError(NOTHING)
    return plan


def _fill_up(plan: Mixture, config: Config) -> Mixture:
    """Chooses documents of the general sources (paper appendix I: "then filled with SlimPajama").

    The documents of `data.files` come first, with all their repeats, whatever
    `data.repeats_at_most` is, so that variants also share the general documents. Sources with a
    number of documents are next. Shares fill the rest of `general.token_budget`. The seed draws
    which documents of a source are taken.
    """
    table, data, budget = plan.table, plan.data, config.general.token_budget
    asked = general_sources(config.general)

    def sizes(first_copies: np.ndarray) -> np.ndarray:
        """Lengths with end of text, truncated to a row if rows hold one document."""
        found = table.lengths[first_copies] + 1
        return np.minimum(found, data.row_length) if data.rows == "one_document" else found

    def tokens(first_copies: np.ndarray) -> np.ndarray:
        return sizes(first_copies) * (table.copies(first_copies) if data.copies == "keep" else 1)

    orders = [
        (units, Bijection(units.numbers, config.seed, "general corpus", number))
        for number, units in ((number, Units(table, number)) for number in range(1, len(asked) + 1))
    ]
    windows, spent = list(plan.windows), 0
    if budget:
        whole = dataclasses.replace(plan, data=dataclasses.replace(data, repeats_at_most=-1))
        own, often = whole.sums, plan.times if plan.schedule.shuffles else 1
        spent = int(
            own.tokens[table.runs[:, 2] == 0].sum()
            + (sizes(plan.repeated) * often).sum() * plan.injected
        )
        spent -= int(own.beyond[0]) * (data.rows == "one_document")
    for number, ((files, amount), (units, order)) in enumerate(zip(asked, orders, strict=True), 1):
        if isinstance(amount, int):
            taken = take(units, order, range(units.numbers), amount)
            if taken.count < amount:
                raise InputError(
                    f"{files} holds {taken.count} distinct documents, not {amount}; lower its "
                    "number"
                )
            windows[number] = Window(units, order, 0, taken.after)
            if budget:
                spent += sum(
                    int(tokens(first_copies).sum())
                    for first_copies in _documents(units, order, taken.after)
                )
    left = budget - spent
    if budget and left < 0:
        raise InputError(
            f"config.general.token_budget is {budget}, but what comes before the shares of "
            "general.files already "
            f"has {spent} tokens; raise it, or lower config.data.repetitions or repeated_documents"
        )
    for number, ((files, amount), (units, order)) in enumerate(zip(asked, orders, strict=True), 1):
        if budget and not isinstance(amount, int):
            after, found = _within(units, order, int(amount * left), tokens)
            if after == units.numbers and found < int(amount * left):
                raise InputError(
                    f"{files} holds {found} tokens, but its share of config.general.token_budget "
                    f"is {int(amount * left)}; "
                    "give more files, or lower the share or the budget"
                )
            windows[number] = Window(units, order, 0, after)
    return dataclasses.replace(plan, windows=tuple(windows))


def _documents(units: Units, order: Bijection, after: int) -> Iterator[np.ndarray]:
    for places in chunks(after):
        yield units.documents(order.at(places))[1]


def _within(units: Units, order: Bijection, budget: int, tokens: Callable) -> tuple[int, int]:
    """(place in the order up to which documents have at most a number of tokens in all; the tokens
    they have)
    """
    total = 0
    for places in chunks(units.numbers):
        which, first_copies = units.documents(order.at(places))
        through = total + np.cumsum(tokens(first_copies))
        fitting = int(np.searchsorted(through, budget, side="right"))
        if fitting < len(first_copies):
            return int(places[which[fitting]]), int(through[fitting - 1]) if fitting else total
        total = int(through[-1]) if len(through) else total
    return units.numbers, total


def general_sources(general: GeneralConfig) -> list[tuple[str, int | float]]:
    """`general.files` as [(glob, number of documents or share of the remaining budget, from 0 to
    1)].

    Raises:
      InputError: several globs without an amount for each, shares without a budget or above 100%.
    """
    found = []
    for entry in filter(None, (part.strip() for part in general.files.split(","))):
        amount = re.search(r"=(\d+)$|=(\d+(?:\.\d+)?)%$", entry)
        if amount is None:
            found.append((entry, None))
        else:
            files = entry[: amount.start()]
            found.append((files, int(amount[1]) if amount[1] else float(amount[2]) / 100))
    if len(found) > 1 and any(amount is None for _, amount in found):
        raise InputError(
            f"config.general.files={general.files}: several globs need an amount each; write "
            "GLOB=30% for a "
            "share of the token budget, or GLOB=500 for 500 documents"
        )
    shares = [amount for _, amount in found if isinstance(amount, float)]
    if sum(shares) > 1 + 1e-9 or (shares and not general.token_budget):
        raise InputError(
            f"config.general.files={general.files}: shares are of what is left of "
            "config.general.token_budget "
            f"({general.token_budget}), and 100% in all at most; set the budget or lower the shares"
        )
    return [(files, 1.0 if amount is None else amount) for files, amount in found]


def listing(
    table: Table, documents: np.ndarray, encounters: list[int], role: str, origins: bool
) -> Iterator[str]:
    """Lines of documents.jsonl, one per document: its properties, and how often an epoch has it.

    Args:
      encounters: of each, see `Corpus.encounters`.
      origins: read each from its shard.
    """
    identities = table.identities(documents)
    for number, record in enumerate(documents.tolist()):
        line = {
            "index": record,
            "id": ids.to_hex(identities[number]),
            "role": role,
            "encounters": encounters[number],
            "tokens": int(table.lengths[record]),
            "source": table.place(record),
            **table.origin(record, origins),
        }
        yield json.dumps(line) + "\n"
