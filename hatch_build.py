"""Makes the description for a package index from README.md, without links that would be broken there."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

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
