"""Prints docs/configuration.md from the sections' own defaults and docstrings: run it when a setting changes."""

from __future__ import annotations

import ast
import inspect

import msgspec

from jbi_pubsub.core import config, node_sections

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
"types.ldap" = "acme.ldap:catalogue"
```

- `language.NAME`: `compile(expression, namespaces)` gives a function from the metadata's document element (lxml) to
  bool, or raises ValueError for an expression that it refuses. Used by `register_subscriber(language="NAME")`. It has
  to be installed with subscribers, delegates and peer publishers: a delegate that does not have it refuses the
  subscription, which is told as the loss `refused`. `jbi pad --json` says which languages it has.
- `transport.NAME`: `connect(address, timeout)` gives a connected stream socket, or raises OSError. Used for endpoints
  `NAME://address` of registered services; `unix` is built in (`[pad] sockets`). Not with `[tls]`.
- `types.NAME`: `catalogue(address)` gives a `codegen.types.catalogue.TypeCatalogue`, where a delegate with `[types]
  folder = "NAME://address"` keeps its [type repository](types.md).
- `store.NAME`: `store(address)` gives a `pad.past.store_protocol.Keeping`, where a delegate with `[archive] folder =
  "NAME://address"` keeps its [archive](archive.md).
- `access.NAME`: `policy(address, component)` gives a `core.access.AccessPolicy`, which a server with `[policy] file =
  "NAME://address"` asks; one that has `login` as well (`core.access.Accounts`) checks passwords.
- `platform.NAME`: `platform(name, table, bridge)` gives a `bridge.platform.Platform`, which a [bridge](bridge.md) has as
  its side `[side.X]` of `kind = "NAME"`: called with the side's name, its table and the bridge's id.
- `network.NAME`: `link(name, section)` gives a `network.links.link.DatagramLink`, which a [node](network.md) has as its
  network `[network.X]` of `plugin = "NAME"`.
- `bridge.NAME`: `described(path, document)` gives a `bridge.file.Described`, a bridge whose sides are both of `kind =
  "NAME"`: called with the file's path and what stands in it.

A name that a setting asks for and that is not installed ends the start, with the nearest name.
"""


TAIL = """\

## TLS between hosts

Set all three files at every party. Both planes then use TLS 1.2 or later, and each end shows a certificate of the
other's `ca`. The first name in a client's certificate is who it is: for the access policy, and for its share of a
server's connections (three quarters at most; without TLS its address has that share).

**Whose certificate a server may show** (after RFC 9525). A service that was found in a lookup service: the very one
whose SHA-256 is listed there, whatever its names. A server that was found by its address, by a locator or by mDNS: one
that is issued for that address, by a DNS name (the first label may be `*`) or an IP address in its subjectAltName. So a
certificate of a client is no use to stand as a lookup service elsewhere. Certificates that do not name the address, or
have nothing but a common name, are told of at the clients:

```toml
[tls]
server_names = ["lookup", "*.servers.example.org"]  # any name in the certificate, the common name too
# server_names = ["*"]                               # every certificate of the authority, whoever it was issued for
```

**Dates.** A server does not start with a certificate that has expired, is not valid yet, or is not made for servers,
and says so in its log when 30 days are left. Who connects later than that is refused by the other end.

**Who is refused is told why**, and the server logs it, in one line, each address and reason once a minute:

| said | mend |
|---|---|
| TLS: the certificate shown is no good: certificate has expired | renew the certificate of the other end |
| TLS: the certificate shown is no good: unable to get local issuer certificate | `ca` here is not its authority |
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
