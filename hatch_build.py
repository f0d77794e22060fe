"""What a build adds: the description for a package index, from README.md, and the C module.

Without a C compiler the module is left out, and Replicax uses Python in its place.
"""

import os
import re
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext

IMAGE = re.compile(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n\n", re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]*\)")


def description(readme: str) -> str:
    """The README without pictures of the repository, and with the text of links into it."""
    return LINK.sub(r"\1", IMAGE.sub("", readme))


class ReadmeHook(MetadataHookInterface):
    """Hatchling finds it by `tool.hatch.metadata.hooks.custom` in pyproject.toml."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description of the package."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": description(text)}


class NativeHook(BuildHookInterface[Any]):
    """Hatchling finds it by `tool.hatch.build.hooks.custom` in pyproject.toml."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the C module; an editable installation finds it next to its source."""
        if self.target_name != "wheel":
            return
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        source = Path(self.root, "src/replicax/_native/_warm.c")
        try:
            built = compiled(source, self._folder.name)
            if version == "editable":
                replace(source.with_name(built.name), built)
            else:
                build_data["force_include"][str(built)] = f"replicax/_native/{built.name}"
                build_data["pure_python"], build_data["infer_tag"] = False, True
        except OSError as error:
            self.app.display_warning(f"Replicax is built without its C module: {error}")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the folder that it was compiled in."""
        if self.target_name == "wheel":
            self._folder.cleanup()


def replace(old: Path, new: Path) -> None:
    """Replace a file in one operation: overwriting a loaded module crashes the processes that use it."""
    copy = Path(shutil.copy(new, old.with_name(f"{old.name}.new")))
    os.replace(copy, old)


def compiled(source: Path, folder: str) -> Path:
    """The module compiled in `folder`; raises FileNotFoundError if that fails."""
    checksum = [("SOURCE_CHECKSUM", f"{zlib.crc32(source.read_bytes())}L")]
    extension = Extension("replicax._native._warm", [str(source)], define_macros=checksum, optional=True)
    command = build_ext(Distribution({"name": "replicax", "ext_modules": [extension]}))
    command.build_lib, command.build_temp = folder, folder
    command.ensure_finalized()
    command.run()
    built = Path(command.get_ext_fullpath(extension.name))
    if not built.exists():
        raise FileNotFoundError("the C compiler failed; see the messages above.")
    return built
