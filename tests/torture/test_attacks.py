"""Attacks in very small: they do what they say, and the gateway is as before.

How long others wait is not judged here: that depends on the machine (``make torture``).
"""

import itertools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.torture.attacks import outcome
from tests.torture.attacks.catalogue import ATTACKS
from tests.torture.attacks.scenario import arena
from tests.torture.report import UnavailableError

_SCALE = 0.002

_BASELINE_S = 0.05


def _ground(name: str) -> str:
    """What the gateway has to be like, and the family: one gateway for each."""
    attack = ATTACKS[name]
    family = attack.run.__module__.rpartition(".")[2]
    return f"{family} tls={attack.is_tls} files={attack.max_files} fault={attack.fault}"


_BY_GROUND = {
    ground: [*names]
    for ground, names in itertools.groupby(sorted(ATTACKS, key=_ground), key=_ground)
}


@pytest.mark.parametrize("names", _BY_GROUND.values(), ids=_BY_GROUND)
async def test_attacks(tmp_path: Path, names: Sequence[str]) -> None:
    wrong = {}
    try:
        async with arena(tmp_path, ATTACKS[names[0]]) as here:
            for name in names:
                done = await here.attack(name, scale=_SCALE, baseline_s=_BASELINE_S)
                wrong[name] = [*outcome.violations(ATTACKS[name].limits, done)]
                assert done.seen.times("ping").n > 0
            done.quiet_s = await here.settle()
            done.stopped_s = await here.stop()
    except UnavailableError as e:
        pytest.skip(str(e))
    assert {name: why for name, why in wrong.items() if why} == {}
    assert [*outcome.ending(done)] == []


def test_attackers_share_no_code_with_the_product() -> None:
    code = (
        "import sys; import tests.torture.attacks.attacker; "
        "print(*{i.split('.')[0] for i in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "tests" in done.stdout.split()
    assert not {"mariner", "eventer_bridge", "mariner_spark"} & {*done.stdout.split()}
