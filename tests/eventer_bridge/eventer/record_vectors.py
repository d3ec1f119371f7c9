"""Records ``tests/vectors/hat_eventer.json``: what the package hat-event sends.

python -m tests.eventer_bridge.eventer.record_vectors
"""

import json
from pathlib import Path
from typing import Final

from tests.eventer_bridge.eventer.hat_messages import encode
from tests.eventer_bridge.eventer.samples import SAMPLES

VECTORS: Final = Path(__file__).parents[2] / "vectors" / "hat_eventer.json"


def record() -> list[dict[str, str]]:
    """All samples as hat-event encodes them.

    Returns:
        Name of the sample, ``type`` and ``data`` (hexadecimal) of its message.
    """
    vectors = []
    for name, message in SAMPLES.items():
        message_type, data = encode(message)
        vectors.append({"name": name, "type": message_type, "data": data.hex()})
    return vectors


def main() -> None:
    """Write the file."""
    VECTORS.write_text(json.dumps(record(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
