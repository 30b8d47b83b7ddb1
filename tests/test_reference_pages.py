"""The pages of settings and of the Python API are what the code says."""

import pytest
from reference_pages import COMMAND, PAGES

from memsinks_jax.config import RULES


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_page_is_what_the_code_generates(path):
    assert path.read_text() == PAGES[path](), f"docs/{path.name} is out of date; run: {COMMAND}"


def test_the_pages_have_every_setting_and_what_users_import():
    settings, api = (page() for page in PAGES.values())
    assert [line.split("`")[1] for line in settings.splitlines() if line.startswith("| `")] == list(
        RULES
    )
    for name in (
        "open_model",
        "Model",
        "Model.loss",
        "Model.generate",
        "evaluate",
        "generate",
        "InputError",
    ):
        assert f"# {name}\n" in api, name
