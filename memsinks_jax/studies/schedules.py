"""Schedules of repeats for experiments, which `config.data.schedule` names (plugin.py)."""

import dataclasses

import numpy as np

from memsinks_jax.config import Config, InputError, setting
from memsinks_jax.data.epochs import Encounters
from memsinks_jax.data.ids import as_lanes
from memsinks_jax.data.mixture import Mixture
from memsinks_jax.data.order import bits, mix, permutation
from memsinks_jax.data.table import is_in
from memsinks_jax.plugin import Schedule


def _check_repeated(config: Config, name: str) -> None:
    if config.data.repeated_documents < 0:
        raise InputError(
            f"config.data.schedule is {name}, but config.data.repeated_documents=-1 leaves it to "
            "the files how often a document comes; give a number of documents"
        )


class Ladder(Schedule):
    """`repetitions` of the first document, half of it of the next, a quarter, ... 1, and again."""

    @dataclasses.dataclass(frozen=True)
    class Settings:
        """None."""

    def __init__(self, config: Config, settings: Settings):
        super().__init__(config, settings)
        _check_repeated(config, "Ladder")

    def times(self, repetitions: int, documents: int) -> np.ndarray:
        steps = np.arange(documents) % repetitions.bit_length()
        return np.full(documents, repetitions) >> steps


class EveryNth(Schedule):
    """Every N-th batch begins with all repeated documents (paper section 5.4).

    They are measured before and after each step that reads them, and one step later: the cycle of
    learning and forgetting.
    """

    shuffles, lists = False, True

    @dataclasses.dataclass(frozen=True)
    class Settings:
        steps: int = setting(40, "from one such batch to the next", 1)

    def __init__(self, config: Config, settings: Settings):
        super().__init__(config, settings)
        _check_repeated(config, "EveryNth")
        repeated, batch = config.data.repeated_documents, config.training.batch_size
        # The batch must have room for others too if there is no other.
        if not 0 < repeated < batch + (settings.steps > 1):
            raise InputError(
                f"config.data.schedule is EveryNth, but {repeated} repeated documents do not fit "
                f"into one batch of {batch} every {settings.steps} steps; set "
                "config.data.repeated_documents to a number that does"
            )
        for name, value, usual in (
            ("data.rows", config.data.rows, ("auto", "one_document")),
            ("training.epochs", config.training.epochs, (1,)),
            ("training.steps", config.training.steps, (0,)),
            ("data.repeats_at_most", config.data.repeats_at_most, (0, 1, -1)),
        ):
            if value not in usual:
                raise InputError(
                    f"config.data.schedule is EveryNth, which places documents in the rows of one "
                    f"epoch, so config.{name} cannot be {value}; set it to {usual[-1]}"
                )

    def epoch(
        self, mixture: Mixture, usual: Encounters, number: int
    ) -> tuple[np.ndarray, np.ndarray]:
        found = usual.records
        if mixture.data.repeats_at_most < 0:
            found = self._placed(usual.records, mixture.repeated)
        return found, mixture.table.identities(found)

    def _placed(self, others: np.ndarray, repeated: np.ndarray) -> np.ndarray:
        batch, count = self.config.training.batch_size, len(repeated)
        period = self.settings.steps * batch
        whole, rest = divmod(len(others), period - count)
        rows = whole * period + rest + count * (rest > period - batch)
        place = np.arange(rows) % period - (period - batch)
        is_repeated = (place >= 0) & (place < count)
        found = np.empty(rows, np.int64)
        found[is_repeated], found[~is_repeated] = repeated[place[is_repeated]], others
        return found

    def is_watched(self, step: int) -> bool:
        every = self.settings.steps
        return step >= every - 1 and step % every in (every - 1, 0, 1)


class WrongIds(Schedule):
    """Repeated documents come under random ids (paper section 5.3)."""

    lists = True

    @dataclasses.dataclass(frozen=True)
    class Settings:
        rate: float = setting(0.1, "the paper's d: probability of a random id", 0, 1)
        per_document: int = setting(
            0, "0: drawn at every encounter; 1: once, an id is always right or always wrong", 0, 1
        )

    def epoch(
        self, mixture: Mixture, usual: Encounters, number: int
    ) -> tuple[np.ndarray, np.ndarray]:
        identities = mixture.table.identities(usual.records)
        wrong = self._are_wrong(mixture, usual, number)
        drawn = self._draws(number, usual.slots[wrong], 1)
        identities[wrong] = as_lanes(np.maximum(drawn, np.uint64(1)))
        return usual.records, identities

    def _are_wrong(self, mixture: Mixture, usual: Encounters, number: int) -> np.ndarray:
        """Which encounters have a random id, bool (n,)."""
        first_copies, repeated = mixture.table.first_copies(usual.records), mixture.repeated
        rate = self.settings.rate
        if self.settings.per_document:
            # A fixed number, not a probability for each: with few documents chance may choose none.
            shuffled = repeated[permutation(len(repeated), self.config.seed, "noisy documents")]
            return is_in(first_copies, np.sort(shuffled[: round(rate * len(shuffled))]))
        draws = self._draws(number, usual.slots, 0)
        chance = (draws >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return mixture.is_repeated(first_copies) & (chance < rate)

    def _draws(self, epoch: int, slots: np.ndarray, salt: int) -> np.ndarray:
        salts = bits(self.config.seed, "id noise").random_raw(2)
        return mix(slots.astype(np.uint64) ^ mix(np.array([epoch], np.uint64) ^ salts[salt]))
