"""docs/mail.md says what is so: its settings are taken, its commands do what stands beside them."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.core.config import MailSection, load
from jbi_pubsub.protocol.mail_links import check_base
from jbi_pubsub.web.unsubscribe import ADDRESS_BURST, ADDRESS_RATE, BURST, RATE

PAGE = (Path(__file__).parent.parent.parent / "docs" / "mail.md").read_text()


def blocks(language: str) -> list[str]:
    """The page's blocks of that language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_the_settings_of_the_page_are_taken(tmp_path: Path) -> None:
    [block] = blocks("toml")
    file = tmp_path / "jbi.toml"
    file.write_text(block)
    mail = load(file=file, environment={})[0].mail
    assert {name: getattr(mail, name) for name in tomllib.loads(block)["mail"]} == tomllib.loads(block)["mail"]
    assert check_base(mail.unsubscribe)
    # Expect the numbers that the text gives to be those of the code
    assert MailSection().reminder_seconds == 7_200
    told = (
        f"{ADDRESS_RATE:g} clicks a second are accepted ({ADDRESS_BURST} at once), from all {RATE:g} ({BURST} at once)"
    )
    assert told in " ".join(PAGE.split())


@pytest.mark.processes
def test_the_commands_of_the_page_do_what_stands_beside_them(start: Callable[..., Any], tmp_path: Path) -> None:
    # Given a lookup service, and the commands in their order, with a subscription's own id and a file of ours
    lookup = start("--no-multicast", "lookup", "--port", "0", "--json").fact()
    [block] = blocks("sh")
    uid = ""
    said: list[str] = []
    for line in block.splitlines():
        program, *arguments = shlex.split(line, comments=True)
        assert program == "jbi"
        given = [a.replace("alpha.db", str(tmp_path / "alpha.db")).replace("3f0c2a9be41d", uid[:12]) for a in arguments]
        given = ["0" if a == "8160" else a for a in given]
        process = start("--no-multicast", "--locator", lookup["address"], *given)
        if given[0] in ("pad", "web"):  # they go on
            assert re.match(r"delegate \(alpha, rome\)|console at http", process.stdout.readline())
            continue
        out, err = process.communicate()
        assert process.returncode == 0, line
        assert not err or (given[0] == "subscribe" and "nothing is published now" in err), err
        found = re.search(r"subscription-([0-9a-f]{32})", out)
        uid = found[1] if found and not uid else uid
        said.append(out)
    # Expect what they say
    made, listed, renewed, for_a_week, cancelled, status = said
    assert "at 1 delegate, lease 86400 s" in made
    assert "ops@example.org" in listed
    assert renewed == "renewed at 1 delegate, for 86400 s\n"
    assert for_a_week == "renewed at 1 delegate, for 604800 s\n"
    assert cancelled == "cancelled at 1 delegate\n"
    assert "alpha, rome" in status
    assert uid
