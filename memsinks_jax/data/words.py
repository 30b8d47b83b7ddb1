"""Tokens of words: what a text is, apart from white space and marks.

A tokenizer writes the word behind a line break in other tokens than the same word behind a space, so a licence wrapped at
another width is another run of tokens. Here a word has the tokens that it has behind a space, each without its white space,
and tokens of white space alone are left out. So are words without a letter or digit: the marks of quoted mail (>) and of
comments (*, #, //).
"""

from typing import NamedTuple

import numpy as np

from memsinks_jax.data.tokenizer import AnyTokenizer

_SPACE = -1  # instead of a token: white space alone
_PART = "\ufffd"  # how a tokenizer shows a token that is a part of a character


class InWords(NamedTuple):
    """Tokens of words, and where they stand among the tokens of a text."""

    tokens: np.ndarray  # int32 (n,); of those that are the same without white space, the least
    starts: np.ndarray  # int64 (n,); ascending
    stops: np.ndarray  # int64 (n,)


class Words:
    """Makes tokens of words of the tokens of one tokenizer."""

    def __init__(self, tokenizer: AnyTokenizer):
        self.tokenizer = tokenizer
        letter = tokenizer.encode("a")  # after it, a token shows its own white space
        shown, self._lead = tokenizer.decode(letter), len(letter)
        self._texts = [tokenizer.decode([*letter, token])[len(shown) :] for token in range(tokenizer.vocabulary_size)]
        numbers: dict[str, int] = {}
        self._number = np.array(
            [
                token if _PART in text else numbers.setdefault(text.strip(), token) if text.strip() else _SPACE
                for token, text in enumerate(self._texts)
            ],
            np.int32,
        )
        self._is_mark = np.array([_PART not in text and not any(map(str.isalnum, text)) for text in self._texts])
        self._opens = np.array([text[:1].isspace() for text in self._texts])
        self._closes = np.array([text[-1:].isspace() for text in self._texts])
        self._is_usual = np.array([text[:1] == " " and not text[1:2].isspace() for text in self._texts])

    def __call__(self, tokens: np.ndarray, bounds: np.ndarray | None = None) -> InWords:
        """int (tokens,) -> its tokens of words. `bounds`: where texts begin or end, int64 (n,); no word goes across."""
        numbers, after = self._number[tokens], np.arange(1, len(tokens) + 1)
        opens = self._opens[tokens] | np.append(True, self._closes[tokens[:-1]])[: len(tokens)]
        if bounds is not None:
            opens[bounds[bounds < len(tokens)]] = True
        is_space = numbers == _SPACE
        word = np.cumsum(opens | is_space)  # words of marks alone are left out as white space is
        is_space |= np.bincount(word, ~self._is_mark[tokens])[word] == 0
        counts = np.where(is_space, 0, 1)
        first = np.flatnonzero(opens & ~is_space)
        ends = np.append(np.flatnonzero(opens | is_space), len(tokens))
        last = ends[np.searchsorted(ends, first, side="right")]
        unusual = ~self._is_usual[tokens[first]]
        first, last = first[unusual], last[unusual]
        known: dict[bytes, np.ndarray] = {}  # of this call alone, else it would grow with the corpus
        written = [
            self._usual(tokens[start:stop], known) for start, stop in zip(first.tolist(), last.tolist(), strict=True)
        ]
        inside = np.zeros(len(tokens) + 1, np.int8)
        inside[first] = 1
        inside[last] -= 1  # 0 where the next word begins
        counts[np.cumsum(inside[:-1]) > 0] = 0
        counts[first] = [len(each) for each in written]
        after[first] = last
        starts = np.repeat(np.arange(len(tokens)), counts)
        found, is_written = numbers[starts], np.zeros(len(tokens), bool)
        is_written[first] = True
        found[is_written[starts]] = np.concatenate([np.zeros(0, np.int32), *written])
        return InWords(found, starts, after[starts])

    def _usual(self, tokens: np.ndarray, known: dict[bytes, np.ndarray]) -> np.ndarray:
        """The tokens of a word -> those that it has behind a space, if it has whole characters."""
        key = tokens.tobytes()
        if key not in known:
            word = "".join(self._texts[token] for token in tokens.tolist()).strip()
            usual = tokens if _PART in word else self.tokenizer.encode(f"a {word}")[self._lead :]
            known[key] = self._number[usual][self._number[usual] != _SPACE]
        return known[key]
