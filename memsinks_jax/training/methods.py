"""All methods, by the `config.sinks.kind` that chooses them."""

from memsinks_jax.config import Config
from memsinks_jax.training.gradient_masking import (
    MaskedActivations,
    MaskedWeights,
    Selective,
    SelectiveFrozen,
)
from memsinks_jax.training.method import ByChance, ByContext, ByDocument, Method
from memsinks_jax.training.private import Private

METHODS = {
    "by_document": ByDocument,
    "by_chance": ByChance,
    "by_context": ByContext,
    "masked_weights": MaskedWeights,
    "masked_activations": MaskedActivations,
    "sgtm": Selective,
    "sgtm_frozen": SelectiveFrozen,
    "none": Method,
    "cut": Method,
}


def method_of(config: Config) -> Method:
    """That of a run. Raises InputError if it cannot train the config's model."""
    return (Private if config.private.noise_multiplier else METHODS[config.sinks.kind])(config)
