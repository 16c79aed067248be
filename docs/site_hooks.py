"""Hooks of the documentation's site (mkdocs.yml): pages from outside docs/, links, the reference.

Pages are plain Markdown whose links work in the repository. On the site, README.md is the first
page, other pages of the repository's root keep their names, a link whose text is the name of a page
has the page's title instead, a picture leads to itself at its full size, and a link to a file of
the source becomes its text. A link to a file that does not exist fails the build.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

import rl_sync

ROOT = Path(__file__).resolve().parents[1]
FROM_ROOT = {"README.md": "index.md"} | {
    name: name for name in ("BUILD.md", "EVIDENCE.md", "CONTRIBUTING.md", "CHANGELOG.md")
}
REFERENCE = "reference.md"
# Code is found first, so that brackets in it are no links: blocks, indented blocks, and in a line.
_CODE_OR_LINK = re.compile(
    r"^```.*?^```|^    [^\n]*|(?P<link>\[(?P<text>[^\[\]]*)\]\((?P<target>[^()\s]+)\))|`[^`\n]*`",
    re.DOTALL | re.MULTILINE,
)
_PAGE_NAME = re.compile(r"[\w/.-]+\.md")
_PICTURE = re.compile(r"^!\[[^\]]*\]\(([^)\s]+)\)$", re.MULTILINE)
_slug = slugify(case="lower")
_ELSEWHERE = re.compile(r"[a-z]+:|#")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of the repository's root, and the reference."""
    for name, page in FROM_ROOT.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    files.append(File.generated(config, REFERENCE, content=reference()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Returns a page whose links work on the site."""
    page_path = page.file.src_uri
    from_root = {page: name for name, page in FROM_ROOT.items()}
    linked = site_links(markdown, from_root.get(page_path, f"docs/{page_path}"), page_path)
    return _PICTURE.sub(r"[\g<0>](\g<1>)", linked)


def site_links(markdown: str, source: str, page: str) -> str:
    """Rewrites links between files of the repository.

    Args:
      markdown: the text of a page.
      source: its path in the repository.
      page: its path among the pages of the site.

    Raises:
      PluginError: a link leads to a file that does not exist.
    """

    def rewritten(found: re.Match[str]) -> str:
        if found["link"] is None or _ELSEWHERE.match(found["target"]):
            return found[0]
        path, hash_sign, anchor = found["target"].partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if not (ROOT / path).exists():
            raise PluginError(f"{source} links to {found['target']}, which does not exist.")
        if path.startswith("docs/") or path in FROM_ROOT:
            there = FROM_ROOT.get(path, path.removeprefix("docs/"))
            there = posixpath.relpath(there, posixpath.dirname(page) or ".")
            text = found["text"]
            if _PAGE_NAME.fullmatch(text):
                text = title(path, anchor)
            return f"[{text}]({there}{hash_sign}{anchor})"
        return found["text"]

    return _CODE_OR_LINK.sub(rewritten, markdown)


def title(path: str, anchor: str = "") -> str:
    """Returns the heading of a page, or of a part of it.

    Args:
      path: of the page, from the repository's root.
      anchor: of the part; empty for the page.
    """
    headings = re.findall(r"^#+ +(.+?)\s*$", (ROOT / path).read_text(), re.MULTILINE)
    of_part = [one for one in headings if anchor and _slug(one, "-") == anchor]
    return (of_part or headings)[0].replace("`", "")


def reference() -> str:
    """Returns the page of all public names, for mkdocstrings to fill in."""
    page = ["# Python interface", f"Version {rl_sync.__version__}. [Examples](python.md)."]
    page += [f"::: rl_sync.{name}" for name in rl_sync.__all__]
    return "\n\n".join(page) + "\n"
