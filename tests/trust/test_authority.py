"""An authority in a folder: what it issues, renews and revokes, and that a kill leaves it whole."""

from __future__ import annotations

import os
import shutil
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from jbi_pubsub.core.config import Config, TlsSection
from jbi_pubsub.core.errors import ConfigurationError, StorageError
from jbi_pubsub.core.wire.x509 import certificates, revocations
from jbi_pubsub.trust import authority as module
from jbi_pubsub.trust.authority import Authority, Issued, read_passphrase

NOW: Final = float(int(time.time()))
DAY: Final = 86_400.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An authority's."""
    Authority.init(tmp_path / "certs", "test", now=NOW)
    return tmp_path / "certs"


def issue(folder: Path, name: str, role: Any = "client", *addresses: str, **options: Any) -> Issued:
    with Authority.opened(folder) as authority:
        return authority.issue(name, role, addresses, **{"now": NOW, **options})


def states(folder: Path, now: float = NOW) -> dict[str, str]:
    with Authority.opened(folder) as authority:
        return {name: each.state(now) for name, each in authority.latest().items()}


# -- what is issued -----------------------------------------------------------------------------------------------


def test_a_party_gets_a_folder_that_is_all_it_needs(folder: Path) -> None:
    # When a server's certificate is issued
    made = issue(folder, "alpha", "server", "10.0.0.1", "alpha.example.org")
    # Expect what it says, for 90 days, and from an hour before, as clocks differ
    assert (made.name, made.role, made.addresses) == ("alpha", "server", ("10.0.0.1", "alpha.example.org"))
    assert made.certificate.names[0] == "alpha"
    assert made.certificate.not_before == NOW - 3600
    assert made.certificate.not_after == NOW + 90 * DAY
    # Expect four files, the key for its owner alone, and nobody else to look into the folders
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder / "alpha").iterdir()}
    assert modes == {"certificate.pem": 0o644, "key.pem": 0o600, "ca.pem": 0o644, "crl.pem": 0o644}
    for private in (folder, folder / "alpha", folder / "authority", folder / "authority" / "issued"):
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "authority" / "key.pem").stat().st_mode) == 0o600
    # Expect the folder to be good for [tls] folder
    identity = TlsSection(folder=str(folder / "alpha")).identity()
    assert identity is not None
    identity.check_dates()


@pytest.mark.parametrize(("role", "usages"), [("server", ("server", "client")), ("client", ("client",))])
def test_a_server_may_connect_as_well_and_a_client_may_not_serve(
    role: str, usages: tuple[str, ...], folder: Path
) -> None:
    assert issue(folder, "party", role).certificate.usages == usages
    if role == "client":
        identity = TlsSection(folder=str(folder / "party")).identity()
        assert identity is not None
        with pytest.raises(ConfigurationError, match=r"purpose.*--address"):
            identity.check_dates()


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_agrees(folder: Path) -> None:
    # Given two parties of which one is revoked; Expect openssl to say so, strictly by RFC 5280
    for name in ("alpha", "bravo"):
        issue(folder, name, "server")
    with Authority.opened(folder) as authority:
        authority.revoke("bravo", now=NOW)
    said = {}
    for name in ("alpha", "bravo"):
        at = folder / name
        command = ["openssl", "verify", "-x509_strict", "-crl_check", "-purpose", "sslserver"]
        command += ["-CAfile", str(at / "ca.pem"), "-CRLfile", str(at / "crl.pem"), str(at / "certificate.pem")]
        said[name] = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said["alpha"].returncode == 0, said["alpha"].stderr
    assert said["bravo"].returncode != 0
    assert "certificate revoked" in said["bravo"].stderr


def test_a_certificate_does_not_outlive_its_authority(tmp_path: Path) -> None:
    Authority.init(tmp_path / "short", "short", now=NOW, days=10)
    assert issue(tmp_path / "short", "alpha").certificate.not_after == NOW + 10 * DAY
    with pytest.raises(ConfigurationError, match="own certificate was valid until"):
        issue(tmp_path / "short", "bravo", now=NOW + 11 * DAY)


def test_two_authorities_of_one_name_are_two(folder: Path, tmp_path: Path) -> None:
    # Given another authority with the same name; When its list is put into a folder of ours
    Authority.init(tmp_path / "other", "test", now=NOW)
    issue(folder, "alpha", "server")
    shutil.copy(tmp_path / "other" / "authority" / "crl.pem", folder / "alpha" / "crl.pem")
    # Expect it to be refused at the start: OpenSSL would take nobody
    with pytest.raises(ConfigurationError, match=r"crl\.pem is of test, which is not in"):
        Config(tls=TlsSection(folder=str(folder / "alpha"))).security()


def test_states_follow_the_clock(folder: Path) -> None:
    # Given certificates for 90 and for 6 days; Expect the first to end soon 30 days before, the other after 4 of 6
    issue(folder, "long")
    issue(folder, "short", days=6)
    assert states(folder, NOW + 59 * DAY)["long"] == "valid"
    assert states(folder, NOW + 61 * DAY)["long"] == "expires soon"
    assert states(folder, NOW + 91 * DAY)["long"] == "expired"
    assert states(folder, NOW + 3 * DAY)["short"] == "valid"
    assert states(folder, NOW + 4.5 * DAY)["short"] == "expires soon"


# -- renewed, revoked ---------------------------------------------------------------------------------------------


def test_a_renewal_is_for_the_same_key_names_and_term(folder: Path) -> None:
    before = issue(folder, "alpha", "server", "10.0.0.1", days=30)
    key = (folder / "alpha" / "key.pem").read_bytes()
    with Authority.opened(folder) as authority:
        after = authority.renew("alpha", now=NOW + 25 * DAY)
    assert after.certificate.key == before.certificate.key
    assert (after.certificate.names, after.role) == (before.certificate.names, "server")
    assert after.certificate.serial != before.certificate.serial
    assert after.certificate.not_after == NOW + 55 * DAY
    assert (folder / "alpha" / "key.pem").read_bytes() == key
    assert certificates((folder / "alpha" / "certificate.pem").read_text()) == [after.certificate]


def test_a_party_whose_folder_was_moved_away_is_renewed_without_its_key(folder: Path, tmp_path: Path) -> None:
    issue(folder, "alpha")
    (folder / "alpha").rename(tmp_path / "elsewhere")
    with Authority.opened(folder) as authority:
        renewed = authority.renew("alpha", now=NOW)
        assert not authority.holds_key("alpha")
    # Expect the new certificate to fit the key where that is
    shutil.copy(folder / "alpha" / "certificate.pem", tmp_path / "elsewhere" / "certificate.pem")
    identity = TlsSection(folder=str(tmp_path / "elsewhere")).identity()
    assert identity is not None
    assert identity.facts().certificate == renewed.certificate


def test_revoking_ends_all_certificates_of_a_key_and_no_other(folder: Path) -> None:
    # Given a party with a renewed certificate, and another one
    first = issue(folder, "alpha")
    issue(folder, "bravo")
    with Authority.opened(folder) as authority:
        second = authority.renew("alpha", now=NOW)
        # When it is revoked
        ended = authority.revoke("alpha", now=NOW)
    # Expect both of its certificates on the list, in every folder
    serials = {first.certificate.serial, second.certificate.serial}
    assert {each.certificate.serial for each in ended} == serials
    for place in ("authority", "alpha", "bravo"):
        [told] = revocations((folder / place / "crl.pem").read_text())
        assert told.serials == serials
    assert states(folder) == {"alpha": "revoked", "bravo": "valid"}
    # Expect no renewal, and a new key if it is issued again, which is what counts then
    with Authority.opened(folder) as authority, pytest.raises(ConfigurationError, match="key of alpha is revoked"):
        authority.renew("alpha", now=NOW)
    again = issue(folder, "alpha", days=1)
    assert again.certificate.key != first.certificate.key
    assert states(folder)["alpha"] == "valid"
    # Expect one to be revoked by its serial number
    with Authority.opened(folder) as authority:
        authority.revoke(f"{again.certificate.serial:x}", now=NOW)
        [told] = revocations((folder / "authority" / "crl.pem").read_text())
    assert told.serials == serials | {again.certificate.serial}
    # Expect the list to be good as long as the authority: OpenSSL takes nobody with one that has ended
    with Authority.opened(folder) as authority:
        assert told.until == authority.certificate.not_after
    assert told.since < NOW


# -- bad input ----------------------------------------------------------------------------------------------------


def test_a_party_whose_folder_is_a_link_gets_one_of_its_own_and_nothing_else_is_lost(
    folder: Path, tmp_path: Path
) -> None:
    # Given a party whose folder was moved away, with a link in its place
    issue(folder, "alpha")
    (folder / "alpha").rename(tmp_path / "elsewhere")
    (folder / "alpha").symlink_to(tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere" / "key.pem").read_bytes()
    with Authority.opened(folder) as authority:
        authority.revoke("alpha", now=NOW)
    # Expect a new key to be put in the place of the link, and what it has led to to be left as it is
    issue(folder, "alpha")
    assert states(folder) == {"alpha": "valid"}
    assert not (folder / "alpha").is_symlink()
    assert (folder / "alpha" / "key.pem").read_bytes() != before
    assert (tmp_path / "elsewhere" / "key.pem").read_bytes() == before


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "../x",
        "a/b",
        ".hidden",
        "-rf",
        "authority",
        "a.new",
        "a.old",
        "a b",
        "a\nb",
        "x" * 65,
        "ä",
        "*.a",
        "a@",
    ],
)
def test_names_that_are_no_names_are_refused(name: str, folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    with pytest.raises(ConfigurationError, match="can't be called"):
        issue(folder, name)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("address", ["", "10.0.0.1:4160", "10.0.0", "10.0.0.0/8", "a b", "ä.example", "x" * 300, "*"])
def test_addresses_that_are_none_are_refused(address: str, folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="not a host name or IP address"):
        issue(folder, "alpha", "server", address)


def test_a_name_that_has_a_good_certificate_gets_no_second_one(folder: Path) -> None:
    issue(folder, "alpha")
    with pytest.raises(ConfigurationError, match=r"has a certificate that is valid until.*renew"):
        issue(folder, "alpha")
    # Expect another one when it has expired
    issue(folder, "alpha", now=NOW + 91 * DAY)


def test_a_folder_that_has_an_authority_or_that_others_write_to_gets_none(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="has an authority already"):
        Authority.init(folder, "again", now=NOW)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(ConfigurationError, match="others may write"):
        Authority.init(shared, "x", now=NOW)


@pytest.mark.parametrize("what", ["renew", "revoke"])
def test_an_unknown_name_is_told_with_those_there_are(what: str, folder: Path) -> None:
    issue(folder, "alpha")
    with (
        Authority.opened(folder) as authority,
        pytest.raises(ConfigurationError, match=r"no certificate was issued for 'alfa'.*There are alpha"),
    ):
        getattr(authority, what)("alfa", now=NOW)


def test_a_passphrase_is_asked_for_and_has_to_be_right(tmp_path: Path) -> None:
    # Given an authority whose key has a passphrase
    folder = tmp_path / "certs"
    Authority.init(folder, "test", now=NOW, passphrase=b"correct horse")
    assert b"ENCRYPTED" in (folder / "authority" / "key.pem").read_bytes()
    # Expect nothing to be issued without, or with another one
    with pytest.raises(ConfigurationError, match=r"has a passphrase.*--passphrase-file"):
        issue(folder, "alpha")
    with pytest.raises(ConfigurationError, match="passphrase is wrong"):
        issue(folder, "alpha", passphrase=b"battery staple")
    assert states(folder) == {}
    issue(folder, "alpha", passphrase=b"correct horse")


def test_passphrase_files_are_for_one_user_and_not_empty(tmp_path: Path) -> None:
    file = tmp_path / "passphrase"
    file.write_bytes(b"secret\nmore\n")
    file.chmod(0o644)
    with pytest.raises(ConfigurationError, match="others may read"):
        read_passphrase(file)
    file.chmod(0o600)
    assert read_passphrase(file) == b"secret"
    for bad in (b"", b"\n", b"x" * 2000):
        file.write_bytes(bad)
        with pytest.raises(ConfigurationError, match="first line"):
            read_passphrase(file)
    with pytest.raises(ConfigurationError, match="No such file"):
        read_passphrase(tmp_path / "nowhere")


def test_a_damaged_folder_is_told_in_one_line(folder: Path, tmp_path: Path) -> None:
    issue(folder, "alpha")
    record = next((folder / "authority" / "issued").iterdir())
    key, good = folder / "authority" / "key.pem", record.read_bytes()
    # Given a record that is no certificate
    record.write_text("rubbish")
    with pytest.raises(ConfigurationError, match=rf"{record.name} is not a certificate"):
        states(folder)
    record.write_bytes(good)
    # Given a key that others may read, that is of another authority, that is rubbish, that is gone
    key.chmod(0o644)
    with pytest.raises(ConfigurationError, match=r"others may read.*chmod 600"):
        issue(folder, "bravo")
    key.chmod(0o600)
    Authority.init(tmp_path / "other", "test", now=NOW)
    key.write_bytes((tmp_path / "other" / "authority" / "key.pem").read_bytes())
    with pytest.raises(ConfigurationError, match="is not that of"):
        issue(folder, "bravo")
    key.write_text("rubbish")
    with pytest.raises(ConfigurationError, match="no private key in PEM"):
        issue(folder, "bravo")
    key.unlink()
    with pytest.raises(ConfigurationError, match="No such file"):
        issue(folder, "bravo")
    # Given none at all
    with pytest.raises(ConfigurationError, match=r"there is no authority in .*nowhere.*jbi certs init"):
        states(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


# -- several at once, and killed ----------------------------------------------------------------------------------


def test_two_at_once_wait_for_each_other(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given somebody who works in the folder; Expect another one to wait, and to say so in the end
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.1)
    with Authority.opened(folder), pytest.raises(StorageError, match="another process works in"):
        issue(folder, "alpha")
    # When several issue at once, expect all of it
    monkeypatch.setattr(module, "LOCK_SECONDS", 30.0)
    names = [f"party-{number}" for number in range(8)]
    threads = [threading.Thread(target=issue, args=(folder, name)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(states(folder)) == names


def killed_at(step: int, change: Callable[[], None]) -> bool:
    """Whether a process that makes that change is killed when it is about to do its so manyth thing to the files."""
    child = os.fork()
    if child == 0:
        count = 0

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal count
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod") or writes:
                count += 1
                if count == step:
                    os.kill(os.getpid(), 9)

        try:
            sys.addaudithook(hook)
            change()
        except BaseException:  # noqa: BLE001  # told by the exit code
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def usable(folder: Path, name: str) -> bool:
    """Whether the files of a party fit each other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(folder / name / "certificate.pem", folder / name / "key.pem")
    context.load_verify_locations(folder / name / "ca.pem")
    context.load_verify_locations(folder / name / "crl.pem")
    return True


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")  # the child has files to do with alone
@pytest.mark.parametrize("what", ["init", "issue", "issue again", "renew", "revoke"])
def test_killed_at_any_step_it_is_done_or_not_done(
    what: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # processes end here, not machines
    # Given an authority with a party that is good and one that is revoked
    issue(folder, "alpha", "server")
    issue(folder, "bravo")
    with Authority.opened(folder) as authority:
        authority.revoke("bravo", now=NOW)
    fresh = {"alpha": "valid", "bravo": "revoked"}

    def change(at: Path) -> None:
        if what == "init":
            Authority.init(at / "new", "new", now=NOW)
            return
        with Authority.opened(at) as authority:
            if what == "issue":
                authority.issue("charlie", "client", now=NOW)
            elif what == "issue again":
                authority.issue("bravo", "client", now=NOW)
            else:
                getattr(authority, what)("alpha", now=NOW)

    def result(at: Path) -> Any:
        """What there is, having been opened again: the states, and which certificate each folder shows."""
        if what == "init":
            return (at / "new" / "authority" / "ca.pem").exists()
        with Authority.opened(at) as authority:
            found = authority.latest()
            count = len(authority.issued())
        for name, each in found.items():
            assert usable(at, name)
            assert certificates((at / name / "certificate.pem").read_text()) == [each.certificate]
            assert (at / name / "crl.pem").read_bytes() == (at / "authority" / "crl.pem").read_bytes()
        return count, {name: each.state(NOW) for name, each in found.items()}

    done = {
        "init": True,
        "issue": (3, fresh | {"charlie": "valid"}),
        "issue again": (3, fresh | {"bravo": "valid"}),
        "renew": (3, fresh),
        "revoke": (2, fresh | {"alpha": "revoked"}),
    }[what]
    before = False if what == "init" else (2, fresh)

    step, seen = 0, []
    while True:
        # When it is killed at each step in turn
        step += 1
        at = tmp_path / f"{step}"
        shutil.copytree(folder, at)
        at.chmod(0o700)
        was_killed = killed_at(step, lambda at=at: change(at))  # type: ignore[misc]  # called here
        # Expect it to be done, or not done, and to work afterwards
        seen.append(result(at))
        assert seen[-1] in (before, done)
        if seen[-1] == before:
            change(at)
        assert result(at) == done
        assert not list(at.rglob("*.new"))
        assert not list(at.rglob("*.old"))
        if not was_killed:
            break
    # Expect the steps to have been many, and one to have made the difference
    assert step > 5
    assert seen == sorted(seen, key=lambda each: each == done)
