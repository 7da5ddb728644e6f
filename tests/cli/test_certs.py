"""`jbi certs`: what people type, and what they get."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.core.wire.x509 import certificates
from jbi_pubsub.trust.authority import Authority


def listed(said: Callable[..., Any], *options: str) -> dict[str, dict[str, Any]]:
    answer = said("certs", "list", "--json", *options)
    assert answer.code == 0, answer.err
    return {each["name"]: each for each in json.loads(answer.out)}


def test_an_authority_issues_lists_renews_and_revokes(said: Callable[..., Any], tmp_path: Path) -> None:
    # Given an authority; When a server's and a client's certificate are issued
    assert said("certs", "init").out.startswith("authority jbi-pubsub in certs, valid until ")
    made = said("certs", "issue", "alpha", "--address", "10.0.0.1", "--address", "alpha.example.org")
    assert "certificate of alpha (server) in certs/alpha" in made.out
    assert f'[tls]\nfolder = "{tmp_path / "certs" / "alpha"}"' in made.out
    bravo = json.loads(said("certs", "issue", "bravo", "--days", "5", "--json").out)
    assert (bravo["role"], bravo["folder"]) == ("client", "certs/bravo")
    # Expect both in the list, with what is asked for
    first = listed(said)
    assert {name: (e["role"], e["state"], e["addresses"]) for name, e in first.items()} == {
        "alpha": ("server", "valid", ["10.0.0.1", "alpha.example.org"]),
        "bravo": ("client", "valid", []),
    }
    piped = said("certs", "list").out.splitlines()
    assert [line.split("\t")[:4] for line in piped] == [
        ["name", "role", "state", "ends"], ["alpha", "server", "valid", "90 d"], ["bravo", "client", "valid", "5 d"]
    ]  # fmt: skip
    # When nothing ends soon, expect nothing to be renewed; by name it is
    assert said("certs", "renew", "--expiring").out == "nothing to renew\n"
    assert said("certs", "renew", "bravo", "--days", "2").out.startswith("renewed bravo until")
    assert listed(said)["bravo"]["serial"] != first["bravo"]["serial"]
    # When one is revoked, expect it to be told so, and the others to stand
    assert said("certs", "revoke", "bravo").out.startswith("revoked bravo: 2 certificates\n")
    assert {name: e["state"] for name, e in listed(said, "--all").items()} == {"alpha": "valid", "bravo": "revoked"}
    # Expect --all to leave it out, and a new key when it is issued again
    assert said("certs", "renew", "--all").out.count("renewed") == 1
    assert said("certs", "issue", "bravo").code == 0


def test_what_ends_soon_is_renewed_by_a_timer(said: Callable[..., Any], tmp_path: Path) -> None:
    # Given a certificate that ends in three days of ninety, one that has ended, and a fresh one
    now = time.time()
    Authority.init(tmp_path / "certs", "test", now=now - 100 * 86_400)
    with Authority.opened(tmp_path / "certs") as authority:
        authority.issue("soon", "client", now=now - 87 * 86_400)
        authority.issue("ended", "client", now=now - 95 * 86_400)
        authority.issue("fresh", "client", now=now)
    assert [e["state"] for e in listed(said).values()] == ["expired", "valid", "expires soon"]
    # Expect those two to be renewed
    assert sorted(line.split()[1] for line in said("certs", "renew", "--expiring").out.splitlines()) == [
        "ended",
        "soon",
    ]
    assert {e["state"] for e in listed(said).values()} == {"valid"}
    [shown] = certificates((tmp_path / "certs" / "soon" / "certificate.pem").read_text())
    assert shown.not_after > now + 89 * 86_400


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["issue", "alpha"], "Make one with `jbi certs init`, or name its folder with --folder"),
        (["issue", "../x", "--folder", "made"], "can't be called '../x'"),
        (["issue", "a", "--address", "10.0.0.1:4160", "--folder", "made"], "not a host name or IP address"),
        (["init", "made"], "has an authority already"),
        (["init", "other", "--name", "\x1b[2J"], "can't be called"),
        (["init", "other", "--passphrase-file", "nowhere"], "passphrase file nowhere: No such file"),
        (["revoke", "alfa", "--folder", "made"], "no certificate was issued for 'alfa'. There are alpha"),
        (["renew", "alfa", "--folder", "made"], "no certificate was issued for 'alfa'. There are alpha"),
        (["issue", "alpha", "--folder", "made"], "alpha has a certificate that is valid until"),
        (["list", "--folder", "nowhere"], "there is no authority in nowhere"),
    ],
)
def test_bad_input_is_told_in_one_line(arguments: list[str], told: str, said: Callable[..., Any]) -> None:
    said("certs", "init", "made")
    said("certs", "issue", "alpha", "--folder", "made")
    answer = said("certs", *arguments)
    assert answer.code == 2
    assert answer.is_one_line()
    assert told in answer.err


def test_usage_is_told(said: Callable[..., Any]) -> None:
    assert "Did you mean 'revoke'?" in said("certs", "revok", "alpha").err
    assert "Renew which?" in said("certs", "renew").err
    assert "Renew which?" in said("certs", "renew", "alpha", "--all").err


def test_tls_of_a_folder_is_a_setting_like_others(said: Callable[..., Any]) -> None:
    answer = said("--tls", "certs/alpha", "config", "--json")
    assert json.loads(answer.out)["tls.folder"] == {"value": "certs/alpha", "origin": "flag"}
    # Expect a folder that is not there to be told by whoever needs it
    answer = said("--tls", "certs/alpha", "--no-multicast", "lookup", "--port", "0")
    assert (answer.code, answer.is_one_line()) == (2, True)
    assert "certs/alpha/certificate.pem: No such file" in answer.err
