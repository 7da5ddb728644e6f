"""Parts that all commands share: the effective configuration, and places to write to that are tried before the work."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

import click

from jbi_pubsub.core.config import Config, Origins, default_file, load
from jbi_pubsub.core.errors import ConfigurationError, LookupNotFoundError, UnknownUidError

from .near import told

SILENT_SECONDS: Final = 1.5
"""Longest that a command says nothing while it looks for others: with a lookup service there it takes a tenth."""

FOUND_SECONDS: Final = 2.0
"""For a lookup service that is there to be found."""
NEAR_SECONDS: Final = 1.0
"""For a lookup service to know a node that the node of this host hears."""


class CommandSettings:
    """Loads the configuration once; commands may add flags of their own."""

    def __init__(self, file: str | None, flags: Mapping[str, object], node: str = "") -> None:
        """`node`: the name of the one that is meant; "" for none."""
        self._file = file
        self._flags = dict(flags)
        self._node = node
        self._is_for_node = False
        self._at = ""
        """Where the node is, once it was looked for."""
        self.looks_there = False
        """The command looks at all that the node's own lookup service knows."""

    def words(self) -> list[str]:
        """The command line that gives another `jbi` the same."""
        texts = {k: ",".join(map(str, v)) if isinstance(v, list | tuple) else v for k, v in self._flags.items()}
        given = [word for key, value in texts.items() for word in ("--set", f"{key}={_word(value)}")]
        return [*(["--config", self._file] if self._file else []), *given]

    def load(self, **own: object) -> Config:
        """The configuration with `own` flags (section__key=value, None for not given) on top."""
        return self.explain(**own)[0]

    def load_within(self, seconds: float | None) -> Config:
        """The same; `seconds`, if they are given, bound the wait for a lookup service, but for the time that it takes
        to find one, and so the look for a node that was named."""
        if seconds is not None:
            timeout = self._loaded({})[0].lookup.timeout
            self._flags["lookup.timeout"] = min(timeout, max(seconds, FOUND_SECONDS))
        return self.load()

    def explain(self, **own: object) -> tuple[Config, Origins]:
        """The same with the origin of each value. Raises ConfigurationError also for a node that was named to a command
        that has not asked for it."""
        if self._node and not self._is_for_node:
            if not self.looks_there:
                raise ConfigurationError(
                    f"--node {self._node}: this command asks no single node, or was told whom to ask",
                    hint="It goes with commands that look, publish or subscribe, instead of --at and --delegate",
                )
            self._look_there()
        return self._loaded(own)

    def _loaded(self, own: Mapping[str, object]) -> tuple[Config, Origins]:
        flags = self._flags | {k.replace("__", "."): v for k, v in own.items() if v is not None}
        file = Path(self._file) if self._file else default_file(os.environ)
        return load(file=file, environment=os.environ, flags=flags)

    def node(self) -> str:
        """The name of the node that is meant, "" for none: requests go there."""
        self._is_for_node = True
        return self._node

    def node_at(self) -> str | None:
        """Its address, as host:port; None where none is meant. Raises UnknownUidError with the nearest name,
        LookupNotFoundError."""
        name = self.node()
        if name and not self._at:
            self._at = self._found(name, self.load())
        return self._at or None

    def _found(self, name: str, config: Config) -> str:
        """By a lookup service, or else by the networks of the node of this host."""
        from jbi_pubsub.node.reaching import is_id, near_node

        near = near_node(config)
        names = near.names() if near is not None else ()
        try:
            found = nodes(config, NEAR_SECONDS if name in names else None)
        except LookupNotFoundError:
            if not names:
                raise
            found = {}
        if name in found:
            return self._living(name, found[name], config)
        if near is None or not (name in names or is_id(name)):
            raise UnknownUidError(told("node", name, (*found, *names)), hint="`jbi services` lists all nodes")
        endpoints, locators = near.reach(name)
        self._flags |= {"lookup.locators": list(locators), "lookup.multicast": False}
        return endpoints[0]

    @staticmethod
    def _living(name: str, addresses: list[str], config: Config) -> str:
        from jbi_pubsub.core.wire import ServiceRef
        from jbi_pubsub.core.wire.dial import is_gone

        first, *others = addresses
        if others:  # one that was killed and is back is held twice
            security = config.security()
            first, *others = [at for at in addresses if not is_gone(ServiceRef("", "", (at,)), security)] or addresses
        if others:
            raise UnknownUidError(
                f"{1 + len(others)} nodes are called {name}",
                hint=f"They are at {first}, {others[0]}: name one by --at, or give one another [node] name",
            )
        return first

    def _look_there(self) -> None:
        """Have lookup services of the node be those that are asked. Raises what `node_at` does, WireError."""
        from jbi_pubsub.node.admin import NodeProxy

        at = self.node_at()
        assert at is not None
        config = self.load()
        with closing(NodeProxy(at, config.security(), timeout=config.lookup.timeout)) as node:
            lookup = node.details().lookup
        if lookup:  # without one of its own it is found through those that were asked
            self._flags |= {"lookup.locators": [lookup], "lookup.multicast": False}


def nodes(config: Config, seconds: float | None = None) -> dict[str, list[str]]:
    """Addresses of the nodes that lookup services know, by name; `seconds` for one of these to be there (default
    [lookup] timeout). Raises LookupNotFoundError."""
    from jbi_pubsub.lookup.client.join import JoinManager  # here: most commands look for nobody, or otherwise
    from jbi_pubsub.lookup.client.proxy import EVERYTHING
    from jbi_pubsub.lookup.item import ServiceTemplate
    from jbi_pubsub.node.service import NodeEntry

    with closing(JoinManager(config, name="jbi")) as community, looking(config, "nodes"):
        items = community.lookup(ServiceTemplate(entries=(NodeEntry().rep(),)), EVERYTHING, timeout=seconds)
    found: dict[str, list[str]] = {}
    for item in items:
        rep = next(each for each in item.entries if each.cls.name == NodeEntry.entry_name)
        at = next((each for each in item.proxy.endpoints if "/" not in each), "")
        name = NodeEntry.from_rep(rep).name
        if at and name and at not in found.setdefault(name, []):  # one that was killed and is back is listed twice
            found[name].append(at)
    return found


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


pass_settings = click.make_pass_decorator(CommandSettings)


def places(config: Config) -> str:
    """Places where lookup services are looked for, for people."""
    return ", ".join((*config.lookup.locators, *(["by mDNS"] if config.lookup.multicast else []))) or "nowhere"


@contextmanager
def looking(config: Config, what: str = "a lookup service") -> Iterator[None]:
    """Around a wait for others: when it takes longer than people expect, they are told where is looked."""

    def say() -> None:
        click.echo(f"jbi: looking for {what} ({places(config)}), {config.lookup.timeout:g} s at most", err=True)

    timer = threading.Timer(SILENT_SECONDS, say)
    timer.name, timer.daemon = "jbi-looking", True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


@contextmanager
def blamed(what: str, hint: str = "") -> Iterator[None]:
    """Around what an option or file is used for: an OSError or ValueError is its fault. Raises ConfigurationError."""
    try:
        yield
    except (OSError, ValueError) as exc:
        raise ConfigurationError(f"{what}: {getattr(exc, 'strerror', None) or exc}", hint=hint) from exc


def try_folder(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """A folder to write to, made and tried before the work, but not while a shell completes what is typed. Raises
    ConfigurationError."""
    if path is not None and not context.resilient_parsing:
        _tried(parameter, path, path)
    return path


def try_file(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """A file to write, whose folder is tried before the work, as above. Raises ConfigurationError."""
    if path is not None and not context.resilient_parsing:
        if path.exists() and not os.access(path, os.W_OK):
            raise ConfigurationError(f"{parameter.opts[0]} {path}: can't be written by this user")
        _tried(parameter, path, path.parent)
    return path


def _tried(parameter: click.Parameter, path: Path, folder: Path) -> None:
    with blamed(f"{parameter.opts[0]} {path}", hint="Name a place that can be written"):
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
