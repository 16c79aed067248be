"""The site's links (docs/site_hooks.py). `.ci/run` builds the site."""

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from mkdocs.exceptions import PluginError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(name="hooks", scope="module")
def _hooks():
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs/site_hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("link", "source", "page", "expected"),
    [
        ("[a](docs/using.md#x)", "README.md", "index.md", "[a](using.md#x)"),
        ("[a](../README.md)", "docs/using.md", "using.md", "[a](index.md)"),
        ("[a](../../BUILD.md#x)", "docs/how-to/gpus.md", "how-to/gpus.md", "[a](../BUILD.md#x)"),
        ("![a](staleness.png)", "docs/staleness.md", "staleness.md", "![a](staleness.png)"),
        ("[`a.py`](../rl_sync/schedule.py)", "docs/using.md", "using.md", "`a.py`"),
        ("[docs/using.md](docs/using.md)", "README.md", "index.md", "[Using rl_sync](using.md)"),
        (
            "[using.md](../using.md#the-command-line)",
            "docs/how-to/task.md",
            "how-to/task.md",
            "[The command line](../using.md#the-command-line)",
        ),
        ("[a](https://b.c) [d](#e)", "README.md", "index.md", "[a](https://b.c) [d](#e)"),
        ("`f[x](y)` and\n    f[x](y)", "README.md", "index.md", "`f[x](y)` and\n    f[x](y)"),
    ],
)
def test_links_of_the_repository_lead_to_pages_of_the_site(hooks, link, source, page, expected):
    assert hooks.site_links(link, source, page) == expected


def test_no_link_of_the_site_shows_the_name_of_a_file(hooks):
    pages = [*ROOT.glob("docs/**/*.md"), *(ROOT / name for name in hooks.FROM_ROOT)]
    for path in pages:
        source = str(path.relative_to(ROOT))
        page = hooks.FROM_ROOT.get(source, source.removeprefix("docs/"))
        shown = hooks.site_links(path.read_text(), source, page)
        assert not re.findall(r"\[[\w/.-]+\.md\]\([^)]*\)", shown), path


def test_a_picture_leads_to_its_full_size(hooks):
    page = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"))
    shown = hooks.on_page_markdown("![A run](docs/staleness.png)\n\ntext", page)
    assert shown == "[![A run](staleness.png)](staleness.png)\n\ntext"


def test_a_link_to_a_file_that_does_not_exist_is_named(hooks):
    with pytest.raises(PluginError, match=r"README\.md links to docs/no\.md, which does not"):
        hooks.site_links("[a](docs/no.md)", "README.md", "index.md")


def test_the_reference_has_all_public_names(hooks):
    import rl_sync

    for name in rl_sync.__all__:
        assert f"\n::: rl_sync.{name}\n" in hooks.reference()
