"""``mariner console``; NiceGUI is imported when it runs."""

import asyncio
from pathlib import Path

import click
import uvloop

from eventer_bridge.errors import ConfigurationError
from mariner.cli.run import EXIT_FAILED, EXIT_USAGE, CommandError, fail, report
from mariner.cli.target import conf_option
from mariner.gateway import logs
from mariner_console import config


@click.command()
@conf_option(
    "Configuration file (.yaml, .toml or .json).",
    default="console.yaml",
    variable="MARINER_CONSOLE_CONF",
)
def console(path: Path) -> None:
    """Serve a page that shows gateways: state, rates, types, events, queries.

    It is a client of the gateways, and shows what its rights allow to those who log in. Needs the
    extra `console`.

    Exit code 0: stopped by SIGTERM or SIGINT; 1: the page cannot be served; 2: the configuration
    cannot be used.
    """
    try:
        conf = config.load(path)
    except ConfigurationError as e:
        fail(str(e))
    try:
        from mariner_console import server  # noqa: PLC0415
    except ModuleNotFoundError as e:
        text = f"no module {e.name}: pip install 'mariner-gateway[console]'"
        raise CommandError(text, EXIT_FAILED) from e
    # uvicorn warns of what strangers send, without their address: the door does so with it
    loggers = {"mariner_console": {"level": "INFO"}, "uvicorn.error": {"level": "ERROR"}}
    logs.configure({**logs.DEFAULT, "loggers": loggers})
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(server.serve(conf, lambda url: report(f"console: listening: {url}")))
    except ConfigurationError as e:
        raise CommandError(str(e), EXIT_USAGE) from e
    except OSError as e:
        raise CommandError(e.strerror or str(e), EXIT_FAILED) from e
    finally:
        logs.close()
