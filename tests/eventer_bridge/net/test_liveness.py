from eventer_bridge.net.liveness import Liveness, Verdict


def test_a_silent_peer_is_pinged_once_and_then_dead() -> None:
    liveness = Liveness(30, 10)
    times = [0, 10, 30, 31, 35, 41, 42]
    verdicts = [liveness.check(1000 + i) for i in times]
    alive, silent, dead = Verdict.ALIVE, Verdict.SILENT, Verdict.DEAD
    assert verdicts == [alive, alive, alive, silent, alive, alive, dead]


def test_anything_heard_is_a_sign_of_life() -> None:
    liveness = Liveness(30, 10)
    assert liveness.check(1000) is Verdict.ALIVE
    assert liveness.check(1031) is Verdict.SILENT
    liveness.has_heard = True
    assert liveness.check(1050) is Verdict.ALIVE
    assert liveness.check(1080) is Verdict.ALIVE
    assert liveness.check(1081) is Verdict.SILENT


def test_without_delay_nobody_is_pinged() -> None:
    liveness = Liveness(None, 10)
    assert {liveness.check(i) for i in range(0, 100_000, 1000)} == {Verdict.ALIVE}
