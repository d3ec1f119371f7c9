# Rows of the store: reading them, and writing them as JSON. What is written was checked when it was
# put in a ``StoredEvents``.

cdef double _now() noexcept nogil:
    """The time in seconds, as ``time.monotonic`` has it."""
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec + now.tv_nsec * 1e-9


cdef inline int _order(bytes a, bytes b) noexcept:
    """Below 0, 0, or above 0: how two keys are ordered."""
    cdef Py_ssize_t n_a = PyBytes_GET_SIZE(a), n_b = PyBytes_GET_SIZE(b)
    cdef int order = memcmp(PyBytes_AS_STRING(a), PyBytes_AS_STRING(b), min(n_a, n_b))
    return order if order else (n_a > n_b) - (n_a < n_b)


def read_rows(
    iterator not None,
    bytes start not None,
    bytes stop not None,
    *,
    bint descending,
    Py_ssize_t max_rows,
    Py_ssize_t max_bytes,
    double seconds,
):
    """See the stub."""
    cdef object get_key = iterator.key, get_value = iterator.value
    cdef object move = iterator.prev if descending else iterator.next
    cdef list rows = []
    cdef Py_ssize_t n_bytes = 0, n_rows = 0
    cdef double end = _now() + seconds
    cdef bint is_end = False
    while n_rows < max_rows and n_bytes <= max_bytes:
        if n_rows and _now() >= end:
            break
        key = get_key()
        if key is None or _order(<bytes?>key, start) < 0 or _order(<bytes>key, stop) >= 0:
            is_end = True
            break
        value = <bytes?>get_value()
        n_bytes += PyBytes_GET_SIZE(value)
        rows.append((key, value))
        n_rows += 1
        move()
    return rows, n_bytes, is_end


cdef bint _is_plain(const uint8_t* value, Py_ssize_t size) noexcept nogil:
    """Whether it is the value of an event with a JSON payload, or with none."""
    if not 1 <= size <= MAX_MESSAGE_BYTES or value[0] & ~(JSON_FLAG | SOURCE_FLAG | INDEXED_FLAG):
        return False
    cdef Py_ssize_t n_head = 1 + (TIMESTAMP_BYTES if value[0] & SOURCE_FLAG else 0)
    return size > n_head if value[0] & JSON_FLAG else size == n_head


@cython.final
cdef class StoredEvents:
    """See the stub."""

    cdef list _rows, _types  # keys and values; the JSON of the type of each
    cdef object _names
    cdef object _decode, _events

    def __len__(self):
        return len(self._rows)

    def __iter__(self):
        return iter(self.events)

    def __getitem__(self, index):
        return self.events[index]

    def __eq__(self, other):
        return self.events == other

    def __repr__(self):
        return repr(self.events)

    def index(self, *args):
        return self.events.index(*args)

    def count(self, value):
        return self.events.count(value)

    @property
    def events(self):
        if self._events is None:
            self._events = self._decode([*self._rows], self._names)
        return self._events


def stored_events(list rows not None, names not None, encode_type, decode):
    """See the stub."""
    rows = [*rows]  # ``encode_type`` could change it
    cdef list types = []
    cdef bytes key, value, last = b"", json = b""
    for row in rows:
        if len(<tuple?>row) != 2:
            raise ValueError("a row is a key and a value")
        key, value = <bytes?>(<tuple>row)[0], <bytes?>(<tuple>row)[1]
        if PyBytes_GET_SIZE(key) != KEY_BYTES:
            return None
        if not _is_plain(<const uint8_t*>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)):
            return None
        if not last or memcmp(PyBytes_AS_STRING(key), PyBytes_AS_STRING(last), TYPE_BYTES) != 0:
            json = <bytes?>encode_type(names[key[:TYPE_BYTES]])
            last = key
        types.append(json)
    cdef StoredEvents events = StoredEvents.__new__(StoredEvents)
    events._rows, events._types = rows, types
    events._names, events._decode = names, decode
    return events


cdef inline int64_t _get_int(const uint8_t* p) noexcept nogil:
    """As ``keys.decode_int``."""
    cdef uint64_t value = 0
    cdef int i
    for i in range(INT_BYTES):
        value = value << 8 | p[i]
    return <int64_t>(value ^ (<uint64_t>1 << 63))


cdef inline uint32_t _get_us(const uint8_t* p) noexcept nogil:
    return <uint32_t>p[0] << 24 | <uint32_t>p[1] << 16 | <uint32_t>p[2] << 8 | p[3]


cdef char* _write_stored(char* p, const uint8_t* key, bytes value, bytes json) noexcept:
    """An event from its row and the JSON of its type."""
    cdef const uint8_t* v = <const uint8_t*>PyBytes_AS_STRING(value)
    cdef const char* begin = PyBytes_AS_STRING(value)
    cdef Record record
    record.has_source = v[0] & SOURCE_FLAG
    record.payload_kind = v[0] & JSON_FLAG
    record.payload_begin = 1
    record.payload_end = <uint32_t>PyBytes_GET_SIZE(value)
    if record.has_source:
        record.s = _get_int(v + 1)
        record.us = _get_us(v + 1 + INT_BYTES)
        record.payload_begin += TIMESTAMP_BYTES
    key += TYPE_BYTES
    p = _write(p, ID_TEXT, 16)
    p = _write_int(p, _get_int(key + TIMESTAMP_BYTES))
    p = _write(p, SESSION_TEXT, 11)
    p = _write_int(p, _get_int(key + ORIGIN_BYTES))
    p = _write(p, INSTANCE_TEXT, 12)
    p = _write_int(p, _get_int(key + ORIGIN_BYTES + INT_BYTES))
    p = _write(_write(p, b"},", 2), TYPE_TEXT, 7)
    p = _write(p, PyBytes_AS_STRING(json), PyBytes_GET_SIZE(json))
    p = _write(p, TIMESTAMP_TEXT, 18)
    p = _write_int(p, _get_int(key))
    p = _write(p, US_TEXT, 6)
    p = _write_int(p, _get_us(key + INT_BYTES))
    p = _write(p, b"}", 1)
    return _write_rest(p, &record, begin)


def encode_stored(StoredEvents events not None, bytes before not None, bytes behind not None):
    """See the stub."""
    cdef bytes key, value, json
    cdef Py_ssize_t i, n = len(events._rows)
    cdef size_t most = PyBytes_GET_SIZE(before) + n * EVENT_BYTES + PyBytes_GET_SIZE(behind)
    for i in range(n):
        _, value = events._rows[i]
        json = events._types[i]
        most += PyBytes_GET_SIZE(value) + PyBytes_GET_SIZE(json)
    cdef char* begin = <char*>PyMem_Malloc(most)
    if begin is NULL:
        raise MemoryError
    try:
        p = _write(begin, PyBytes_AS_STRING(before), PyBytes_GET_SIZE(before))
        for i in range(n):
            key, value = events._rows[i]
            json = events._types[i]
            if i:
                p = _write(p, b",", 1)
            p = _write_stored(p, <const uint8_t*>PyBytes_AS_STRING(key), value, json)
        p = _write(p, PyBytes_AS_STRING(behind), PyBytes_GET_SIZE(behind))
        return PyBytes_FromStringAndSize(begin, p - begin)
    finally:
        PyMem_Free(begin)
