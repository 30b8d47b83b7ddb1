"""The order in which a run reads its documents, and how often it has read each before: functions of
(seed, epoch).

An epoch's encounters are numbered by *slots*: first the records that are read at their place in the
table, by their own number, then the repeats that the plan adds. Slots are assigned to *blocks* of
about `BLOCK`, once for all epochs: adjacent records in runs, so that a block is read in sequence,
and repeats one by one. Every epoch orders the blocks anew, and the slots of each. So the memory is
that of one block for any corpus, and a row is found without the rows before it.
"""

import functools
from typing import NamedTuple

import numpy as np

from memsinks_jax.config import Config, InputError
from memsinks_jax.data.ids import as_numbers
from memsinks_jax.data.mixture import Mixture
from memsinks_jax.data.order import Bijection, permutation
from memsinks_jax.data.prepared import NO_NUMBER
from memsinks_jax.data.table import is_in

BLOCK = 2**20  # slots


class Encounters(NamedTuple):
    """The encounters of a block, in the order of an epoch."""

    slots: np.ndarray  # int64 (n,)
    records: np.ndarray  # int64 (n,)
    sizes: np.ndarray  # int64 (n,), tokens with end of text


class Epochs:
    """Blocks and their order.

    Attributes:
      slots, tokens    int64 (blocks,), of each; tokens with end of text
    """

    def __init__(self, config: Config, mixture: Mixture):
        self._mixture, self._table = mixture, mixture.table
        self._seed, self._kind = config.seed, config.data.ids
        counts = mixture.epoch_counts if mixture.injected else mixture.epoch_counts[:0]
        self._ends, self._epoch_counts = np.cumsum(counts), counts
        repeats, sums = int(counts.sum()), mixture.sums
        self._repeats = Bijection(repeats, config.seed, "repeats") if repeats else None
        there = int(sums.slots.sum())
        blocks = max((there + repeats) // BLOCK, 1)
        order = permutation(len(sums.slots), config.seed, "blocks")
        before = np.cumsum(sums.slots[order]) - sums.slots[order]
        self._block_of_run = np.empty(len(order), np.int64)
        self._block_of_run[order] = np.minimum(before * blocks // max(there, 1), blocks - 1)
        self.slots, self.tokens = np.zeros((2, blocks), np.int64)
        np.add.at(self.slots, self._block_of_run, sums.slots)
        np.add.at(self.tokens, self._block_of_run, sums.tokens)
        for block in range(blocks if repeats else 0):
            number = self._repeats_of(block)
            self.slots[block] += len(number)
            self.tokens[block] += int((self._table.lengths[self._repeated_by(number)] + 1).sum())

    @property
    def blocks(self) -> int:
        return len(self.slots)

    def order(self, epoch: int) -> np.ndarray:
        """The order of the blocks in an epoch, int64 (blocks,)."""
        return permutation(self.blocks, self._seed, "block order", epoch)

    def encounters(self, epoch: int, block: int) -> Encounters:
        slots = self._slots_of(block)
        slots = slots[permutation(len(slots), self._seed, "order", epoch * self.blocks + block)]
        records = self.records(slots)
        return Encounters(slots, records, self._table.lengths[records] + 1)

    def records(self, slots: np.ndarray) -> np.ndarray:
        added = np.flatnonzero(slots >= len(self._table))
        records = slots.copy()
        records[added] = self._repeated_by(slots[added] - len(self._table))
        return records

    def sizes(self, block: int) -> np.ndarray:
        """The tokens of a block's records, end of text included, int64 (n,)."""
        return self._table.lengths[self.records(self._slots_of(block))] + 1

    def identities(self, epoch: int, encounters: Encounters) -> np.ndarray:
        """The ids of the encounters -> uint32 (n, 2)."""
        return self._table.identities(encounters.records)

    def often(self, documents: np.ndarray) -> list[int]:
        """How often an epoch has each document."""
        return self._mixture.encounters(documents)

    def seen(
        self, epoch: int, block: int, encounters: Encounters, reading: np.ndarray
    ) -> np.ndarray:
        """How often the id of each was seen before, over all epochs -> int32 (n,).

        Args:
          reading: int64 (n,), the order in which they are read.
        """
        seen = np.zeros(len(encounters.slots), np.int32)
        keys = as_numbers(self.identities(epoch, encounters))
        order = np.lexsort((reading, keys))
        opens = np.flatnonzero(np.diff(keys[order], prepend=~keys[order[:1]]))
        counts = np.diff(opens, append=len(order))
        first = order[opens]
        before = self.counts_before(epoch, block, keys[first], encounters.records[first])
        seen[order] = np.arange(len(order)) - np.repeat(opens - before, counts)
        return seen

    def returning(self) -> tuple[np.ndarray, np.ndarray]:
        """The ids that may come more than once an epoch -> (uint64 (n,), ascending; int64 (n,), a
        record of each).
        """
        table, mixture = self._table, self._mixture
        records = (
            np.concatenate([table.clustered(), mixture.repeated])
            if self._kind != "group"
            else table.of_groups()
        )
        keys, first = np.unique(as_numbers(table.identities(records)), return_index=True)
        named = keys != as_numbers(NO_NUMBER[None])  # documents without a group have no sinks
        return keys[named], records[first[named]]

    def counts_before(
        self, epoch: int, block: int, keys: np.ndarray, records: np.ndarray
    ) -> np.ndarray:
        """How often ids were seen before a block of an epoch -> int64 (n,).

        Args:
          keys: uint64 (n,), ascending, the ids; `records` (n,) has a record of each.
        """
        through = self._read_before(epoch, block)
        if self._kind == "group":
            counts = self._counts_in_groups(records, through)
        else:
            counts = self._counts_in_table(records, through, self._kind == "near_duplicate")
        if self._repeats:
            self._add(counts, keys, self._mixture.repeated, self._counts_of_repeats(through))
        return counts

    def documents_before(self, block: int, documents: np.ndarray) -> np.ndarray:
        """How often documents were read before a block of the first epoch, whatever their ids ->
        int64 (n,).

        Args:
          documents: int64 (n,), their first copies, ascending.
        """
        through = self._read_before(0, block)
        counts = self._counts_in_table(documents, through, by_cluster=False)
        if self._repeats:
            there = np.flatnonzero(is_in(self._mixture.repeated, documents))
            place = np.searchsorted(documents, self._mixture.repeated[there])
            counts[place] += self._counts_of_repeats(through)[there]
        return counts

    def _read_before(self, epoch: int, block: int) -> np.ndarray:
        """How often each block was read before a block of an epoch, int64 (blocks,)."""
        order = self.order(epoch)
        through = np.full(self.blocks, epoch)
        through[order[: np.flatnonzero(order == block)[0]]] += 1
        return through

    def _add(
        self, counts: np.ndarray, keys: np.ndarray, records: np.ndarray, often: np.ndarray
    ) -> None:
        """Adds to the counts of the ids `keys` how often each of some records was read."""
        of = as_numbers(self._table.identities(records))
        there = np.flatnonzero(is_in(of, keys))
        np.add.at(counts, np.searchsorted(keys, of[there]), often[there])

    def _counts_in_table(
        self, records: np.ndarray, through: np.ndarray, by_cluster: bool
    ) -> np.ndarray:
        """Their encounters in the table: a document and its copies, or its cluster."""
        table, counts = self._table, np.zeros(len(records), np.int64)
        first_copies = table.first_copies(records)
        alone = (table.copies(first_copies) == 1) & (not by_cluster)
        read = np.flatnonzero(alone)[self._mixture.reads(first_copies[alone])]
        counts[read] = through[self._block_of(first_copies[read])]
        others = np.flatnonzero(~alone)
        which, members = table.cluster_members(table.clusters(first_copies[others]))
        counted = self._mixture.reads(members) & (
            by_cluster | (table.first_copies(members) == first_copies[others[which]])
        )
        np.add.at(counts, others[which[counted]], through[self._block_of(members[counted])])
        return counts

    def _counts_in_groups(self, records: np.ndarray, through: np.ndarray) -> np.ndarray:
        return self._in_groups[self._table.groups[records]] @ through

    @functools.cached_property
    def _in_groups(self) -> np.ndarray:
        """Table slots of each group in each block, int32 (groups, blocks), in memory."""
        counts = np.zeros((len(self._table.group_ids), self.blocks), np.int32)
        for (start, stop, _), block in zip(
            self._table.runs.tolist(), self._block_of_run.tolist(), strict=True
        ):
            records = np.arange(start, stop)
            groups = self._table.groups[records[self._mixture.reads(records)]]
            counts[:, block] += np.bincount(groups, minlength=len(counts)).astype(np.int32)
        return counts

    def _counts_of_repeats(self, through: np.ndarray) -> np.ndarray:
        """How often the plan's repeats have shown each repeated document, int64 (repeated,)."""
        if self.blocks == 1:
            return self._epoch_counts * through[0]
        return self._repeats_in_blocks @ through

    @functools.cached_property
    def _repeats_in_blocks(self) -> np.ndarray:
        counts = np.zeros((len(self._epoch_counts), self.blocks), np.int32)
        for block in range(self.blocks):
            numbers = self._repeats_of(block)
            counts[:, block] = np.bincount(
                np.searchsorted(self._ends, numbers, side="right"), minlength=len(counts)
            )
        return counts

    def _block_of(self, slots: np.ndarray) -> np.ndarray:
        table = self._table
        added = np.flatnonzero(slots >= len(table))
        run = np.searchsorted(table.runs[:, 0], slots, side="right") - 1
        blocks = self._block_of_run[run]
        if len(added):
            place = self._repeats.place_of(slots[added] - len(table))
            blocks[added] = place * self.blocks // len(self._repeats)
        return blocks

    def _slots_of(self, block: int) -> np.ndarray:
        runs = self._table.runs[self._block_of_run == block]
        records = np.concatenate(
            [self._ends[:0], *(np.arange(start, stop) for start, stop, _ in runs.tolist())]
        )
        added = self._repeats_of(block) + len(self._table)
        return np.concatenate([records[self._mixture.reads(records)], added])

    def _repeats_of(self, block: int) -> np.ndarray:
        """Numbers of the repeats in a block."""
        if not self._repeats:
            return self._ends[:0]
        first, last = (-(-each * len(self._repeats) // self.blocks) for each in (block, block + 1))
        return np.sort(self._repeats.at(np.arange(first, last)))

    def _repeated_by(self, numbers: np.ndarray) -> np.ndarray:
        return self._mixture.repeated[np.searchsorted(self._ends, numbers, side="right")]


class Listed(Epochs):
    """The encounters that a schedule lists, all in one block; `slots` are places in its list.

    Raises:
      InputError: there are too many for one block.
    """

    def __init__(self, config: Config, mixture: Mixture):
        super().__init__(config, mixture)
        if self.blocks > 1:
            raise InputError(
                f"config.data.schedule lists what is read, and an epoch has {self.slots.sum():,} "
                f"documents, more than {2 * BLOCK:,}; train on fewer, or leave it out"
            )
        self._list = functools.cache(self._listed)
        sizes = self.sizes(0)
        self.slots, self.tokens = np.array([len(sizes)]), np.array([sizes.sum()])

    def _listed(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        usual = super().encounters(epoch, 0)
        return self._mixture.schedule.epoch(self._mixture, usual, epoch)

    def encounters(self, epoch: int, block: int) -> Encounters:
        records, _ = self._list(epoch)
        return Encounters(np.arange(len(records)), records, self._table.lengths[records] + 1)

    def identities(self, epoch: int, encounters: Encounters) -> np.ndarray:
        return self._list(epoch)[1]

    def sizes(self, block: int) -> np.ndarray:
        return self.encounters(0, block).sizes

    def often(self, documents: np.ndarray) -> list[int]:
        first_copies = self._table.first_copies(self._list(0)[0])
        found, counts = np.unique(first_copies, return_counts=True)
        read = dict(zip(found.tolist(), counts.tolist(), strict=True))
        return [read.get(first, 0) for first in self._table.first_copies(documents).tolist()]

    def counts_before(
        self, epoch: int, block: int, keys: np.ndarray, records: np.ndarray
    ) -> np.ndarray:
        counts = np.zeros(len(keys), np.int64)
        for before in range(epoch):
            found = as_numbers(self._list(before)[1])
            np.add.at(counts, np.searchsorted(keys, found[is_in(found, keys)]), 1)
        return counts

    def documents_before(self, block: int, documents: np.ndarray) -> np.ndarray:
        return np.zeros(len(documents), np.int64)


def epochs_of(config: Config, mixture: Mixture) -> Epochs:
    return (Listed if mixture.schedule.lists else Epochs)(config, mixture)
