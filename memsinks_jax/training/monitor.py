"""Finds documents that appear too often during training, and measures how much of them the model
memorized.

A count-min sketch in the train state counts every document of every batch, on the devices, over all
hosts. It is saved, restored and summed like the rest of the state. Its memory does not grow with
the corpus. Its counts are never too low. They are too high by about (encounters so far / counters),
so raise `config.monitor.counters` for large corpora.

B rows of a batch, N documents of a row, R rows of the sketch, W counters in each. Each part of a
document that packing has split counts as one encounter.
"""

import json
import pathlib
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np

from memsinks_jax.config import Config
from memsinks_jax.data import ids
from memsinks_jax.data.corpus import Corpus
from memsinks_jax.data.ids import as_numbers
from memsinks_jax.data.order import mix32
from memsinks_jax.data.packing import Rows
from memsinks_jax.sinks.kinds import has_sinks
from memsinks_jax.training import hosts
from memsinks_jax.training.metrics import drop_later_lines, read_lines

PROBES = 16  # flagged documents whose loss is measured: a fraction of an evaluation
_ROWS = 4  # R: an estimate is far too high only if all four counters of a document are shared


def init_sketch(config: Config) -> jax.Array | None:
    """An empty sketch, uint32 (R, W); None with the monitor off."""
    return jnp.zeros((_ROWS, config.monitor.counters), jnp.uint32) if config.monitor.every else None


def count(sketch_RW: jax.Array, identities_BN2: jax.Array) -> jax.Array:
    """The sketch after a batch. Ids of 0, without a document, are not counted."""
    identities_K2 = identities_BN2.reshape(-1, 2)
    seen_K = (identities_K2 > 0).any(axis=-1).astype(jnp.uint32)
    for row in range(_ROWS):
        sketch_RW = sketch_RW.at[row, _places(identities_K2, row, sketch_RW.shape[1])].add(seen_K)
    return sketch_RW


def estimates(sketch_RW: np.ndarray, identities_K2: np.ndarray) -> np.ndarray:
    """An upper bound of how often each id was seen -> int64 (K,)."""
    width = sketch_RW.shape[1]
    counters = [sketch_RW[row, _places(identities_K2, row, width)] for row in range(_ROWS)]
    return np.min(counters, axis=0).astype(np.int64)


def _places(identities_K2, row: int, width: int):
    """A hash of both lanes, different in every row -> uint32 (K,) below W; for arrays of jax and of
    numpy.
    """
    mixed_K = mix32(identities_K2[:, 0] + np.uint32(0x9E3779B9 * (row + 1) % 2**32))
    return mix32(mixed_K ^ identities_K2[:, 1]) % np.uint32(width)


class Monitor:
    """Flags documents that appear too often. Make it on every host; `check` is a collective call.

    WORKDIR/flagged.jsonl gets a line for each: the step of the check, the document's id, how often
    it was seen, and its index in the table of documents (null for an id without a document, which a
    schedule may draw).

    Args:
      own: this host's rows of a batch, see `sharding.own_rows`.
      start: step from which the run resumes. Later flags are dropped, and will be found again.
      since: step of the last check, possibly with another `config.monitor.every`.
      as_batches: numbers of documents -> batches for the `measure` of `check`.
    """

    def __init__(
        self,
        config: Config,
        corpus: Corpus,
        rows: Rows,
        own: Iterable[int],
        workdir: pathlib.Path,
        start: int,
        since: int,
        as_batches: Callable[..., list[dict]],
    ):
        self._settings, self._corpus, self._as_batches = config.monitor, corpus, as_batches
        self._path, self._leads = workdir / "flagged.jsonl", jax.process_index() == 0
        self._modes = {"drop": "", "own": "_own"} if has_sinks(config) else {"drop": ""}
        self._flagged = {
            line["id"]: line for line in read_lines(self._path) if line["step"] <= start
        }
        if self._leads:
            drop_later_lines(self._path, start)
        # Observe again what was read since the last check, so that a resumed run finds the same as
        # an uninterrupted one.
        size = config.training.batch_size
        self._window: set[int] = set()
        for step in range(since, start):
            for place in own:
                self.observe(rows[step * size + place]["identities"])

    def observe(self, identities_BN2: np.ndarray) -> None:
        """Records this host's rows of a batch. Hosts may share rows: only which documents came
        matters, not how often.
        """
        self._window.update(as_numbers(identities_BN2.reshape(-1, 2)).tolist())

    def check(
        self, step: int, sketch_RW: np.ndarray, measure: Callable[[list[dict], str], float]
    ) -> dict[str, float]:
        """Flags documents that were seen too often since the last check, and measures the first
        PROBES flagged ones.

        Args:
          measure: (batches, mode of the sinks) -> nats per token of the current model.
        Returns:
          {"monitor_flagged": documents so far, "monitor_loss": their loss with the sinks dropped,
          "monitor_loss_own": with their own, if the model has sinks}; without losses while no
          document is flagged.
        """
        numbers = hosts.union(np.array(sorted(self._window - {0}), np.uint64))
        self._window = set()
        identities = np.stack(
            [numbers >> np.uint64(32), numbers & np.uint64(2**32 - 1)], axis=1
        ).astype(np.uint32)
        seen = estimates(sketch_RW, identities)
        often = np.flatnonzero(seen > self._settings.seen_over)
        new = [
            place for place in often.tolist() if ids.to_hex(identities[place]) not in self._flagged
        ]
        which, documents = self._corpus.table.documents_of(identities[new])
        # the first occurrence of each
        index = dict(zip(which[::-1].tolist(), documents[::-1].tolist(), strict=True))
        for number, place in enumerate(new):
            name = ids.to_hex(identities[place])
            self._flag(
                {"step": step, "id": name, "seen": int(seen[place]), "index": index.get(number)}
            )
        probes = [line["index"] for line in self._flagged.values() if line["index"] is not None]
        found = {"monitor_flagged": len(self._flagged)}
        probes = self._corpus.answering(np.array(probes, np.int64))[:PROBES]
        if len(probes):
            batches = self._as_batches(probes)
            found |= {
                f"monitor_loss{suffix}": measure(batches, mode)
                for mode, suffix in self._modes.items()
            }
        return found

    def _flag(self, line: dict) -> None:
        self._flagged[line["id"]] = line
        if self._leads:
            with self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")
