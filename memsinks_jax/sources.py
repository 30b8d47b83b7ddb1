"""Lists, adds, removes, merges sources: python -m memsinks_jax.sources --folder=models/mail
[--remove=author012]

export --sources=DIR writes a folder of a base model, with a file for each source: the sinks that a
group of documents has for itself; with sinks by context, those of contexts in its texts alone.
Without another option this command lists them, and whether each belongs to the base. --remove=NAME
deletes a file, which withdraws the source: no other file depends on it. --add=FILE copies a file
into the folder if it belongs to the same base. --merge=NAME,NAME --out=DIR writes a plain model
with these sources; export --sinks=keep one with all of them.
"""

import logging
import pathlib
import sys

from absl import flags

from memsinks_jax.config import InputError
from memsinks_jax.data.documents import printable
from memsinks_jax.models.sources import Sources, open_sources
from memsinks_jax.runs import command_line

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


def main() -> None:
    folder_flag = flags.DEFINE_string("folder", None, "Folder that export --sources has written.")
    add_flag = flags.DEFINE_string("add", "", "Source file to copy into the folder.")
    remove_flag = flags.DEFINE_string("remove", "", "Name of a source whose file to delete.")
    merge_flag = flags.DEFINE_multi_string(
        "merge",
        [],
        "Names of sources, for a plain model with their sinks; with --out. Repeat it if a name "
        "has a comma.",
    )
    out_flag = flags.DEFINE_string("out", "", "Folder to write with --merge; it must not exist.")
    dtype_flag = flags.DEFINE_enum(
        "dtype", "float32", ("bfloat16", "float32"), "Data type of the merged weights."
    )

    def run() -> dict:
        command_line.require(folder_flag)
        folder = pathlib.Path(folder_flag.value)
        if sum(map(bool, (add_flag.value, remove_flag.value, merge_flag.value))) > 1:
            raise InputError("--add, --remove and --merge exclude each other; give one at a time")
        found = open_sources(folder)
        if add_flag.value:
            source = found.add(pathlib.Path(add_flag.value))
            logger.info("added %r: %s", source.name, source.path)
            return {"added": source.name, "file": str(source.path)}
        if remove_flag.value:
            source = found.remove(remove_flag.value)
            logger.info("removed %r: %s is deleted", source.name, source.path)
            return {"removed": source.name, "file": str(source.path)}
        if merge_flag.value:
            if found.config.sinks.traits.by_context:
                raise InputError(
                    f"{folder} has sinks by context, which are no part of a plain model's weights; "
                    "memsinks_jax.export --sinks=keep puts its sources together"
                )
            from memsinks_jax.models.exporting import export  # brings jax

            command_line.require(out_flag)
            names = _named(found, merge_flag.value)
            return export(
                folder, pathlib.Path(out_flag.value), True, dtype_flag.value, groups=names
            )
        return _listing(found)

    command_line.run(run)


if __name__ == "__main__":
    main()
