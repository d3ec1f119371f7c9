"""Commands that work with Spark: the extra they need, and what they say when they fail.

Nothing of it is imported before such a command runs: the extra need not be installed, and
takes a second to import.
"""

import contextlib
import logging
import re
from collections.abc import Iterator
from typing import Final

from mariner.cli.run import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, CommandError
from mariner.errors import MarinerError

# an error of ours, in the traceback of a Python process that Spark tells of
_OURS: Final = re.compile(
    r"^(?:mariner|mariner_spark|eventer_bridge)\.errors\.\w+: (.+)$", re.MULTILINE
)

_OTHER_SIDE: Final = frozenset(("host, port", "client_name, token"))
"""Options that a gateway did not like."""


@contextlib.contextmanager
def spark_errors() -> Iterator[None]:
    """What goes wrong with Spark becomes an exit code and a line.

    Raises:
        CommandError: something did; also where the extra is not installed.
    """
    try:
        import numpy as np  # noqa: F401, PLC0415  # see the module
        import pyarrow as pa  # noqa: F401, PLC0415
        from pyspark.errors import AnalysisException, PySparkException  # noqa: PLC0415
    except ImportError as e:
        text = f"this needs the extra 'spark': pip install 'mariner-gateway[spark]' ({e})"
        raise CommandError(text, EXIT_USAGE) from None

    from mariner_spark.errors import MarinerSparkError, OptionError  # noqa: PLC0415

    # what goes wrong is told here, once
    logging.basicConfig(handlers=[logging.NullHandler()])
    try:
        yield
    except KeyboardInterrupt:
        raise CommandError("", EXIT_INTERRUPTED) from None
    except OptionError as e:
        raise CommandError(str(e), EXIT_FAILED if e.option in _OTHER_SIDE else EXIT_USAGE) from e
    except (MarinerSparkError, MarinerError) as e:
        raise CommandError(str(e), EXIT_FAILED) from e
    except PySparkException as e:
        told = reason(str(e))
        is_usage = isinstance(e, AnalysisException) and told.partition(":")[0] not in _OTHER_SIDE
        raise CommandError(told, EXIT_USAGE if is_usage else EXIT_FAILED) from e


def reason(text: str) -> str:
    """What a text of Spark says: the error of ours in it, or else its first line."""
    found = _OURS.findall(text)
    return str(found[-1]) if found else text.strip().partition("\n")[0]
