"""Lists, adds, removes, merges sources: python -m memsinks_jax.sources --folder=models/mail
[--remove=author012]

export --sources=DIR writes a folder of a base model, with a file for each source: the sinks that a
group of documents has for itself; with sinks by context, those of contexts in its texts alone.
Without another option this command lists them, and whether each belongs to the base. --remove=NAME
deletes a file, which withdraws the source: no other file depends on it. --add=FILE copies a file
into the folder if it belongs to the same base. --merge=NAME,NAME --out=DIR writes a plain model
with these sources; export --sinks=keep one with all of them.
"""

import dataclasses
import logging
import pathlib
import sys

from memsinks_jax.config import InputError
from memsinks_jax.data.documents import printable
from memsinks_jax.models.sources import Sources, open_sources
from memsinks_jax.runs import command_line
from memsinks_jax.runs.command_line import REQUIRED, option

logger = logging.getLogger("memsinks_jax.sources")


def _listing(found: Sources) -> dict:
    from memsinks_jax.reporting import report

    listed = [
        {
            "name": source.name,
            "file": source.path.name,
            "sinks": source.sinks,
            "bytes": source.bytes,
            "base_matches": source.base == found.base,
        }
        for source in found.files.values()
    ]
    rows = [
        [
            printable(one["file"]),
            f"{one['sinks']}",
            f"{one['bytes'] / 2**20:.2f}",
            "yes" if one["base_matches"] else "NO",
        ]
        for one in listed
    ]
    table = report.plain_table(["file", "sinks", "MiB", "of this base"], rows).splitlines()
    # Names come last, where those that are read from right to left move no other column.
    names = ["source", "------", *(printable(one["name"]) for one in listed)]
    print("\n".join(map("  ".join, zip(table, names, strict=True))), file=sys.stderr)
    return {"folder": str(found.folder), "base": found.base, "sources": listed}


def _named(found: Sources, given: list[str]) -> list[str]:
    """The sources of --merge flags: each is a name, or several that commas separate. Raises
    InputError for another.
    """
    names = [name for one in given for name in ([one] if one in found.files else one.split(","))]
    return [found.find(name).name for name in names]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    folder: pathlib.Path = option(REQUIRED, "Folder that export --sources has written.")
    add: pathlib.Path | None = option(None, "Source file to copy into the folder.")
    remove: str = option("", "Name of a source whose file to delete.")
    merge: list[str] = option(
        (),
        "Names of sources, for a plain model with their sinks; with --out. Repeat it if a name "
        "has a comma.",
    )
    out: pathlib.Path | None = option(None, "Folder to write with --merge; it must not exist.")
    dtype: str = option(
        "float32", "Data type of the merged weights.", choices=("bfloat16", "float32")
    )


def main(options: Options) -> dict:
    if sum(map(bool, (options.add, options.remove, options.merge))) > 1:
        raise InputError("--add, --remove and --merge exclude each other; give one at a time")
    found = open_sources(options.folder)
    if options.add:
        source = found.add(options.add)
        logger.info("added %r: %s", source.name, source.path)
        return {"added": source.name, "file": str(source.path)}
    if options.remove:
        source = found.remove(options.remove)
        logger.info("removed %r: %s is deleted", source.name, source.path)
        return {"removed": source.name, "file": str(source.path)}
    if options.merge:
        if found.config.sinks.traits.by_context:
            raise InputError(
                f"{options.folder} has sinks by context, which are no part of a plain model's "
                "weights; memsinks_jax.export --sinks=keep puts its sources together"
            )
        from memsinks_jax.models.exporting import export  # brings jax

        command_line.require(options, "out")
        names = _named(found, options.merge)
        return export(options.folder, options.out, True, options.dtype, groups=names)
    return _listing(found)


if __name__ == "__main__":
    command_line.run(main, Options)
