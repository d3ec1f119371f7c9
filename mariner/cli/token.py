"""``mariner token``: tokens of clients, and the hashes that configurations keep of them."""

import sys

import click

from eventer_bridge import limits
from eventer_bridge.core import tokens
from eventer_bridge.errors import ConfigurationError
from mariner.cli.run import EXIT_USAGE, CommandError


@click.group()
def token() -> None:
    """Make tokens for clients; the configuration needs only their hashes."""


@token.command()
def new() -> None:
    """Make a random token: print it, and the line for the configuration.

    The first line is the token, for the client: it is stored nowhere. The second one is for the
    client's entry in the configuration of the gateway.
    """
    made = tokens.new()
    click.echo(f"{made}\ntoken: {tokens.sha256_text(made)}")


@token.command("hash")
def hash_command() -> None:
    """Print the line for the configuration of a token that you chose.

    The command asks for it, or reads it from standard input: one line. The hash is slow to compute,
    and so to guess; a random token (`mariner token new`) is quicker for clients, and better.

    Exit code 2: there is no token, or there are blanks around it.
    """
    place = "standard input"
    try:
        if sys.stdin.isatty():
            typed = click.prompt("Token", hide_input=True, confirmation_prompt=True, err=True)
            text = tokens.without_end(typed, place)
        else:
            line = sys.stdin.buffer.readline(limits.MAX_TOKEN_FILE_BYTES + 1)
            text = tokens.of_bytes(line, place)
    except ConfigurationError as e:
        raise CommandError(str(e), EXIT_USAGE) from None
    click.echo(f"token: {tokens.scrypt_text(text)}")
