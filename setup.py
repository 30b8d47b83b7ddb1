"""What pyproject.toml cannot say: configs/ is installed as part of the package, where
variants.CONFIGS looks for it.
"""

from setuptools import find_namespace_packages, setup

configs = find_namespace_packages(include=["configs*"])
setup(
    packages=[
        *find_namespace_packages(include=["memsinks_jax*"]),
        *(f"memsinks_jax.{name}" for name in configs),
    ],
    package_dir={"memsinks_jax.configs": "configs"},
)
