"""The tokenized documents of a run: from the config to the table of documents and their roles."""

import dataclasses
import functools
import hashlib
import json
import pathlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import tqdm

from memsinks_jax.config import Config, ContextsConfig, InputError, with_fields
from memsinks_jax.data import contexts, nearest
from memsinks_jax.data.canaries import with_canary
from memsinks_jax.data.contexts import Contexts, Counts, Text
from memsinks_jax.data.documents import Document, in_words, read_documents, skip_empty
from memsinks_jax.data.embedded import stories
from memsinks_jax.data.epochs import epochs_of
from memsinks_jax.data.mixture import NOTHING, Mixture, general_sources, plan_mixture
from memsinks_jax.data.nearest import Nearest
from memsinks_jax.data.packing import Rows, answering, reads_whole
from memsinks_jax.data.prepared import Prepared, is_prepared
from memsinks_jax.data.roles import draw_roles
from memsinks_jax.data.table import Listed, Table, is_in
from memsinks_jax.data.tokenizer import AnyTokenizer, open_tokenizer, train_tokenizer

# If rows of one document would truncate a larger share of a user's tokens, choose rows that read
# all.
_TRUNCATED_AT_MOST = 0.01
_MOST_STORIES = 10**7  # embedded ones, a kilobyte each


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Documents of a run with their tokens, ids and roles. A document is identified by its number
    in the table.
    """

    config: Config  # the config, with `data.rows` resolved
    mixture: Mixture
    tokenizer: AnyTokenizer
    contexts: Contexts | None = None  # those that have sinks; None: the config has none by context

    @property
    def table(self) -> Table:
        return self.mixture.table

    @property
    def groups(self) -> list[str]:
        """Names of the groups by their numbers, if they have sinks by number."""
        return self.table.group_names if self.config.sinks.by_group else []

    @property
    def lengths(self) -> np.ndarray:
        """`[i]`: number of tokens of documents, without end of text."""
        return self.table.lengths

    def nearest(self, before: Nearest | None = None) -> Nearest:
        """What finds the group of a text, from at most `nearest.DOCUMENTS` documents of each that
        the run trains on.

        Args:
          before: of the model that the run starts from, which knows the first groups already.
        """
        words = [
            before.of(number) if before else np.zeros(0, np.uint64)
            for number in range(len(self.groups))
        ]
        taken, held_out = (
            np.zeros(len(words) + 1, np.int64),
            np.sort(self.mixture.documents("held_out")),
        )
        for start, stop, _ in self.table.runs.tolist():
            records = np.setdiff1d(np.arange(start, stop), held_out, assume_unique=True)
            first_copies, groups = self.table.first_copies(records), self.table.groups[records]
            # A second copy in another group counts too: to find the first one there would read all
            # copies of a document.
            selected = (first_copies == records) | (self.table.groups[first_copies] != groups)
            records, groups = records[selected], groups[selected]
            order = np.argsort(groups, kind="stable")
            rank = np.arange(len(order)) - np.searchsorted(groups[order], groups[order])
            order = order[rank < nearest.DOCUMENTS - taken[groups[order]]]
            found, counts = np.unique(groups[order], return_counts=True)
            taken[found] += counts
            for group, of_group in zip(
                found.tolist(), np.split(records[order], np.cumsum(counts)[:-1]), strict=True
            ):
                if group < len(words):  # the last number stands for none
                    of_documents = [
                        nearest.words_of(self.tokens(record), self.tokenizer.special)
                        for record in of_group
                    ]
                    words[group] = np.unique(np.concatenate([words[group], *of_documents]))
        return nearest.of_groups(words)

    def rows(self) -> Rows:
        """The rows of a run on these documents."""
        tokenizer = self.tokenizer
        return Rows(
            self.config, self.mixture, tokenizer.end_of_text, tokenizer.begin_of_text, self.contexts
        )

    def encounters(self, documents: np.ndarray) -> list[int]:
        """How often an epoch has each; if the run ends within its first epoch, how often it reads
        each.
        """
        listed = self.config.training.steps or self.mixture.schedule.lists
        return (self._rows if listed else self.mixture).encounters(documents)

    @functools.cached_property
    def _rows(self) -> Rows:
        return self.rows()

    def tokens(self, document: int) -> np.ndarray:
        """-> int32 (tokens,), without end of text."""
        return self.table.tokens(document)

    def texts(self, documents: Iterable[int]) -> Iterator[tuple[np.ndarray, int]]:
        """-> of each the tokens, without end of text, and the token that opens it."""
        for document in documents:
            around = self.table.around(document)
            yield self.tokens(document), around[0] if around else self.tokenizer.begin_of_text

    def read_besides(self, apart: np.ndarray) -> Iterator[int]:
        """The documents that the run reads, but those of `apart`, ascending; in a pass over the
        whole table.
        """
        plan = self.mixture
        for start, stop, _ in tqdm.tqdm(
            self.table.runs.tolist(), desc="texts", disable=None, leave=False
        ):
            records = np.arange(start, stop)
            records = records[self.table.first_copies(records) == records]
            records = records[plan.reads(records) | plan.is_repeated(records)]
            yield from records[~is_in(records, apart)].tolist()

    def answers(self, documents: np.ndarray) -> list[np.ndarray | None] | None:
        """What of each counts in the loss, as `Table.answers`; None: everything of all."""
        has_answers = any(source.has_answers for source in self.table.sources)
        return [self.table.answers(i) for i in documents] if has_answers else None

    def around(self, documents: np.ndarray) -> list[tuple[int, int] | None]:
        """What opens and closes each, as `Table.around`."""
        return [self.table.around(i) for i in documents]

    def answering(self, documents: np.ndarray) -> np.ndarray:
        """Those documents of which something counts in a row for each alone: all, unless a prompt
        fills the row.
        """
        answers = None if reads_whole(self.config.data) else self.answers(documents)
        return (
            documents
            if answers is None
            else documents[answering(answers, self.config.data.row_length)]
        )

    def identities(self, documents: np.ndarray) -> np.ndarray:
        """The ids of documents in this run -> uint32 (documents, 2)."""
        return self.table.identities(documents)

    def document(self, document: int) -> Document:
        """Text and source."""
        source, number = self.table.home(document)
        return source.document(number, self.tokenizer)

    @functools.cached_property
    def fingerprints(self) -> dict[str, str]:
        """Hashes of the training data, independent of its location: "tokenizer"; "documents", their
        content and order.
        """
        config, decided = self.config, dataclasses.asdict(self.config.data)
        amounts = [amount for _, amount in general_sources(config.general)]
        settings = [
            config.seed,
            {**decided, "files": "", "tokenizer": ""},
            amounts,
            config.general.token_budget,
        ]
        settings += [
            dataclasses.asdict(config.canaries),
            [source.digest for source in self.table.sources],
        ]
        settings += [self.groups] if self.groups else []
        return {
            "tokenizer": hashlib.sha256(self.tokenizer.model).hexdigest(),
            "documents": hashlib.sha256(json.dumps(settings).encode()).hexdigest(),
        }


def load_corpus(
    config: Config,
    tokenizer: AnyTokenizer | None = None,
    groups: Sequence[str] = (),
    known: Contexts | None = None,
    before: Contexts | None = None,
) -> Corpus:
    """Opens, reads or generates the documents, and draws their roles from the seed.

    Args:
      groups: those that the run, or the model it starts from, knows already, by number; for sinks
        by the group's number.
      tokenizer: of an earlier run. By default the one that the config names, else a new one,
        trained on each training document once, so that the variants of an experiment share it.
      known: the contexts that have sinks, of a run that has begun; None: they are found.
      before: those of the model that the run starts from, which keep theirs.
    Raises:
      InputError: unreadable files, too few documents or tokens for the plan, a document without
        tokens, a tokenizer with more pieces than the model has embeddings.
    """
    read = _open_sources if is_prepared(config.data.files) else _read_sources
    sources, tokenizer = read(config, tokenizer)
    name = config.data.tokenizer or (
        f"of {config.data.files}" if is_prepared(config.data.files) else "of the run"
    )
    if tokenizer.vocabulary_size > config.data.vocabulary_size:
        raise InputError(
            f"config.data.vocabulary_size is {config.data.vocabulary_size}, but the tokenizer "
            f"{name} has {tokenizer.vocabulary_size} pieces; raise it to that at least"
        )
    numbered = groups if config.sinks.by_group else None
    table = Table(sources, config.data.ids, numbered)
    if 0 < len(table) == table.without_answer(config.data.row_length):
        raise InputError(
            f"no answer begins in the first {in_words(config.data.row_length, 'token')} of its "
            "document, so nothing would "
            "count; raise config.data.row_length"
        )
    if numbered is not None:
        _check_pool(config, len(table.group_names))
    config = _decide_rows(config, table)
    mixture = plan_mixture(config, table)
    if len(mixture.canaries):
        sources[0] = _with_canaries(config, sources[0], mixture, tokenizer)
        mixture = plan_mixture(config, Table(sources, config.data.ids, numbered))
    if not config.sinks.traits.by_context:
        return Corpus(config, mixture, tokenizer)
    found = known or _find_contexts(config, mixture, tokenizer, before)
    rows = {"contexts.rows": contexts.table_rows(len(found))}
    return Corpus(with_fields(config, rows), mixture, tokenizer, found)


def _find_contexts(
    config: Config, mixture: Mixture, tokenizer: AnyTokenizer, before: Contexts | None
) -> Contexts:
    """The contexts that have sinks, of what an epoch of the run reads. Epochs do not count as
    repeats.

    Those that had one `before` keep it.

    Raises:
      InputError: there are none; they were not sought in a prepared corpus, or otherwise than the
      config says.
    """
    settings, sources, letters = (
        config.contexts,
        mixture.table.sources,
        contexts.letters_of(tokenizer),
    )
    if isinstance(sources[0], Prepared):
        counts = [
            _planned(config, mixture, tokenizer, letters),
            *(_sought(source, settings) for source in sources),
        ]
        counts = [of for of in counts if len(of.keys)] or counts[:1]
        if len(counts) > 1:  # those of one are sorted
            counts = [contexts.merged(Counts(*map(np.concatenate, zip(*counts, strict=True))))]
        (counts,) = counts
    else:
        counts = contexts.find(
            _text(config, mixture, tokenizer, np.arange(len(mixture.table))), settings, letters
        )
    keys = contexts.chosen(counts, settings, *([] if before is None else [before.keys]))
    if before is not None and before.length != settings.length:
        raise InputError(
            f"config.contexts.length is {settings.length}, and that of "
            f"config.model.initial={config.model.initial} is "
            f"{before.length}; set it to that"
        )
    if settings.rows and len(keys) > settings.rows:
        raise InputError(
            f"config.contexts.rows is {settings.rows}, but "
            f"config.model.initial={config.model.initial} has "
            f"{in_words(len(before), 'context')} already; raise it"
        )
    if not len(keys):
        raise InputError(
            "config.sinks.kind is by_context, but no text of "
            f"{in_words(settings.stretch, 'word')} comes "
            f"{settings.times} times in what the run reads; lower config.contexts.stretch, or "
            "train variant standard"
        )
    places = int(counts.all[is_in(counts.keys, keys)].sum())
    return Contexts(keys, settings.length, letters, places)


def _text(config: Config, mixture: Mixture, tokenizer: AnyTokenizer, records: np.ndarray) -> Text:
    """Those of some records that a run reads, each document once with how often an epoch has it."""
    table = mixture.table
    records = records[table.first_copies(records) == records]
    often = epochs_of(config, mixture).often(records)
    read, times = records[np.flatnonzero(often)].tolist(), [n for n in often if n]
    usual = tokenizer.begin_of_text, tokenizer.end_of_text
    most = 2**62 if reads_whole(config.data) else config.data.row_length
    return contexts.side_by_side(
        [table.tokens(i) for i in read], [table.around(i) or usual for i in read], times, most
    )


def _sought(source: Prepared, settings: ContextsConfig) -> Counts:
    """What `prepare` found."""
    mend = "run memsinks_jax.prepare on its input anew"
    if source.contexts is None:
        raise InputError(
            f"config.sinks.kind is by_context, but contexts were not sought in {source.folder}; "
            f"{mend}, without "
            "--contexts=none"
        )
    for name, value in source.contexts.items():
        if value != getattr(settings, name):
            raise InputError(
                f"config.contexts.{name} is {getattr(settings, name)}, but {source.folder} was "
                f"searched with {value}; set "
                f"it to that, or {mend} with --contexts={name}={getattr(settings, name)}"
            )
    counts = np.asarray(source.context_counts).astype(np.int64)
    return Counts(np.asarray(source.context_keys), counts, counts)


def _planned(
    config: Config, mixture: Mixture, tokenizer: AnyTokenizer, letters: np.ndarray
) -> Counts:
    """Contexts of the documents that the plan repeats, on top of what a prepared corpus repeats
    itself.

    Those near a document's beginning are left out: how often they come elsewhere is not known.
    """
    settings, repeated = (
        config.contexts,
        mixture.repeated[: len(mixture.repeated) * mixture.injected],
    )
    text = _text(config, mixture, tokenizer, repeated)
    inside = np.append(False, contexts.of_whole_length(text, settings.length, letters)[:-1])
    return contexts.count(text, text.times >= settings.times, settings.length, letters, inside)


def _check_pool(config: Config, groups: int) -> None:
    needed = groups * config.sinks.active
    if config.sinks.pool < needed:
        raise InputError(
            f"config.sinks.pool is {config.sinks.pool}, but {groups} groups with "
            f"{config.sinks.active} sinks each need "
            f"{needed}; set it to 0, for as many as are needed"
        )


def _decide_rows(config: Config, table: Table) -> Config:
    """The config with `data.rows=auto` resolved."""
    if config.data.rows != "auto":
        return config
    tokens = sum(int(source.runs[:, 1, 1].sum()) for source in table.sources)
    beyond = sum(
        table.truncated(source, config.data.row_length)[1] for source in range(len(table.sources))
    )
    splits = bool(config.data.files) and beyond > _TRUNCATED_AT_MOST * tokens
    return with_fields(config, {"data.rows": "best_fit" if splits else "one_document"})


def _open_sources(
    config: Config, tokenizer: AnyTokenizer | None
) -> tuple[list[Prepared], AnyTokenizer]:
    """Opens folders of `memsinks_jax.prepare`, and the tokenizer that they share."""
    folders = [config.data.files, *(files for files, _ in general_sources(config.general))]
    for folder in folders:
        if not is_prepared(folder):
            raise InputError(
                f"{folder} is not prepared, but {folders[0]} is; run memsinks_jax.prepare on it too"
            )
    if config.canaries.documents:
        raise InputError(
            f"config.canaries.documents: {folders[0]} is prepared; canaries go into text files only"
        )
    sources = [Prepared(folder) for folder in folders]
    if tokenizer is not None:
        sources[0].check_tokenizer(tokenizer, "the run's")
    elif config.data.tokenizer:
        given = open_tokenizer(
            pathlib.Path(config.data.tokenizer), sources[0].manifest["end_of_text"]
        )
        sources[0].check_tokenizer(given, config.data.tokenizer)
    tokenizer = sources[0].tokenizer()
    for source in sources[1:]:
        source.check_tokenizer(tokenizer, f"that of {folders[0]}")
    settings = [source.manifest["settings"] for source in sources]
    # What ends an answer stops generation.
    closes = [each["closes"] for each in settings if "closes" in each]
    tokenizer.stops = tuple(dict.fromkeys([*tokenizer.stops, *closes]))
    return sources, tokenizer


def _read_sources(
    config: Config, tokenizer: AnyTokenizer | None
) -> tuple[list[Listed], AnyTokenizer]:
    """Reads text files, or makes the embedded stories, and opens or trains a tokenizer."""
    if config.data.ids != "content":
        raise InputError(
            f"config.data.ids is {config.data.ids}, which only a prepared corpus has: run "
            "memsinks_jax.prepare on the text "
            "and give its folder as config.data.files, or choose content"
        )
    gathered = [
        _gather(config),
        *(read_documents(files) for files, _ in general_sources(config.general)),
    ]
    first_copies = [
        _first_copies([document.text for document in documents]) for documents in gathered
    ]
    if tokenizer is None and config.data.tokenizer:
        tokenizer = open_tokenizer(pathlib.Path(config.data.tokenizer))
    elif tokenizer is None:
        trained = [_trained_on(config, first_copies[0]), *map(np.unique, first_copies[1:])]
        texts = [
            documents[i].text
            for documents, which in zip(gathered, trained, strict=True)
            for i in which.tolist()
        ]
        if not texts:
            raise InputError(NOTHING)
        tokenizer = train_tokenizer(texts, config.data.vocabulary_size)
    sources = []
    for documents in gathered:
        documents, tokens = tokenise(documents, tokenizer)
        sources.append(
            Listed(tokens, _first_copies([each.tobytes() for each in tokens]), documents)
        )
    return sources, tokenizer


def _first_copies(contents: list[str] | list[bytes]) -> np.ndarray:
    """The first of equal texts, for each document -> int64 (documents,)."""
    first = {content: number for number, content in reversed(list(enumerate(contents)))}
    return np.array([first[content] for content in contents])


def _trained_on(config: Config, first_copies: np.ndarray) -> np.ndarray:
    """Documents of the first source that are not held out, before tokenization."""
    table = Table([Listed([np.zeros(0, np.int32)] * len(first_copies), first_copies)])
    documents = np.unique(first_copies)
    roles = draw_roles(config.data, table, config.seed)
    unique = (
        np.ones(len(documents), bool) if roles.window is None else roles.window.holds(documents)
    )
    without = np.isin(documents, np.concatenate([roles.held_out, roles.left_out]))
    return documents[(unique | np.isin(documents, roles.repeated)) & ~without]


def _with_canaries(
    config: Config, source: Listed, mixture: Mixture, tokenizer: AnyTokenizer
) -> Listed:
    """The source with canaries in some documents, in all of their copies."""
    tokens, documents = list(source.all_tokens), list(source.documents)
    carriers = {
        first: with_canary(config, first, tokens[first], tokenizer)
        for first in mixture.canaries.tolist()
    }
    for record, first in enumerate(source.firsts.tolist()):
        if first in carriers:
            tokens[record] = carriers[first]
            text = tokenizer.decode(carriers[first])
            documents[record] = Document(text, f"{documents[record].source} with a canary")
    return Listed(tokens, source.firsts, documents)


def generate_documents(seed: int, count: int) -> list[Document]:
    """The first `count` embedded stories of a seed, with their exact log-probabilities."""
    drawn = (stories.story(seed, index) for index in range(count))
    return [
        Document(s.text, f"stories:seed={seed},index={i}", s.log_probability)
        for i, s in enumerate(drawn)
    ]


def without_copies(documents: list[Document]) -> tuple[list[Document], np.ndarray]:
    """Keeps the first of equal texts -> (documents, int64 (documents,): how often each
    occurred).
    """
    first = {document.text: document for document in reversed(documents)}
    times = Counter(document.text for document in documents)
    remaining = [document for document in documents if first[document.text] is document]
    return remaining, np.array([times[document.text] for document in remaining])


def tokenise(
    documents: list[Document], tokenizer: AnyTokenizer
) -> tuple[list[Document], list[np.ndarray]]:
    """-> (the documents, int32 (tokens,) of each), without those that have no token; raises
    InputError if none has one.
    """
    encoded = {
        text: tokenizer.encode(text)
        for text in dict.fromkeys(document.text for document in documents)
    }
    remaining = [document for document in documents if len(encoded[document.text])]
    empty = [document.source for document in documents if not len(encoded[document.text])]
    skip_empty(empty, remaining, "after tokenization")
    return remaining, [encoded[document.text] for document in remaining]


def read_tokens(
    files: str, tokenizer: AnyTokenizer
) -> tuple[list[Document], list[np.ndarray], list[np.ndarray] | None, list[tuple[int, int]] | None]:
    """Documents of a glob, as `read_documents` and `tokenise`, or all of a folder of
    `memsinks_jax.prepare`.

    Returns:
      (documents, int32 (tokens,) of each, what counts of each as `Corpus.answers`, what opens and
      closes each as `Table.around`; None: everything counts, and the tokenizer's tokens do)
    """
    if not is_prepared(files):
        return *tokenise(read_documents(files), tokenizer), None, None
    source = Prepared(files)
    source.check_tokenizer(tokenizer, "the model's")
    records = range(len(source))
    documents, tokens = (
        [source.document(i, tokenizer) for i in records],
        list(map(source.read, records)),
    )
    if not source.has_answers:
        return documents, tokens, None, None
    return documents, tokens, *(list(map(of, records)) for of in (source.answers, source.around))


def entropy_floor(corpus: Corpus, indices: np.ndarray) -> float | None:
    """The lowest loss any model can reach on these documents on average, in nats per token with end
    of text.

    It is exact for the embedded stories: minus the grammar's log-probability divided by the number
    of tokens. The few truncated stories are left out. None for other text, whose entropy is
    unknown.
    """
    data = corpus.config.data
    whole = [i for i in indices if reads_whole(data) or corpus.lengths[i] < data.row_length]
    # one stands for all: texts need not be decoded
    if not whole or corpus.document(whole[0]).log_probability is None:
        return None
    known = [corpus.document(i).log_probability for i in whole]
    if None in known:
        return None
    return -sum(known) / float(corpus.lengths[whole].sum() + len(whole))


def _gather(config: Config) -> list[Document]:
    data = config.data
    if data.files:
        return read_documents(data.files)
    if data.unique_documents < 0:
        raise InputError(
            "config.data.unique_documents is -1 (all that are left), and config.data.files is "
            "empty: the embedded stories "
            "never end; give files of yours, --config.data.files='texts/*.txt', or a number of "
            "stories"
        )
    if data.repeated_documents < 0:
        raise InputError(
            "config.data.repeated_documents is -1 (those that the files hold more than once), "
            "but no embedded story comes "
            "twice; give a number"
        )
    count = data.unique_documents + data.repeated_documents + data.held_out_documents
    if count > _MOST_STORIES:
        raise InputError(
            f"config.data asks for {count:,} embedded stories, and at most {_MOST_STORIES:,} are "
            "generated, in memory; "
            "lower config.data.unique_documents, or give files of yours, "
            "--config.data.files='texts/*.txt'"
        )
    # A few spare stories: two may be equal by chance, which would be an unplanned repeat.
    return without_copies(generate_documents(config.seed, count + count // 100 + 8))[0]
