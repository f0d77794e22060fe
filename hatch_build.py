"""What a build adds: the description for a package index, from README.md, and the C module.

Without a C compiler the module is left out, and Replicax uses Python in its place.
"""

import re
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
        """Compile the C module next to its source, and make it part of the wheel."""
        if self.target_name != "wheel":
            return
        source = "src/replicax/_native/_warm.c"
        extension = Extension("replicax._native._warm", [str(Path(self.root, source))], optional=True)
        command = build_ext(Distribution({"name": "replicax", "ext_modules": [extension]}))
        command.build_lib = str(Path(self.root, "src"))
        command.build_temp = str(Path(self.root, "build", "native"))
        command.ensure_finalized()
        built = Path(command.get_ext_fullpath(extension.name))
        built.unlink(missing_ok=True)
        command.run()
        if built.exists():
            build_data["artifacts"].append(str(built.relative_to(self.root)))
            build_data["pure_python"], build_data["infer_tag"] = False, True
        else:
            self.app.display_warning("Replicax is built without its C module; see the messages above.")
