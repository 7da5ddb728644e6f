"""docs/signatures.md, run as it is written: four processes with TLS files of their own."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority

TOP = Path(__file__).parent.parent.parent
PAGE = (TOP / "docs" / "signatures.md").read_text()
FILES = dict(re.findall(r"`(\w+\.toml)`:\n\n```toml\n(.*?)```", PAGE, re.DOTALL))
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [shlex.split(line) for line in "".join(BLOCKS).splitlines()]


@pytest.mark.processes
def test_the_commands_of_the_page_deliver_a_signed_object(
    tmp_path: Path, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given the page's three files, each with a certificate of its own
    authority = Authority(tmp_path, "authority")
    names = {name: name.removesuffix(".toml") for name in FILES}
    assert set(names.values()) == {"server", "sensor", "desk"}
    for number, (file, name) in enumerate(names.items()):
        authority.issue(name, number=number)
        text = re.sub(r'"(\w+\.(pem|key))"', rf'"{tmp_path}/\1"', FILES[file])
        (tmp_path / file).write_text(f'{text}server_names = ["*"]\n[lookup]\nmulticast = false\ngroups = [""]\n')
    monkeypatch.delenv("JBI_CONFIG")
    lookup, pad, subscribe, publish = [command[1:] for command in COMMANDS]

    def run(words: list[str]) -> Any:
        """A command of the page, its files and the port in places of this test."""
        words = [str(tmp_path / word) if word in names else word for word in words]
        return start(*(str(TOP / word) if word.startswith("examples/") else word for word in words), "--json")

    # When its commands run, one after the other
    monkeypatch.setenv("JBI_LOOKUP_PORT", "0")
    monkeypatch.setenv("JBI_LOOKUP_LOCATORS", "")
    address = run(lookup).fact()["address"]
    monkeypatch.setenv("JBI_LOOKUP_LOCATORS", address)
    delegate = run(pad)
    delegate.fact()
    subscriber = run(subscribe)
    told = run([*publish, "--subscribers", "1"])

    # Expect the subscriber to show who has signed
    assert subscriber.fact()["signed_by"] == "sensor"
    assert told.wait() == 0, told.stderr()
    assert subscriber.wait() == 0, subscriber.stderr()

    # When somebody looks at what is registered while a publisher stays
    staying = run([*publish, "--count", "1000", "--interval", "0.5"])

    def services() -> str:
        said = str(start("--config", str(tmp_path / "desk.toml"), "services").communicate()[0])
        return said if "SigningKey" in said else ""

    # Expect the key to be shown, and not the kilobytes that prove it
    shown = eventually(services)
    assert re.search(r"SigningKey\(key=[\w+/]{43}=\)", shown), shown
    assert len(shown) < 2_000
    staying.end()

    # When somebody publishes without signing
    file = tmp_path / "sensor.toml"
    file.write_text(file.read_text().replace("sign = true", "sign = false"))
    refused = run(publish)

    # Expect one line that says why not, and how to mend it
    assert refused.wait() != 0
    assert re.search(r"does not sign\. .*\[tls\] sign", refused.stderr()), refused.stderr()
    assert "Traceback" not in refused.stderr()


@pytest.mark.processes
def test_a_command_that_can_t_sign_says_so_in_a_line(start: Callable[..., Any]) -> None:
    words = next(command for command in COMMANDS if "publish" in command)
    files = [str(TOP / word) if word.startswith("examples/") else word for word in words[3:]]
    process = start("--set", "tls.sign=true", *files)
    assert process.wait() == 2
    assert "[tls] sign needs certificate, key and ca" in process.stderr()
    assert "Traceback" not in process.stderr()
