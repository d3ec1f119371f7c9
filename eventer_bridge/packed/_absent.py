"""What stands in for ``_packed`` where that is not compiled: nothing is packed."""


class KnownTypes:
    """There is none."""


class Packed:
    """The same."""


class PackedRows:
    """The same."""


class StoredEvents:
    """The same."""


content = encode_answers = encode_events = encode_sbs_answers = None
encode_stored = pack = pack_sbs = read_rows = stored_events = None
