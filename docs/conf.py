"""The documentation's site: `make docs` writes it to build/docs. Nothing is fetched when it is built."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

import msgspec
from sphinx.application import Sphinx

HERE: Final = Path(__file__).parent
sys.path.insert(0, str(HERE))

from make_reference import PAGES  # noqa: E402  # beside this file

from jbi_pubsub import Config, __version__  # noqa: E402

project = "jbi-pubsub"
author = "the authors of jbi-pubsub"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"jbi-pubsub {__version__}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = html_show_sphinx = html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}
highlight_language = "text"
pygments_style = "friendly"
pygments_dark_style = "github-dark"

myst_heading_anchors = 4
smartquotes = False  # `--option` in a text stays what it is

default_role = "code"  # docstrings are plain text with `backticks`
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_maximum_signature_line_length = 130
add_module_names = False

BOUNDS: Final = re.compile(r"(?:typing\.)?Annotated\[(\w+), (?:msgspec\.)?Meta\([^)]*\)\]")
MADE: Final = re.compile(r"^<!-- made: (\w+) -->$", re.MULTILINE)


def _made(app: Sphinx, name: str, content: list[str]) -> None:  # noqa: ARG001  # Sphinx's form
    """Puts what is made of the code in the place of `<!-- made: NAME -->`."""
    content[0] = MADE.sub(lambda found: PAGES[found[1]](), content[0])


def _signature(
    app: Sphinx,  # noqa: ARG001  # Sphinx's form
    what: str,  # noqa: ARG001
    name: str,  # noqa: ARG001
    found: object,
    options: object,  # noqa: ARG001
    signature: str | None,
    returned: str | None,
) -> tuple[str | None, str | None]:
    """A signature for people: no bounds of values, and of the configuration its sections."""
    if found is Config:
        sections = ", ".join(f"{each.name}: {each.type.__name__}" for each in msgspec.structs.fields(Config))
        return f"(*, {sections})", returned
    return BOUNDS.sub(r"\1", signature or "") or signature, returned


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _made)
    app.connect("autodoc-process-signature", _signature)
