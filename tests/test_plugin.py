"""Methods of training from outside of the library: found, refused in one line, not needed to read a
config.
"""

import pytest
from conftest import expect_input_error, tiny_config

from memsinks_jax import plugin
from memsinks_jax.config import from_json, to_json, with_fields
from memsinks_jax.training.method import method_of

MASKING = "memsinks_jax.studies.methods.gradient_masking"


def config_of(method, kind="always"):
    return with_fields(tiny_config(), {"training.method": method, "sinks.kind": kind})


def test_a_method_has_the_settings_that_are_given():
    method, settings = plugin.method_class(config_of(f"{MASKING}:Selective,undiscovered=0.5"))
    assert (method.__name__, settings.retain_fraction, settings.undiscovered) == (
        "Selective",
        0.25,
        0.5,
    )
    assert plugin.method_class(tiny_config()) is None


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("nowhere.masking:Method", "No module named 'nowhere'"),
        (f"{MASKING}:Nobody", "no attribute 'Nobody'"),
        ("Selective", "No module named 'Selective'"),
        (":Selective", "give MODULE:CLASS"),
        (f"{MASKING}:jax", "no attribute 'Settings'"),
        (f"{MASKING}:Selective,undiscoverd=1", "its settings: retain_fraction, undiscovered"),
        (f"{MASKING}:MaskedWeights,rate=1", "its settings: none"),
        (f"{MASKING}:Selective,undiscovered=all", "undiscovered must be a number"),
        (f"{MASKING}:Selective,undiscovered=2", r"of undiscovered, it must lie in \[0, 1\]"),
    ],
)
def test_what_is_no_method_is_refused_where_it_would_train(method, message):
    config = from_json(to_json(config_of(method)), "here")
    with expect_input_error(message) as refused:
        method_of(config)
    assert "config.training.method" in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["by_document", "by_context", "by_chance"])
def test_sinks_with_a_method_of_their_own_are_refused(kind):
    with expect_input_error("set it to always, none or cut"):
        method_of(config_of(f"{MASKING}:MaskedWeights", kind))
