"""The certificate tool: files and their modes, renewal, what ``show`` says, exit codes."""

import os
import shutil
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from mariner_certs import authority, development, files, inspection
from mariner_certs.cli import certs

OPENSSL = shutil.which("openssl")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(certs, [str(i) for i in arguments])


def make_all(folder: Path) -> None:
    assert run("ca", "--dir", folder).exit_code == 0
    hosts = ("--host", "gateway.example.org", "--host", "10.0.0.5")
    assert run("server", "--dir", folder, *hosts).exit_code == 0
    assert run("client", "--dir", folder, "--name", "app").exit_code == 0


def test_files_and_their_modes(tmp_path: Path) -> None:
    make_all(tmp_path)
    names = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert names == {
        "ca.pem": 0o644,
        "ca.key": 0o600,
        "server.pem": 0o644,
        "server.key": 0o600,
        "app.pem": 0o644,
        "app.key": 0o600,
    }


def test_what_certificates_are_good_for(tmp_path: Path) -> None:
    make_all(tmp_path)
    server = run("show", tmp_path / "server.pem", "--ca", tmp_path / "ca.pem")
    assert server.exit_code == 0
    for line in (
        "subject:          CN=gateway.example.org",
        "issuer:           CN=Mariner CA",
        "good for:         server",
        "names:            gateway.example.org, 10.0.0.5",
        "key:              ECDSA secp256r1",
        "signed by the CA: yes",
    ):
        assert line in server.output.splitlines()
    assert "(364 days left)" in server.output
    assert "good for:         client" in run("show", tmp_path / "app.pem").output
    ca = run("show", tmp_path / "ca.pem").output
    assert "good for:         CA" in ca
    assert "(3649 days left)" in ca


def test_show_tells_what_cannot_be_used(tmp_path: Path) -> None:
    make_all(tmp_path)
    other = authority.make_ca("Mariner CA")
    files.save(tmp_path, "other", other)
    result = run("show", tmp_path / "server.pem", "--ca", tmp_path / "other.pem")
    assert result.exit_code == 1
    assert result.stderr == f"mariner: error: {tmp_path}/server.pem: not signed by the CA\n"
    assert result.stdout.endswith("signed by the CA: no\n")
    files.save(tmp_path, "old", authority.make_server(other, ["localhost"], days=-1))
    result = run("show", tmp_path / "old.pem")
    assert result.exit_code == 1
    assert "old.pem: expired" in result.stderr
    certificate = files.load_certificate(tmp_path / "app.pem")
    before = inspection.describe(
        certificate, now=certificate.not_valid_before_utc.replace(year=2000)
    )
    assert before.problem == "not valid yet"
    result = run("show", tmp_path / "app.key")
    assert result.exit_code == 1
    assert "app.key: expected a certificate in PEM form" in result.stderr


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    make_all(tmp_path)
    before = (tmp_path / "app.key").read_bytes()
    result = run("client", "--dir", tmp_path, "--name", "app")
    assert result.exit_code == 1
    assert result.stderr == (
        f"mariner: error: {tmp_path}/app.key: exists already; --force replaces it\n"
    )
    assert (tmp_path / "app.key").read_bytes() == before
    assert run("client", "--dir", tmp_path, "--name", "app", "--force").exit_code == 0
    assert (tmp_path / "app.key").read_bytes() != before


def test_usage_errors_are_exit_code_2(tmp_path: Path) -> None:
    assert run("server", "--dir", tmp_path).exit_code == 2
    assert run("client", "--dir", tmp_path, "--name", "../app").exit_code == 2
    assert run("ca", "--dir", tmp_path, "--days", "0").exit_code == 2
    absent = run("show", tmp_path / "absent.pem")
    assert absent.exit_code == 2
    assert f"File '{tmp_path}/absent.pem' does not exist." in absent.stderr
    missing = run("server", "--dir", tmp_path, "--host", "x")
    assert missing.exit_code == 1
    assert "ca.pem: No such file or directory; `mariner certs ca` makes a CA" in missing.stderr


def test_development_certificates_are_made_once_and_renewed(tmp_path: Path) -> None:
    assert development.ensure(tmp_path) == ["ca", "server", "client"]
    assert development.ensure(tmp_path) == []
    assert "nothing to do" in run("development", "--dir", tmp_path).output
    ca = files.load(tmp_path, "ca")
    files.save(tmp_path, "client", authority.make_client(ca, "development", days=5), force=True)
    assert development.ensure(tmp_path) == ["client"]
    (tmp_path / "ca.key").unlink()
    assert development.ensure(tmp_path) == ["ca", "server", "client"]
    (tmp_path / "ca.key").write_text("garbage")
    result = run("development", "--dir", tmp_path)
    assert result.exit_code == 1
    assert "ca.key: expected a private key in PEM form" in result.stderr


def test_it_is_a_program_too(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mariner_certs", "ca", "--dir", str(tmp_path / "x")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{tmp_path}/x/ca.pem: valid until ")


@pytest.mark.parametrize(
    "host", ["", "a b", "127.0.0.256", "gateway:23014", "[::1]", "bücher.example", "-a", "a..b"]
)
def test_a_host_that_no_client_could_match_is_wrong_usage(tmp_path: Path, host: str) -> None:
    assert run("ca", "--dir", tmp_path).exit_code == 0
    result = run("server", "--dir", tmp_path, "--host", host)
    assert result.exit_code == 2
    assert f"{host!r}: expected an IP address or a DNS name" in result.stderr
    assert not (tmp_path / "server.key").exists()


@pytest.mark.parametrize(
    "host", ["*.example.org", "a_b", "::1", "GW.example.org", "a" * 60 + ".b.c"]
)
def test_hosts_of_every_kind(tmp_path: Path, host: str) -> None:
    assert run("ca", "--dir", tmp_path).exit_code == 0
    assert run("server", "--dir", tmp_path, "--host", host).exit_code == 0
    shown = run("show", tmp_path / "server.pem").output
    assert f"names:            {host.lower()}\n" in shown


@pytest.mark.parametrize("name", ["", ".", "..", "../app", "x/app", ".app", "ca", "a" * 65])
@pytest.mark.parametrize("command", [["client"], ["server", "--host", "localhost"]])
def test_names_that_lead_elsewhere_are_wrong_usage(
    tmp_path: Path, command: list[str], name: str
) -> None:
    folder = tmp_path / "certs"
    assert run("ca", "--dir", folder).exit_code == 0
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert run(*command, "--dir", folder, "--name", name, "--force").exit_code == 2
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert list(tmp_path.iterdir()) == [folder]


def test_only_a_valid_ca_with_its_own_key_signs(tmp_path: Path) -> None:
    def refusal() -> str:
        result = run("client", "--dir", tmp_path, "--name", "app")
        assert result.exit_code == 1
        assert not (tmp_path / "app.key").exists()
        return result.stderr

    ca = authority.make_ca("Mariner CA")
    files.save(tmp_path, "ca", authority.Pair(ca.certificate, authority.make_ca("x").key))
    assert refusal() == f"mariner: error: {tmp_path}/ca.key: not the key of {tmp_path}/ca.pem\n"
    files.save(tmp_path, "ca", authority.make_client(ca, "x"), force=True)
    assert refusal() == f"mariner: error: {tmp_path}/ca.pem: not the certificate of a CA\n"
    files.save(tmp_path, "ca", authority.make_ca("Mariner CA", days=-1), force=True)
    assert refusal() == f"mariner: error: {tmp_path}/ca.pem: expired\n"


def test_a_leaf_does_not_outlive_its_ca() -> None:
    ca = authority.make_ca("Mariner CA", days=10)
    leaf = authority.make_client(ca, "app", days=365)
    assert leaf.certificate.not_valid_after_utc == ca.certificate.not_valid_after_utc
    assert authority.make_client(ca, "app", days=9).certificate.not_valid_after_utc < (
        ca.certificate.not_valid_after_utc
    )


def test_show_follows_a_chain_and_looks_at_the_ca() -> None:
    root = authority.make_ca("root")
    middle = authority.make_ca("middle")
    # the tool makes no intermediates; other CAs do
    signed = (
        x509.CertificateBuilder()
        .subject_name(middle.certificate.subject)
        .issuer_name(root.certificate.subject)
        .public_key(middle.key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(root.certificate.not_valid_before_utc)
        .not_valid_after(root.certificate.not_valid_after_utc)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(root.key, hashes.SHA256())
    )
    leaf = authority.make_client(middle, "app").certificate
    cas = [root.certificate]
    assert inspection.describe(leaf, cas, [signed]).problem is None
    assert inspection.describe(leaf, cas).problem == "not signed by the CA"
    # a leaf signs nothing, even if its key did
    fake = authority.make_client(authority.make_client(root, "middle"), "app").certificate
    not_a_ca = authority.make_client(root, "middle").certificate
    assert inspection.describe(fake, cas, [not_a_ca]).problem == "not signed by the CA"
    short = authority.make_ca("short", days=1)
    leaf = authority.make_client(short, "app").certificate
    later = short.certificate.not_valid_after_utc + timedelta(days=1)
    assert inspection.describe(leaf, [short.certificate], now=later).problem == "expired"
    old = authority.make_ca("old", days=-1).certificate
    issuer_is_old = inspection.describe(old, [old], now=datetime.now(UTC) - timedelta(minutes=1))
    assert issuer_is_old.problem == "expired"
    assert ("signed by the CA", "no: its issuer CN=old is expired or not valid yet") in (
        issuer_is_old.lines
    )


def test_development_renews_what_another_ca_of_its_name_signed(tmp_path: Path) -> None:
    development.ensure(tmp_path)
    former = authority.make_ca(development.CA_NAME)
    files.save(tmp_path, "server", authority.make_server(former, ["localhost"]), force=True)
    (tmp_path / "client.key").unlink()
    assert development.ensure(tmp_path) == ["server", "client"]
    ca = files.load_certificate(tmp_path / "ca.pem")
    for name in ("server", "client"):
        assert inspection.is_signed_by(files.load(tmp_path, name).certificate, ca)


def test_development_replaces_nothing_that_it_did_not_make(tmp_path: Path) -> None:
    own = authority.make_ca("own")
    files.save(tmp_path, "server", authority.make_server(own, ["localhost"], days=30))
    before = (tmp_path / "server.key").read_bytes()
    assert development.ensure(tmp_path) == ["ca", "client"]
    assert development.ensure(tmp_path) == []
    assert (tmp_path / "server.key").read_bytes() == before

    def refusal() -> str:
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        result = run("development", "--dir", tmp_path)
        assert result.exit_code == 1
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
        return result.stderr

    soon = authority.make_server(own, ["localhost"], days=5)
    files.save(tmp_path, "server", soon, force=True)
    assert refusal() == (
        f"mariner: error: {tmp_path}/server.pem: expires within a week or has no key, but was "
        "not made here: renew it or move it away\n"
    )
    (tmp_path / "server.pem").unlink()
    assert refusal() == (
        f"mariner: error: {tmp_path}/server.key: a key without server.pem: move it away\n"
    )
    (tmp_path / "server.key").unlink()
    assert development.ensure(tmp_path) == ["server"]
    shutil.copy(tmp_path / "client.key", tmp_path / "server.key")
    assert refusal() == (
        f"mariner: error: {tmp_path}/server.key: not the key of {tmp_path}/server.pem\n"
    )


def test_a_key_is_never_readable_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: dict[str, list[int]] = {}
    fsync = os.fsync

    def look(descriptor: int) -> None:
        for path in tmp_path.iterdir():
            modes.setdefault(path.suffixes[0], []).append(stat.S_IMODE(path.stat().st_mode))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", look)
    umask = os.umask(0)
    try:
        files.save(tmp_path, "ca", authority.make_ca("Mariner CA"))
    finally:
        os.umask(umask)
    assert set(modes[".key"]) == {0o600}
    assert set(modes[".pem"]) == {0o644}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca.key", "ca.pem"]


@pytest.mark.skipif(OPENSSL is None, reason="no openssl command on this machine")
def test_openssl_accepts_the_chain(tmp_path: Path) -> None:
    make_all(tmp_path)
    for purpose, name in (("sslserver", "server"), ("sslclient", "app")):
        files_ = ["-CAfile", str(tmp_path / "ca.pem"), str(tmp_path / f"{name}.pem")]
        command = [str(OPENSSL), "verify", "-x509_strict", "-purpose", purpose, *files_]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
