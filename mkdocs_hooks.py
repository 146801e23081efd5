"""Puts what the pages link to outside of ``docs/`` into the site: every link leads somewhere without a network."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent
SOURCES = "sources"
_OUTSIDE = re.compile(r"\]\(\.\./(?P<path>[^)#]*)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages of ``docs/index.md`` that ``nav`` does not name: a new page is listed once."""
    listed = re.findall(r"\]\(([^)#/]+\.md)\)", (ROOT / "docs" / "index.md").read_text())
    nav = config.nav or []
    if more := [page for page in listed if f"'{page}'" not in str(nav)]:
        config.nav = [*nav, {"More": more}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add each file of the repository that a page links to, as it is; pages of Markdown are read as text too."""
    pages = [file.content_string for file in files.documentation_pages()]
    for path in sorted({path for page in pages for path in _OUTSIDE.findall(page)}):
        content = (ROOT / path).read_text()
        file = File.generated(config, f"{SOURCES}/{path}.txt", content=content, inclusion=InclusionLevel.NOT_IN_NAV)
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Send links that leave ``docs/`` to those files."""
    return _OUTSIDE.sub(rf"]({SOURCES}/\g<path>.txt", markdown)
