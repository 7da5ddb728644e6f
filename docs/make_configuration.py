"""Prints docs/configuration.md from the sections' own defaults and docstrings: run it when a setting changes."""

from __future__ import annotations

import ast
import inspect

import msgspec

from jbi_pubsub.core import config

HEAD = """\
# Configuration

Defaults, one TOML file, `JBI_*` variables, flags: each overrides those before it. `jbi config` shows every setting, its
effective value and where it comes from; a misspelt key is an error that names the nearest one.

The file is the one given with `--config` or `JBI_CONFIG`, else `./jbi.toml`, else `~/.config/jbi/jbi.toml`. A variable
is `JBI_<SECTION>_<KEY>`, a flag `--set section.key=value`; lists are separated by commas there.

```toml
[lookup]
locators = ["lookup.example.org:4160"]
groups = ["lab"]

[lease]
subscriber = 20.0      # seconds; renewed at 2/5 of the term

[mail]
host = "mail.example.org"
start_tls = "required"

[tls]
certificate = "/etc/jbi/node.pem"
key = "/etc/jbi/node.key"
ca = "/etc/jbi/ca.pem"
```

## Plug-ins

A distribution that is installed beside this one can add to it by entry points of the group `jbi_pubsub.plugins`. There
is nothing to configure; what can't be loaded is told in the log and left out.

```toml
[project.entry-points."jbi_pubsub.plugins"]
"language.word" = "acme.words:compile"
"transport.pipe" = "acme.pipes:connect"
```

- `language.NAME`: `compile(expression, namespaces)` gives a function from the metadata's document element (lxml) to
  bool, or raises ValueError for an expression that it refuses. Used by `register_subscriber(language="NAME")`. It has
  to be installed with subscribers, delegates and peer publishers: a delegate that does not have it refuses the
  subscription, which is told as the loss `refused`. `jbi pad --json` says which languages it has.
- `transport.NAME`: `connect(address, timeout)` gives a connected stream socket, or raises OSError. Used for endpoints
  `NAME://address` of registered services; `unix` is built in (`[pad] sockets`). Not with `[tls]`.
"""


def page() -> str:
    """The whole page."""
    tree = ast.parse(inspect.getsource(config))
    sections = [c for c in tree.body if isinstance(c, ast.ClassDef) and c.name.endswith("Section") and c.name[0] != "_"]
    return HEAD + "".join(f"\n{_section(section)}" for section in sections)


def _section(section: ast.ClassDef) -> str:
    name = section.name.removesuffix("Section").lower()
    meanings = _meanings(section)
    rows = [
        f"| {f.name} | `{f.default!r}` | {meanings[f.name]} |"
        for f in msgspec.structs.fields(getattr(config, section.name))
    ]
    head = [f"## [{name}]", "", ast.get_docstring(section) or "", "", "| key | default | meaning |", "|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def _meanings(section: ast.ClassDef) -> dict[str, str]:
    found: dict[str, str] = {}
    for statement, following in zip(section.body, [*section.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = following.value if isinstance(following, ast.Expr) else None
            found[statement.target.id] = " ".join(str(ast.literal_eval(text)).split()) if text else ""
    return found


if __name__ == "__main__":
    print(page(), end="")
