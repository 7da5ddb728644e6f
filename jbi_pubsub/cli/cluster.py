"""What all studies are asked about Spark: whose, with what settings, and how to go on; and where results may lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.spark import session
from jbi_pubsub.spark.cluster import check_master, submit_command

from .settings import try_folder

resume_option: Final = click.option(
    "--resume", is_flag=True, help="Go on from the stages that an interrupted run has finished."
)


class _Place(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in some releases of click
    """A folder of this machine, or the URL of one on a Hadoop file system."""

    name = "folder"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:  # noqa: ARG002  # click's form
        """A Path, or the URL as it is."""
        text = str(value)
        if text.startswith("file:"):
            return Path("/" + text.removeprefix("file:").lstrip("/"))
        return text if "://" in text else Path(text)


def place_option(default: str) -> Callable[[Any], Any]:
    """--out of a study that can write anywhere."""

    def tried(context: click.Context, parameter: click.Parameter, value: Path | str) -> Path | str:
        if isinstance(value, Path) and not context.params.get("print_submit"):
            try_folder(context, parameter, value)
        return value

    return click.option(
        "--out", type=_Place(), metavar="FOLDER|URL", default=default, show_default=True, callback=tried,
        help="Folder for the result, also of a Hadoop file system.",
    )  # fmt: skip


def on_clusters(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --master, --conf and --print-submit; the command gets `master` and `settings`."""

    @click.option("--master", default="", metavar="URL", help="Spark's master; without one, this machine.")
    @click.option("--conf", "confs", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; repeatable.")
    @click.option("--print-submit", is_flag=True, is_eager=True, help="Print the spark-submit command, and end.")
    @click.pass_context
    @wraps(command)
    def asked(
        context: click.Context, /, *args: Any, master: str, confs: tuple[str, ...], print_submit: bool, **given: Any
    ) -> Any:
        settings = dict(map(_pair, confs))
        check_master(master)
        if print_submit:
            name = f"jbi study {context.command.name}"
            click.echo(submit_command(_arguments(context), name=name, master=master, settings=settings))
            return 0
        if (master or settings) and given.get("engine") == "local":
            raise ConfigurationError("--master and --conf are Spark's, and --engine local is without Spark")
        return context.invoke(command, *args, master=master, settings=settings, **given)

    return asked


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
