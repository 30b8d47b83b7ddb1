"""Tables of made-up documents for tests: any lengths, copies, near-duplicates, groups, sources."""

import numpy as np

from memsinks_jax.config import Config
from memsinks_jax.data.mixture import plan_mixture
from memsinks_jax.data.prepared import LONGEST
from memsinks_jax.data.table import Listed, Table


class Source(Listed):
    """With columns that only a prepared corpus has.

    Args:
      clusters: of the documents, by any number; copies are in the cluster of their first.
      groups: names, one a record.
      spans: answers of the documents.
    """

    def __init__(self, tokens, first_copies=None, clusters=None, groups=None, spans=None):
        super().__init__(tokens, first_copies)
        self.spans, self.has_answers = spans, spans is not None
        self.openings = spans and np.bincount([of[0, 0] for of in spans], minlength=LONGEST + 1)
        self.folder, self.manifest = "made up", {"settings": {"near_duplicates": "close"}}
        if clusters is not None:
            of_first_copies = np.asarray(clusters)[self.firsts]
            _, first, inverse = np.unique(of_first_copies, return_index=True, return_inverse=True)
            self.clusters = first[inverse]
            counts = np.bincount(self.clusters, minlength=len(tokens))
            cluster_members = np.flatnonzero(counts[self.clusters] > 1)
            members = np.stack([self.clusters[cluster_members], cluster_members], axis=1)
            self.members = members[np.lexsort(members.T[::-1])]
        if groups is not None:
            self.group_names = sorted(set(groups))
            self.groups = np.array([self.group_names.index(name) for name in groups])

    def answers(self, record):
        return self.spans and self.spans[record]

    def place(self, record):
        return f"made up:{record}"


def plan_of(config: Config, lengths, **columns):
    """The plan of a run on one source of documents of so many tokens, of which every one is
    another.
    """
    starts = np.cumsum([10, *lengths])
    tokens = [
        np.arange(n, dtype=np.int32) + start for n, start in zip(lengths, starts[:-1], strict=True)
    ]
    return plan_mixture(config, Table([Source(tokens, **columns)], config.data.ids)), tokens
