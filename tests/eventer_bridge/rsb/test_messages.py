"""``schemas/rsb.proto`` as it is read."""

import re

import pytest

from eventer_bridge.resources import read_schema
from eventer_bridge.rsb.codec import read_proto
from tests.eventer_bridge.rsb.oracle import FIELDS, describe


def test_our_text_says_what_was_read_off_real_peers() -> None:
    ours = {i.name: i for i in read_proto("rsb.proto", read_schema("rsb.proto")).message_type}
    theirs = {i.name: i for i in describe().message_type}
    for name in FIELDS:
        assert list(ours[name].field) == list(theirs[name].field)
    assert ours.keys() - theirs.keys() == {"Hello", "Bye", "Process", "Host"}


@pytest.mark.parametrize(
    "line", ["    oneof x {", "    optional bytes a;", "import 'a';", "enum A {"]
)
def test_a_line_that_is_not_understood_is_told(line: str) -> None:
    with pytest.raises(ValueError, match=f"x.proto, line 2: not understood: {re.escape(line)}"):
        read_proto("x.proto", f"message A {{\n{line}\n}}")
