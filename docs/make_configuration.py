"""Prints docs/configuration.md from the sections' own defaults and docstrings: run it when a setting changes."""

from __future__ import annotations

import ast
import inspect
import json

import msgspec

from jbi_pubsub.core import config, node_sections

HEAD = """\
# Configuration

This page lists all settings, with their defaults and meanings. `jbi config` shows every setting of a process, its value
and its origin. A later source overrides an earlier one: defaults, one TOML file, variables, options of the command.
A misspelt key is an error that names the nearest key.

- The **file** is the one given by `--config` or `JBI_CONFIG`, otherwise `./jbi.toml`, otherwise `~/.config/jbi/jbi.toml`.
- A **variable** is `JBI_<SECTION>_<KEY>`. Lists are separated by commas.
- An **option** is `--set section.key=value`. Lists are separated by commas.

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

An installed distribution can extend the product by entry points of the group `jbi_pubsub.plugins`, without a setting. A
plug-in that can't be loaded is reported in the log and left out.

```toml
[project.entry-points."jbi_pubsub.plugins"]
"language.word" = "acme.words:compile"
"transport.pipe" = "acme.pipes:connect"
"types.ldap" = "acme.ldap:catalogue"
```

- `language.NAME`: `compile(expression, namespaces)` returns a function from the metadata's document element (lxml) to
  bool; ValueError refuses the expression. Used for: `register_subscriber(language="NAME")`.
- `transport.NAME`: `connect(address, timeout)` returns a connected stream socket, or raises OSError. Used for:
  endpoints `NAME://address` of registered services; `unix` is built in (`[pad] sockets`). Not with `[tls]`.
- `types.NAME`: `catalogue(address)` returns a `codegen.types.catalogue.TypeCatalogue`. Used for: [type
  repository](types.md) of a delegate with `[types] folder = "NAME://address"`.
- `store.NAME`: `store(address)` returns a `pad.past.store_protocol.Keeping`. Used for: [archive](archive.md) of a
  delegate with `[archive] folder = "NAME://address"`.
- `access.NAME`: `policy(address, component)` returns a `core.access.AccessPolicy`; with `login`
  (`core.access.Accounts`) it checks passwords as well. Used for: access policy of a server with `[policy] file =
  "NAME://address"`.
- `platform.NAME`: `platform(name, table, bridge)` returns a `bridge.platform.Platform`; the arguments are the side's
  name, its table and the bridge's id. Used for: side `[side.X]` of a [bridge](bridge.md) with `kind = "NAME"`.
- `network.NAME`: `link(name, section)` returns a `network.links.link.DatagramLink`. Used for: network `[network.X]` of
  a [node](network.md) with `plugin = "NAME"`.
- `bridge.NAME`: `described(path, document)` returns a `bridge.file.Described`; the arguments are the file's path and
  its content. Used for: bridge whose sides are both of `kind = "NAME"`.

Install a language with subscribers, delegates and peer publishers. A delegate without it refuses the subscription, which
is reported as the loss `refused`. `jbi pad --json` lists the languages of a delegate. If a setting names a plug-in that is
not installed, the process does not start, and names the nearest one.
"""


TAIL = """\

## TLS between hosts

Set certificate, key and authority for every party; [TLS](tls.md) shows how to make them. Control and data plane then use
TLS 1.2 or later, and each end shows a certificate of the other's `ca`. The first name in a client's certificate is its
identity: for the access policy, and for its share of a server's connections (three quarters at most; without TLS its
address has that share).

**Certificates of servers** (after RFC 9525). A service that was found in a lookup service must show the certificate whose
SHA-256 is listed there; its names do not count. A server that was found by its address, by a locator or by mDNS must show
one that is issued for that address: by a DNS name (the first label may be `*`) or an IP address in its subjectAltName. A
client's certificate is therefore useless for a false lookup service. For certificates that do not name the address, or
have only a common name, list the names at the clients:

```toml
[tls]
server_names = ["lookup", "*.servers.example.org"]  # any name in the certificate, the common name too
# server_names = ["*"]                               # every certificate of the authority, whoever it was issued for
```

**Dates.** A server does not start with a certificate that has expired, is not valid yet, or is not made for servers.
In the last 30 days it warns in its log. An expired client certificate is refused by the other end.

**Refusals.** Both ends learn the reason. The server logs it in one line, each address and reason once a minute:

| message | correction |
|---|---|
| TLS: the certificate shown is not valid: certificate has expired | renew the certificate of the other end |
| TLS: the certificate shown is not valid: unable to get local issuer certificate | `ca` here is not its authority |
| TLS: the other side says that our certificate has expired, or is not valid yet | renew ours; look at the clocks |
| TLS: the other side does not know the authority of our certificate | set `ca` there to our authority |
| TLS: the other side asks for a certificate | set `certificate` and `key` here |
| ... shows a certificate for NAMES, not for HOST | issue it for that address, or set `server_names` |
| the other side does not speak TLS; the other side speaks TLS, and we do not | set [tls] at both ends, or at none |
"""


def page() -> str:
    """The whole page."""
    trees = [ast.parse(inspect.getsource(module)) for module in (config, node_sections)]
    classes = [c for tree in trees for c in tree.body if isinstance(c, ast.ClassDef)]
    sections = [c for c in classes if c.name.endswith("Section")]
    return HEAD + "".join(f"\n{_section(section)}" for section in sections) + TAIL


def _section(section: ast.ClassDef) -> str:
    name = section.name.removesuffix("Section").lower()
    name = f"{name}.NAME" if name == config.NETWORK else name
    meanings = _meanings(section)
    rows = [
        f"| {f.name} | `{json.dumps(f.default, ensure_ascii=False)}` | {meanings[f.name]} |"
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
