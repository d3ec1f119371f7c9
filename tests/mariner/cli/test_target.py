"""Options of commands that say which server: host, name, token, TLS."""

import os
from pathlib import Path

import pytest

from tests.support.certificates import make_certificates
from tests.support.gateway import Gateway, gateway
from tests.support.shell import Shell, shell_for

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_nobody_listens() -> None:
    result = await shell_for("app", "secret", 1).run("query")
    assert result == (1, "", "mariner: error: 127.0.0.1:1: connection refused\n")


async def test_wrong_token(shell: Shell) -> None:
    result = await shell.run("subscribe", MARINER_TOKEN="wrong")
    assert result == (1, "", "mariner: error: invalid client name or token\n")


async def test_no_token(shell: Shell) -> None:
    result = await shell.run("ping", MARINER_TOKEN="")
    text = "invalid client name or token; no token was given: see --token and --token-file"
    assert result == (1, "", f"mariner: error: {text}\n")


@pytest.mark.parametrize("host", ["127.0.0.1:23014", "[::1]:23014"])
async def test_a_port_in_the_host(shell: Shell, host: str) -> None:
    result = await shell.run("ping", "--host", host)
    assert result.code == 2
    assert (
        "Invalid value for '--host' (env var: 'MARINER_HOST'):"
        f" '{host}': expected a name or an address; the port goes to --port\n"
    ) in result.stderr


async def test_options_go_before_the_environment(server: Gateway) -> None:
    shell = shell_for("nobody", "wrong", 1)
    options = ("--host", "127.0.0.1", "--port", str(server.port), "--name", "app")
    result = await shell.run("ping", "--count", "1", *options, "--token", "secret")
    assert result.code == 0, result.stderr


async def test_token_file(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("secret\n")
    options = ("ping", "--count", "1", "--token-file", str(path))
    assert (await shell.run(*options, MARINER_TOKEN="")).code == 0
    both = await shell.run(*options, "--token", "secret")
    assert both.code == 2
    assert "Give either --token or --token-file, not both." in both.stderr
    both = await shell.run(*options[:3], MARINER_TOKEN="secret", MARINER_TOKEN_FILE=str(path))
    assert both.code == 2
    assert "Give either --token or --token-file, not both." in both.stderr
    # the command line goes before the environment
    assert (await shell.run(*options, MARINER_TOKEN="wrong")).code == 0
    path.write_text("wrong\n")
    given = await shell.run(
        *options[:3], "--token", "secret", MARINER_TOKEN="", MARINER_TOKEN_FILE=str(path)
    )
    assert given.code == 0
    path.write_text("\ufeffsecret\r\n")
    assert (await shell.run(*options, MARINER_TOKEN="")).code == 0
    path.write_text("secret \n")
    unseen = await shell.run(*options, MARINER_TOKEN="")
    assert unseen.code == 2
    reason = "ends with a blank (U+0020), expected a token in one line"
    assert unseen.stderr == f"mariner: error: {path}: {reason}\n"
    unseen = await shell.run(*options[:3], MARINER_TOKEN="secret ")
    assert unseen.stderr == f"mariner: error: the token in the environment: {reason}\n"
    path.unlink()
    os.mkfifo(path)
    waiting = await shell.run(*options, MARINER_TOKEN="")
    assert waiting.stderr == f"mariner: error: {path}: is a FIFO, expected a regular file\n"
    path.unlink()
    missing = await shell.run(*options, MARINER_TOKEN="")
    assert missing.code == 2
    assert missing.stderr == f"mariner: error: {path}: No such file or directory\n"


async def test_name_is_required(shell: Shell) -> None:
    result = await shell.run("ping", MARINER_NAME="")
    assert result.code == 2
    assert "Missing option '--name' (env var: 'MARINER_NAME')" in result.stderr


async def test_help_warns_of_tokens_on_the_command_line(shell: Shell) -> None:
    result = await shell.run("query", "--help")
    assert result.code == 0
    text = " ".join(result.stdout.split())
    assert "Other users of this machine can see the command line" in text
    assert "MARINER_TOKEN" in text


async def test_tls(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "certs")
    keys = {"cert": str(made.server_cert), "key": str(made.server_key), "client_ca": str(made.ca)}
    async with gateway(tmp_path, tls=keys, backend="memory") as running:
        shell = shell_for("app", "secret", running.port)
        files = {
            "MARINER_TLS_CA": str(made.ca),
            "MARINER_CERT": str(made.client_cert),
            "MARINER_KEY": str(made.client_key),
        }
        assert (await shell.run("ping", "--count", "1", **files)).code == 0
        trust = ("--tls-ca", str(made.ca))
        pair = ("--cert", str(made.client_cert), "--key", str(made.client_key))
        event = '{"type": "over/tls", "payload": 1}'
        assert (await shell.run("register", *trust, *pair, event)).values == [1]

        untrusted = await shell.run("ping", "--tls")
        assert untrusted.code == 1
        assert "TLS: the server's certificate was not issued by" in untrusted.stderr
        plain = await shell.run("ping")
        assert plain.code == 1
        assert "it may require TLS" in plain.stderr
    no_key = await shell.run("ping", "--cert", str(made.client_cert))
    assert no_key.code == 2
    assert no_key.stderr == (
        "mariner: error: a client certificate and its key must be given together\n"
    )
    no_file = await shell.run("ping", "--tls-ca", str(tmp_path / "none.pem"))
    assert no_file.code == 2
    assert no_file.stderr == f"mariner: error: {tmp_path}/none.pem: No such file or directory\n"
