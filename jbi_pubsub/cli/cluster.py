"""Options of all studies for Spark: whose, with what settings, and how to go on; and where results may lie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.spark import session
from jbi_pubsub.spark.cluster import check_master, submit_command

from .options import Arguments, flag, option, repeated
from .settings import try_folder

RESUME: Final = flag("Continue after the stages that an interrupted run has finished.")


class _ResultFolder(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in some releases of click
    """A folder of this machine, or the URL of one on a Hadoop file system."""

    name = "folder"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:  # noqa: ARG002  # click's form
        """A Path, or the URL as it is."""
        text = str(value)
        if text.startswith("file:"):
            return Path("/" + text.removeprefix("file:").lstrip("/"))
        return text if "://" in text else Path(text)


def place_option(default: str) -> Any:
    """--out of a study that can write anywhere."""

    def tried(context: click.Context, parameter: click.Parameter, value: Path | str) -> Path | str:
        if isinstance(value, Path) and not context.params.get("print_submit"):
            try_folder(context, parameter, value)
        return value

    return option(
        "Folder for the result, also of a Hadoop file system.", "--out", type=_ResultFolder(), metavar="FOLDER|URL",
        shown=default, callback=tried
    )  # fmt: skip


class ClusterArguments(Arguments):
    """Spark's master and settings."""

    master: str = option("Spark's master; without one, this machine.", default="", metavar="URL")
    confs: tuple[str, ...] = repeated("A setting of Spark; repeatable.", "--conf", metavar="KEY=VALUE")
    print_submit: bool = flag("Print the spark-submit command, and end.", is_eager=True)

    @property
    def conf(self) -> dict[str, str]:
        """Spark's settings by --conf. Raises ConfigurationError."""
        return dict(map(_pair, self.confs))

    def is_submitted(self) -> bool:
        """Whether the command to submit is all that is wanted: it is printed. Raises ConfigurationError."""
        conf = self.conf
        check_master(self.master)
        if self.print_submit:
            context = click.get_current_context()
            name = f"jbi study {context.command.name}"
            click.echo(submit_command(_arguments(context), name=name, master=self.master, settings=conf))
        elif (self.master or conf) and getattr(self, "engine", "") == "local":
            raise ConfigurationError("--master and --conf are Spark's, and --engine local is without Spark")
        return self.print_submit


@contextmanager
def written_to(out: Path | str, *, name: str, master: str, settings: Mapping[str, str]) -> Iterator[Path]:
    """The folder to write to: `out` itself, or one whose content is put there when all is in it."""
    if isinstance(out, Path):
        yield out
        return
    with session.open_session(name, extra=settings, master=master) as spark:
        session.check_remote(spark, out)
        with TemporaryDirectory(prefix="jbi-study-") as folder:
            yield Path(folder)
            session.upload(spark, Path(folder), out)


def _pair(conf: str) -> tuple[str, str]:
    key, equals, value = conf.partition("=")
    if not equals or not key.startswith("spark."):
        raise ConfigurationError(f"--conf {conf}: no KEY=VALUE of Spark", hint="--conf spark.driver.memory=8g")
    return key, value


def _arguments(context: click.Context) -> list[str]:
    """The command's own words, without those that become spark-submit's, on Spark, with paths from the root."""
    words = ["study", str(context.command.name)]
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.name in {"master", "confs", "print_submit", "engine"}:
            continue
        text = str(value.absolute()) if isinstance(value, Path) else str(value)
        if isinstance(parameter, click.Argument):
            words.append(text)
        elif value is True:
            words.append(parameter.opts[0])
        elif value is not None and value is not False:
            words += [parameter.opts[0], text]
    if any(parameter.name == "engine" for parameter in context.command.params):
        if context.params.get("engine") == "local":
            raise ConfigurationError("--engine local is without Spark: there is nothing to submit")
        words += ["--engine", "spark"]
    return words
