"""The commands: python -m memsinks_jax"""

import ast
import pathlib
import signal
import sys

from memsinks_jax import __doc__ as about
from memsinks_jax import __version__


def listing() -> str:
    """The commands and the labs, each with the first sentence of its docstring."""
    here, lines = pathlib.Path(__file__).parent, []
    for path in sorted([*here.glob("*.py"), *here.glob("labs/*.py")]):
        tree = ast.parse(path.read_text())
        name = ".".join(path.relative_to(here.parent).with_suffix("").parts)
        if path != pathlib.Path(__file__) and _runs(tree):
            lines.append(
                f"  {name.removeprefix('memsinks_jax.'):24} "
                f"{ast.get_docstring(tree).splitlines()[0].split(': python')[0]}"
            )
    return "\n".join(
        [about, "", "python -m memsinks_jax.COMMAND --help describes one:", "", *lines]
    )


def _runs(tree: ast.Module) -> bool:
    """Whether a file is a command: it ends by calling its main function."""
    return isinstance(tree.body[-1], ast.If) and "__main__" in ast.unparse(tree.body[-1].test)


if __name__ == "__main__":
    # `python -m memsinks_jax | head` ends without a word
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    print(__version__ if "--version" in sys.argv[1:] else listing())
