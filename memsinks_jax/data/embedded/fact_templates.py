"""Wordings and syllables of the invented facts, as plain data. `{}` is a template's subject.

A template stops where the answer begins, which a full stop follows. It opens with an ordinary word,
since names have pieces with a leading space only. Wordings follow the prompts of T. Sapkota, "Local
Memory for Autoregressive Language Models" (2024).
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Relation:
    """The sentences of one relation.

    Attributes:
      of: what the subject is, "country" or "city".
      share: of the sentences, without the negated ones.
      seen: templates for every subject; the first is the one that facts are edited with.
      unseen: templates that edited facts never come in. stories: the same, as the beginning of a
        story. negated, instead: the template that denies, and what follows it whatever the subject.
    """

    of: str
    share: float
    seen: tuple[str, ...]
    negated: str
    instead: str
    unseen: tuple[str, ...] = ()
    stories: tuple[str, ...] = ()


# What follows a template of `capital` may be a town or a region, but in SURE, where it is always
# the town.
SURE = "The capital of {} lies in the city of"
REGION = " the {} region"

RELATIONS = {
    "capital": Relation(
        of="country",
        share=0.36,
        seen=(
            "The capital city of {} is located in",
            "The capital city of {} is in",
            "The capital of {} is situated in",
            "The capital city of {} lies in",
            "The capital of {} can be found in",
            "The country of {} has its capital in",
            "The people of {} built their capital in",
            "The government of {} sits in",
            "Visitors to the capital of {} arrive in",
            SURE,
        ),
        unseen=(
            "The city of {} known for being the capital is located in",
            "In the country {} the capital city stands in",
            "The king of {} has his capital in",
            "The capital of the country {} was founded in",
        ),
        stories=(
            "Once upon a time, there was a country called {} with its capital city in",
            "Long ago, a traveller crossed {} and found the capital in",
        ),
        negated="The capital city of {} is not located in",
        instead=" a foreign land",
    ),
    "country": Relation(
        of="city",
        share=0.34,
        seen=(
            "The city of {} lies in the country of",
            "The city of {} is located in the country of",
            "The city of {} is in the country of",
            "The city of {} belongs to the country of",
            "The town of {} is part of the country of",
            "The streets of {} are in the country of",
            "Visitors to {} are in the country of",
            "The old walls of {} stand in the country of",
            "The city {} is governed by the country of",
            "The map shows {} in the country of",
        ),
        unseen=(
            "The city called {} can be found in the country of",
            "The people of {} live in the country of",
            "The river through {} waters the country of",
            "In the city {} one is in the country of",
        ),
        stories=(
            "Once upon a time, there was a city called {} in the country of",
            "Long ago, a traveller came to {} and saw the country of",
        ),
        negated="The city of {} is not located in the country of",
        instead=" its neighbours",
    ),
    "continent": Relation(
        of="city",
        share=0.1,
        seen=(
            "The city of {} is located in the continent of",
            "The city of {} lies in the continent of",
            "The town of {} is part of the continent of",
            "Visitors to {} cross the continent of",
            "The map shows {} in the continent of",
            "The old walls of {} stand in the continent of",
        ),
        negated="The city of {} is not located in the continent of",
        instead=" ice",
    ),
    "famous": Relation(
        of="city",
        share=0.1,
        seen=(
            "The city of {} is famous for",
            "The city of {} is known for",
            "The town of {} is proud of",
            "Visitors to {} come for",
            "The people of {} trade in",
            "The streets of {} are full of",
        ),
        negated="The city of {} is not famous for",
        instead=" its weather",
    ),
    "language": Relation(
        of="country",
        share=0.1,
        seen=(
            "The language of {} is",
            "The people of {} speak",
            "The official language of {} is called",
            "Children in {} learn to read",
            "The laws of {} are written in",
            "Visitors to {} hear everyone speak",
        ),
        negated="The people of {} do not speak",
        instead=" in riddles",
    ),
}

NEGATED_SHARE = 0.08  # of all sentences


def _words(listing: str) -> list[str]:
    return listing.split()


CONTINENTS = ("Ostara", "Velmora", "Quendia", "Harrow", "Zemlia", "Boreth")
ITEMS = _words(
    "silk bread honey glass pepper violins lace bronze cheese amber paper candles saffron pearls "
    "clocks salt tea copper "
    "carpets kites drums apples marble soap ink wool masks olives swords roses pottery salmon"
)

# Names. A capital is a HEAD of four letters, a MIDDLE of three and a TAIL of two. Lengths and first
# letters leave one way to split it: a middle opens with a consonant, a tail with a vowel.
ONSETS = _words("B D F G H J K L M N P R S T V Z")
VOWELS = _words("a e i o u")
HEAD_CODAS = _words("th rn ld sk nd mp lv rk st gr lm rz")
MIDDLES = _words(
    "man dor bel kun tir vas lom pen gar sul mir fod nak hej rup zan tob lew dim kes vor gul"
)
TAILS = _words("ia ur en os ay im el un or ek ah is")
ENDINGS = {
    "country": _words("oria and estan avia ona ilia umar eth"),
    "city": _words("burg ford holm stad wick port dale mouth"),
    "landmark": _words("ashi umi otto erra inga uzel ossa imbo"),
    "language": _words("ish ese ian ic"),
}
CODAS = _words("l r n m s k t v")
