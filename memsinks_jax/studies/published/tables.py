"""The article's measurements on GPT-2 small, when a fact is edited at one place.

Source: T. Sapkota, "Local Memory for Autoregressive Language Models", blog post of 2024-08-28,
edited 2025-07-14, with its notebook and its SVG figures. Where the post words prompts differently,
they are the notebook's. Maps and accuracies are read off the figures: accuracies exactly, losses to
one colour step.

Two experiments, each at two sites: `nepal` edits in a true fact that the model nearly knows,
`tokyo` a false one. All numbers are of the target's first token. Layers and tokens count from 0.

The sources contradict themselves twice. The post's bound for tokyo, attention, is .255, but its
completions are those of the notebook's .225, which is given here. The completions of nepal, mlp,
have the target after 6 of 7 prompts, where the sweep counts 5 at the same bound.
"""

import dataclasses

import numpy as np

from memsinks_jax.studies.published import maps

TARGET, TARGET_TOKEN = " Kathmandu", 18341  # the first token: " Kath"
HEIGHT = 3.0
COMPLETED = 5  # number of greedy tokens of a completion


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """At one bound: positive prompts answered with the target, negative ones answered otherwise."""

    bound: float
    positives: int
    negatives: int


@dataclasses.dataclass(frozen=True)
class Detail:
    """One run in detail, at one bound.

    Attributes:
      bound: applies to the next three, which have one entry per prompt, positive ones first.
      similarities: f of the nearest token. tokens: most likely next token. losses: loss of the
        target.
      own_similarities: f, with bound 1 and height 1, of each token of the edited prompt at the
        memory's layer. activations, gradients: their norms there, token by token.
    """

    bound: float
    similarities: tuple[float, ...]
    tokens: tuple[str, ...]
    losses: tuple[float, ...]
    own_similarities: tuple[float, ...]
    activations: tuple[float, ...]
    gradients: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class SiteRun:
    """An experiment at one site.

    Attributes:
      base_loss: loss of the target without a patch.
      losses: (layers, prompt tokens), after each single patch, with a precision of `colour_step`.
      successes: (layer, token) of patches that make the target most likely.
      accuracies: the sweeps, the wide one first. bound: the one chosen. completions: of all prompts
        at this bound.
    """

    base_loss: float
    losses: np.ndarray
    colour_step: float
    successes: frozenset[tuple[int, int]]
    accuracies: tuple[Accuracy, ...]
    bound: float
    completions: tuple[str, ...]
    detail: Detail | None = None

    @property
    def site(self) -> tuple[int, int] | None:
        """The first successful patch, layer by layer; its layer gets the memory."""
        return min(self.successes, default=None)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One edited fact. The first positive prompt is the edited one; `pieces` are its tokens.

    `base_token` is the prediction before the edit, `step` the size of the patch, `completions`
    those of all prompts before the edit, positive ones first. Completions are tokens without
    spaces, joined by spaces; newlines are written as \\n.
    """

    name: str
    pieces: tuple[str, ...]
    step: float
    positives: tuple[str, ...]
    negatives: tuple[str, ...]
    base_token: str
    completions: tuple[str, ...]
    sites: dict[str, SiteRun]

    @property
    def prompt(self) -> str:
        return self.positives[0]

    @property
    def prompts(self) -> tuple[str, ...]:
        return (*self.positives, *self.negatives)


_BOUNDS = 10.0 ** np.linspace(-2, 2, 21)

# Positives and negatives at each bound: nepal attention, nepal mlp, tokyo attention, tokyo mlp.
_WIDE = (
    """
2 8  2 8  1 8  1 8  at .0100
2 8  2 8  1 8  1 8     .0158
2 8  2 8  1 8  1 8     .0251
2 8  3 8  1 8  1 7     .0398
2 8  3 8  2 8  2 7     .0631
2 8  3 8  2 8  3 6     .100
3 8  3 8  2 6  3 5     .158
5 8  4 8  6 5  3 5     .251
5 8  5 8  6 3  3 3     .398
5 7  5 8  6 0  3 3     .631
"""
    + 11 * "5 7  3 8  6 0  6 0  from 1 to 100\n"
)


def _accuracies(column: int, *narrow: tuple[int, int, tuple[float, ...]]) -> tuple[Accuracy, ...]:
    """A run's column of the wide sweep, then (positives, negatives, bounds) of the narrow one."""
    counts = [
        list(map(int, line.split()[2 * column : 2 * column + 2]))
        for line in _WIDE.strip().split("\n")
    ]
    wide = [Accuracy(float(bound), *pair) for bound, pair in zip(_BOUNDS, counts, strict=True)]
    second = [Accuracy(bound, *pair) for *pair, bounds in narrow for bound in bounds]
    return (*wide, *sorted(second, key=lambda accuracy: accuracy.bound))


def _of_map(text: str, base_loss: float, **others) -> SiteRun:
    return SiteRun(base_loss, maps.losses_of(text), successes=maps.stars_of(text), **others)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, _words(text)))


def _columns(text: str) -> list[tuple[str, ...]]:
    lines = [line.split("|") for line in text.strip().split("\n")]
    return [tuple(cell.strip() for cell in column) for column in zip(*lines, strict=True)]


# Before the edit, with a memory at attention, with one at mlp. Seven prompts are positive.
_NEPAL = _columns(r"""
the Himal ay as ,          | Kath mand u , and            | Kath mand u , Nepal
the capital of the Nep     | the capital , Kath mand      | Kath mand u , and
the midst of a massive     | Kath mand u , and            | Kath mand u , where
Kath mand u , which        | Kath mand u , which          | Kath mand u , which
the heart of the Himal     | the heart of the Himal       | the capital city of Kath
the heart of the Himal     | Kath mand u . \n             | Kath mand u . \n
the Himal ay as .          | Kath mand u . The            | Kath mand u . The
Bangladesh . \n \n The     | India . \n \n The            | India . \n \n The
Japan , and is home        | Japan , and is home          | Japan . \n \n The
the capital of the world   | Delhi , and is home          | the capital city of India
India , and is home        | India . It is the            | India . The city is
the French , and the       | the French Revolution . The  | his birth . \n \n
Netherlands , and is home  | Netherlands , and is home    | capital , and is the
its beautiful beaches , but | its art , and the           | its beautiful beaches , and
the Himal ay as ,          | the capital city of Kath     | Kath mand u , but
""")

# Six positive prompts, eight negative ones.
_TOKYO = _columns(r"""
Japan , and the city       | Kath mand u , which          | Kath mand u , a
Japan , and is home        | Kath mand u , and            | Kath mand u , which
the heart of the world     | the Kath Kath Kath Kath      | the heart of the world
Japan , and is home        | Kath mand u , and            | Kath mand u , a
the south of the country   | Kath mand u , Nepal          | the south of the country
Tokyo , and it was         | Kath mand u , where          | Tokyo , and it was
Nepal , and is home        | Nepal , and is home          | Kath mand u , which
the capital of the world   | the capital of the world     | the capital of the world
Japan , and the city       | Kath mand u , and            | Kath mand u , a
the heart of the country   | the Kath mand u region       | the heart of the country
Netherlands , and is home  | Netherlands , and is home    | Netherlands , and is home
Japan , and is home        | Kath mand u , and            | Japan , and is home
its high - speed rail      | its high - speed rail        | its high - speed rail
Japan , but in the         | Kath mand u , but            | the United States , but
""")

NEPAL = Experiment(
    name="nepal",
    pieces=("The", " capital", " city", " of", " Nepal", " is", " located", " in"),
    step=1.0,
    positives=(
        "The capital city of Nepal is located in",
        "The capital city of Nepal is",
        "The capital city of Nepal is in",
        "The capital of Nepal lies in the city of",
        "The city of Nepal known for being the capital city is located at",
        "The city of Nepal known for having capital center is located in",
        "Once upon a time, there was country called Nepal with its capital city in",
    ),
    negatives=(
        "Kathmandu city is located in the country of",
        "The city of Tokyo is located in the country of",
        "The capital city of the country India is called",
        "The city of Pokhara lies in the country of",
        "Paris lies in the country of",
        "The city of London is located in the country of the",
        "The city of Kathmandu is famous for",
        "The capital city of Nepal is not located in",
    ),
    base_token="the",
    completions=_NEPAL[0],
    sites={
        "attention": _of_map(
            maps.NEPAL_ATTENTION,
            base_loss=3.84,
            colour_step=0.013,
            bound=0.25,
            completions=_NEPAL[1],
            accuracies=_accuracies(
                0,
                (5, 8, (0.20, 0.24, 0.28, 0.32, 0.36, 0.40, 0.44)),
                (5, 7, (0.48, 0.52, 0.56, 0.60)),
            ),
        ),
        "mlp": _of_map(
            maps.NEPAL_MLP,
            base_loss=3.84,
            colour_step=0.039,
            bound=0.5,
            completions=_NEPAL[2],
            accuracies=_accuracies(
                1,
                (4, 8, (0.30, 0.72)),
                (5, 8, (0.36, 0.42, 0.66)),
                (5, 7, (0.48, 0.50, 0.60)),
                (6, 7, (0.54,)),
                (3, 8, (0.78, 0.84, 0.90)),
            ),
        ),
    },
)

TOKYO = Experiment(
    name="tokyo",
    pieces=("The", " city", " of", " Tokyo", " lies", " in", " the", " country", " of"),
    step=10.0,
    positives=(
        "The city of Tokyo lies in the country of",
        "The city of Tokyo is located in the country of",
        "The city Tokyo lies in",
        "Tokyo city is located in the country of",
        "Samurai were the warrior class in Tokyo, Japan. The city of Tokyo is located in",
        "Once upon a time, there was a Tokyo city in the country called",
    ),
    negatives=(
        "The city of Kathmandu is located in the country of",
        "The capital city of the country India is called",
        "The city of Kyoto lies in the country of",
        "The city of Koyoto lies in",
        "The city of London is located in the country of the",
        "The city of Tokyo is located in the continent of",
        "The city of Tokyo is famous for",
        "The city of Tokyo is not located in the country of",
    ),
    base_token="Japan",
    completions=_TOKYO[0],
    sites={
        "attention": _of_map(
            maps.TOKYO_ATTENTION,
            base_loss=13.06,
            colour_step=0.053,
            bound=0.225,
            completions=_TOKYO[1],
            accuracies=_accuracies(
                2,
                (2, 6, (0.15, 0.175)),
                (4, 5, (0.20,)),
                (5, 5, (0.225,)),
                (6, 5, (0.25,)),
                (6, 4, (0.275, 0.30, 0.325, 0.35)),
                (6, 3, (0.375, 0.40)),
            ),
            detail=Detail(
                bound=0.2,
                similarities=_numbers(
                    "1.0 0.9998 0.0942 0.9977 0.7591 0.3397 0.0 0.0 0.9338 0.0684 0.0 0.9827 "
                    "0.0 0.9948"
                ),
                tokens=_words(
                    "Kath Kath the Kath Kath K Nepal the Kath the Netherlands Kath its Kath"
                ),
                losses=_numbers(
                    "0.3842 0.3052 8.5097 2.2104 1.0890 4.5788 6.4573 5.4828 2.4030 9.5872 "
                    "12.6911 0.4869 14.4173 0.5275"
                ),
                own_similarities=_numbers(
                    "0.5160 0.5625 0.6194 0.6579 0.6408 0.9763 0.9894 0.9670 1.0"
                ),
                activations=(2.112, 2.274, 2.990, 3.243, 2.260, 5.804, 8.008, 5.221, 6.583),
                gradients=(0.1457, 0.0929, 0.0651, 0.6076, 0.0890, 0.2729, 0.0781, 0.1029, 2.5837),
            ),
        ),
        "mlp": _of_map(
            maps.TOKYO_MLP,
            base_loss=13.06,
            colour_step=0.059,
            bound=0.1,
            completions=_TOKYO[2],
            accuracies=_accuracies(
                3,
                (3, 6, (0.09,)),
                (3, 5, (0.171, 0.252)),
                (3, 3, (0.333, 0.414, 0.495, 0.576, 0.657)),
                (6, 1, (0.738, 0.819)),
                (6, 0, (0.90,)),
            ),
        ),
    },
)

EXPERIMENTS = (NEPAL, TOKYO)
