"""Draws which documents are held out, repeated or read once, for units that share one role: single
documents, clusters of near-duplicates, groups.
"""

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from memsinks_jax.config import DataConfig, InputError
from memsinks_jax.data.order import Bijection
from memsinks_jax.data.table import Table

_SCANNED = 2**20  # records read at a time in a pass over all
_WALKED = 2**16  # units read at a time


def units_of(table: Table, source: int, by: str, kind: str) -> "Units":
    """The kind of units. `by` is a value of config.data.held_out_by, `kind` one of
    config.data.ids.
    """
    if by == "cluster":
        return Groups(table, source) if kind == "group" else Clusters(table, source)
    return Units(table, source)


class Units:
    """Single documents of a source: a unit has the number of its record there. Numbers of other
    records are not units.
    """

    def __init__(self, table: Table, source: int):
        self._table, self._start, self._stop = table, *table.bounds[source : source + 2].tolist()
        self.numbers = self._stop - self._start  # units are numbered from 0 to this

    def of(self, first_copies: np.ndarray) -> np.ndarray:
        """The unit of each document, int64 (n,)."""
        return first_copies - self._start

    def documents(self, units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(place in `units`, first copy) of all their documents, ordered by place."""
        records = units + self._start
        which = np.flatnonzero(self._table.first_copies(records) == records)
        return which, records[which]

    def sizes(self, units: np.ndarray) -> np.ndarray:
        """Documents of each, int64 (n,)."""
        return np.bincount(self.documents(units)[0], minlength=len(units))


class Clusters(Units):
    """Near-duplicates: a unit has the number of the first record of the cluster. They share one
    role, so that nothing like a held-out document is read.
    """

    def of(self, first_copies: np.ndarray) -> np.ndarray:
        return self._table.clusters(first_copies) - self._start

    def documents(self, units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        first_copies = units + self._start
        there = np.flatnonzero(self._table.clusters(first_copies) == first_copies)
        which, records = self._table.cluster_members(first_copies[there])
        selected = self._table.first_copies(records) == records
        return there[which[selected]], records[selected]


class Groups(Units):
    """Groups, joined if near-duplicates connect them. The groups are in memory, their documents are
    not.
    """

    def __init__(self, table: Table, source: int):
        super().__init__(table, source)
        from scipy.sparse import coo_array  # takes a quarter of a second, and only groups need it
        from scipy.sparse.csgraph import connected_components

        members = np.asarray(table.sources[source].members).astype(np.int64) + self._start
        one, other = (table.groups[table.first_copies(members[:, side])] for side in (0, 1))
        groups = len(table.group_ids)
        edges = coo_array((np.ones(len(one)), (one, other)), shape=(groups, groups))
        self.numbers, self._unit_of_group = connected_components(edges, directed=False)

    def of(self, first_copies: np.ndarray) -> np.ndarray:
        return self._unit_of_group[self._table.groups[first_copies]]

    def documents(self, units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        place = np.full(self.numbers, -1)
        place[units] = np.arange(len(units))
        found = [(place[:0], place[:0])]
        for records in self._first_copies():
            which = place[self.of(records)]
            found.append((which[which >= 0], records[which >= 0]))
        which, records = (np.concatenate(each) for each in zip(*found, strict=True))
        order = np.argsort(which, kind="stable")
        return which[order], records[order]

    def sizes(self, units: np.ndarray) -> np.ndarray:
        return self._all_sizes[units]

    @functools.cached_property
    def _all_sizes(self) -> np.ndarray:
        sizes = np.zeros(self.numbers, np.int64)
        for records in self._first_copies():
            sizes += np.bincount(self.of(records), minlength=self.numbers)
        return sizes

    def _first_copies(self):
        for start in range(self._start, self._stop, _SCANNED):
            records = np.arange(start, min(start + _SCANNED, self._stop))
            yield records[self._table.first_copies(records) == records]


class Window(NamedTuple):
    """The documents of the units at places `low` to `high` - 1 of a random order."""

    units: Units
    order: Bijection
    low: int
    high: int

    def holds(self, first_copies: np.ndarray) -> np.ndarray:
        places = self.order.place_of(self.units.of(first_copies))
        return (self.low <= places) & (places < self.high)


class Roles(NamedTuple):
    """The roles of the documents of `data.files`; see Mixture."""

    repeated: np.ndarray
    held_out: np.ndarray
    left_out: np.ndarray
    window: Window | None


class Taken(NamedTuple):
    documents: np.ndarray  # if they are `listed`
    rest: np.ndarray  # surplus documents of the last unit
    after: int  # the place after it
    count: int


def take(
    units: Units,
    order: Bijection,
    places: range,
    count: int,
    listed: bool = False,
    wanted: Callable | None = None,
) -> Taken:
    """The first `count` `wanted` documents of the units at some places of an order."""
    found, total = [np.zeros(0, np.int64)], 0
    while places and total < count:
        here = places[: min(max(2 * (count - total), 16), _WALKED)]
        places = places[len(here) :]
        which, first_copies = units.documents(order.at(np.array(here)))
        if wanted is not None:
            selected = wanted(first_copies)
            which, first_copies = which[selected], first_copies[selected]
        if total + len(first_copies) >= count:
            last = int(which[count - total - 1])
            rest = first_copies[count - total :][which[count - total :] == last]
            return Taken(
                np.concatenate([*found, first_copies[: count - total]]),
                rest,
                here[last] + here.step,
                count,
            )
        total += len(first_copies)
        if listed:
            found.append(first_copies)
    return Taken(np.concatenate(found), found[0][:0], places.start, total)


def draw_roles(data: DataConfig, table: Table, seed: int) -> Roles:
    """Draws the roles. They depend neither on `data.repeats_at_most` nor on copies, so variants
    share them.

    Raises:
      InputError: fewer documents than the plan needs.
    """
    units = units_of(table, 0, data.held_out_by, data.ids)
    order = Bijection(units.numbers, seed, "roles")
    places, none = range(units.numbers), np.zeros(0, np.int64)
    window, unique = None, 0
    if data.unique_documents < 0 or data.repeated_documents < 0:  # all that are not held out
        held_out = take(units, order, places[::-1], data.held_out_documents, listed=True)
        left = [held_out.rest]
        places = range(held_out.after + 1)
        repeated = Taken(none, none, 0, 0)
        if data.repeated_documents >= 0:
            repeated = take(units, order, places, data.repeated_documents, listed=True)
            left.append(repeated.rest)
        if data.unique_documents >= 0:
            chosen = take(
                units,
                order,
                places,
                data.unique_documents,
                wanted=lambda first_copies: table.copies(first_copies) == 1,
            )
            left.append(chosen.rest)
            window, unique = Window(units, order, 0, chosen.after), chosen.count
    else:
        repeated = take(units, order, places, data.repeated_documents, listed=True)
        chosen = take(units, order, places[repeated.after :], data.unique_documents)
        held_out = take(units, order, places[chosen.after :], data.held_out_documents, listed=True)
        window, unique = Window(units, order, repeated.after, chosen.after), chosen.count
        left = [repeated.rest, chosen.rest, held_out.rest]
    wanted = (
        max(data.unique_documents, 0) + max(data.repeated_documents, 0) + data.held_out_documents
    )
    if repeated.count + unique + held_out.count < wanted:
        raise _too_few_documents(data, table, units, wanted)
    listed = repeated.documents
    if data.repeated_documents < 0:
        listed = _copied(table)
        listed = listed[~np.isin(listed, np.concatenate([held_out.documents, *left]))]
        listed = listed[np.argsort(order.place_of(units.of(listed)), kind="stable")]
    return Roles(listed, held_out.documents, np.concatenate(left), window)


def _copied(table: Table) -> np.ndarray:
    """Documents of the first source that the files hold more than once."""
    members = np.asarray(table.sources[0].members[:, 1]).astype(np.int64)
    first_copies = np.unique(
        table.first_copies(np.concatenate([members, table.cross_source_copies]))
    )
    return first_copies[(first_copies < table.bounds[1]) & (table.copies(first_copies) > 1)]


def _too_few_documents(data: DataConfig, table: Table, units: Units, wanted: int) -> InputError:
    documents, clusters, advice = table.documents(0), "", ""
    count = sum(len(np.unique(units.documents(there)[0])) for there in chunks(units.numbers))
    if count < documents:
        clusters = f" in {count} clusters, each of one role"
        advice = ", or config.data.held_out_by=document, which may hold out near-duplicates"
    return InputError(
        f"{documents} distinct documents{clusters}, but the plan needs {wanted} "
        f"({max(data.unique_documents, 0)} unique + "
        f"{max(data.repeated_documents, 0)} repeated + {data.held_out_documents} held out); lower "
        "config.data.unique_documents (-1: all that are left), repeated_documents or "
        "held_out_documents"
        f"{advice}"
    )


def chunks(count: int) -> Iterator[np.ndarray]:
    for start in range(0, count, _WALKED):
        yield np.arange(start, min(start + _WALKED, count))
