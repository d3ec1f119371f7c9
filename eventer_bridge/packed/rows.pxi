# Rows of the store (``backends.rocksdb.keys``), made of packed requests. How much is written is
# counted first (``PackedRows.stage``), from the same records.

cdef enum:
    JSON_FLAG = 1  # ``keys``
    SOURCE_FLAG = 4
    INDEXED_FLAG = 8



ctypedef struct Row:
    size_t begin
    uint32_t n_value


# bounds of the order of source timestamps (``source_order``)
ctypedef struct Order:
    long max_passed_events
    size_t max_value_bytes


cdef inline void _put_int(uint8_t* p, int64_t number) noexcept nogil:
    """As ``keys.encode_int``."""
    cdef uint64_t value = <uint64_t>number ^ (<uint64_t>1 << 63)
    cdef int i
    for i in range(8):
        p[i] = <uint8_t>(value >> (56 - 8 * i))


cdef inline void _put_timestamp(uint8_t* p, int64_t s, uint32_t us) noexcept nogil:
    _put_int(p, s)
    p[8] = <uint8_t>(us >> 24)
    p[9] = <uint8_t>(us >> 16)
    p[10] = <uint8_t>(us >> 8)
    p[11] = <uint8_t>us


cdef struct Sorted:
    const uint8_t* key
    uint32_t n_value


cdef int _compare(const void* a, const void* b) noexcept nogil:
    return memcmp((<const Sorted*>a).key, (<const Sorted*>b).key, KEY_BYTES)


cdef uint64_t _turn = 0


@cython.final
cdef class PackedRows:
    """See the stub."""

    cdef uint8_t* _data
    cdef size_t _size, _capacity
    cdef Row* _rows
    cdef Py_ssize_t _n_rows, _rows_capacity
    cdef Order _order
    cdef bint _is_busy

    def __init__(self, long max_passed_events, size_t max_value_bytes):
        self._order.max_passed_events = max_passed_events
        self._order.max_value_bytes = max_value_bytes

    def __dealloc__(self):
        PyMem_Free(self._data)
        PyMem_Free(self._rows)

    def __len__(self):
        return self._n_rows

    cdef int _reserve(self, size_t n_bytes, Py_ssize_t n_rows) except -1:
        cdef size_t capacity = self._size + n_bytes
        cdef void* memory
        if capacity > self._capacity or not HAS_SPARE:
            if HAS_SPARE:
                capacity += capacity // 2 + 4096
            memory = PyMem_Realloc(self._data, capacity)
            if memory is NULL:
                raise MemoryError
            self._data, self._capacity = <uint8_t*>memory, capacity
        n_rows += self._n_rows
        if n_rows > self._rows_capacity or not HAS_SPARE:
            if HAS_SPARE:
                n_rows += n_rows // 2 + 64
            memory = PyMem_Realloc(self._rows, n_rows * sizeof(Row))
            if memory is NULL:
                raise MemoryError
            self._rows, self._rows_capacity = <Row*>memory, n_rows
        return 0

    def stage(
        self,
        list requests not None,
        int64_t server,
        int64_t first_session,
        int64_t s,
        uint32_t us,
        dict last not None,
        dict ends not None,
        bint is_counted,
    ):
        """See the stub."""
        self._enter()
        try:
            return self._stage([*requests], server, first_session, s, us, last, ends, is_counted)
        finally:
            self._is_busy = False

    def put(self, put, family):
        """See the stub."""
        self._enter()
        try:
            return self._put(put, family)
        finally:
            self._is_busy = False

    cdef int _enter(self) except -1:
        """Begin what holds pointers into the rows, which nothing called by it may move."""
        if self._is_busy:
            raise RuntimeError("these rows are being staged or put")
        self._is_busy = True
        return 0

    cdef object _stage(
        self,
        list requests,
        int64_t server,
        int64_t first_session,
        int64_t s,
        uint32_t us,
        dict last,
        dict ends,
        bint is_counted,
    ):
        global _turn
        _turn += 1
        cdef uint64_t turn = _turn
        cdef uint8_t origin[ORIGIN_BYTES]
        cdef uint8_t session[INT_BYTES]
        cdef uint8_t source[TIMESTAMP_BYTES]
        cdef Packed packed
        cdef KnownType known
        cdef Record* record
        cdef uint8_t* p
        cdef size_t n_value, size = self._size
        cdef Py_ssize_t i, n_rows = self._n_rows
        cdef int flag
        cdef dict touched = {}  # of each type the one that came first
        cdef list session_keys = [], sources = []
        cdef Py_ssize_t n_events = self._make_room(requests)
        cdef bytes entries = PyBytes_FromStringAndSize(NULL, n_events * ENTRY_BYTES)
        cdef uint8_t* entry = <uint8_t*>PyBytes_AS_STRING(entries)
        _put_timestamp(origin, s, us)
        _put_int(origin + TIMESTAMP_BYTES, server)
        for packed in requests:
            packed.server, packed.session, packed.s, packed.us = server, first_session, s, us
            _put_int(session, first_session)
            first_session += 1
            session_keys.append(_session_key(origin, session))
            for i in range(packed._size):
                record = &packed._records[i]
                known = <KnownType>record.type
                if known.turn != turn and not self._begin(known, turn, touched, last, ends):
                    return None
                known = <KnownType>known.first
                p = self._data + size
                _put_key(p, known, origin, session, i + 1)
                _put_entry(entry, p)
                entry += ENTRY_BYTES
                if record.has_source:
                    _put_timestamp(source, record.s, record.us)
                n_value = _value_bytes(record)
                flag = _follow(known, record, p + TYPE_BYTES, source, n_value, &self._order)
                if flag < 0:
                    return None
                if flag == INDEXED_FLAG:
                    sources.append(_source_key(p, source))
                _put_value(p + KEY_BYTES, record, packed, source, flag)
                self._rows[n_rows].begin = size
                self._rows[n_rows].n_value = <uint32_t>n_value
                n_rows += 1
                size += KEY_BYTES + n_value
                known.n_events += 1
                known.n_bytes += n_value
        n_values = size - self._size - n_events * KEY_BYTES
        self._size, self._n_rows = size, n_rows
        for known in touched.values():
            if not known.is_ended:
                last[known.type_id] = _place(known)
        counts = []
        if is_counted:
            for known in touched.values():
                counts.append((known.type_id, known.n_events, known.n_bytes))
        return entries, session_keys, sources, n_values, counts

    cdef Py_ssize_t _make_room(self, list requests) except -1:
        """Room for the rows of requests; returns how many these are."""
        cdef Packed packed
        cdef Py_ssize_t n_events = 0
        cdef size_t n_bytes = 0
        for packed in requests:
            n_events += _checked(packed)._size
            n_bytes += packed.payload_bytes
        self._reserve(n_bytes + n_events * (KEY_BYTES + 1 + TIMESTAMP_BYTES), n_events)
        return n_events

    cdef bint _begin(
        self, KnownType known, uint64_t turn, dict touched, dict last, dict ends
    ) except -1:
        """Begin with a type in this call; False: its order ends, or begins, now."""
        # the same type may have come as another text, or before the table was emptied
        cdef Py_ssize_t n_touched = len(touched)
        cdef KnownType first = touched.setdefault(known.type_id, known)
        if first is known:
            if len(touched) == n_touched:
                raise RuntimeError("a type of these rows was staged in others meanwhile")
            if not self._load(known, last, ends):
                return False
        # last, because comparing keys of ``last`` and ``ends`` may have called anything
        known.turn, known.first = turn, <PyObject*>first
        return True

    cdef bint _load(self, KnownType known, dict last, dict ends) except -1:
        """Load the order of a type; False: it ends, or begins, now."""
        known.n_events = 0
        known.n_bytes = 0
        known.is_ended = known.type_id in ends
        if known.is_ended:
            return True
        place = last.get(known.type_id)
        if place is None:
            return False
        of_source, of_position, known.n_passed = place
        cdef bytes source = <bytes?>of_source, position = <bytes?>of_position
        known.is_new = not source
        if PyBytes_GET_SIZE(source) != TIMESTAMP_BYTES:
            if PyBytes_GET_SIZE(source):
                return False
            source, position = bytes(TIMESTAMP_BYTES), bytes(POSITION_BYTES)  # nothing is before
        elif PyBytes_GET_SIZE(position) != POSITION_BYTES:
            return False
        memcpy(known.last_source, PyBytes_AS_STRING(source), TIMESTAMP_BYTES)
        memcpy(known.last_position, PyBytes_AS_STRING(position), POSITION_BYTES)
        return True

    cdef list _put(self, put, family):
        cdef Py_ssize_t i, n = self._n_rows
        cdef const uint8_t* p
        cdef bytes key = None, value = None
        cdef list latest = []
        cdef Sorted* rows = <Sorted*>PyMem_Malloc((n or 1) * sizeof(Sorted))
        if rows is NULL:
            raise MemoryError
        try:
            for i in range(n):
                rows[i].key = self._data + self._rows[i].begin
                rows[i].n_value = self._rows[i].n_value
            qsort(rows, n, sizeof(Sorted), _compare)
            for i in range(n):
                p = rows[i].key
                if key is not None and memcmp(PyBytes_AS_STRING(key), p, TYPE_BYTES) != 0:
                    latest.append((key[:TYPE_BYTES], (key, value)))
                key = PyBytes_FromStringAndSize(<char*>p, KEY_BYTES)
                value = PyBytes_FromStringAndSize(<char*>p + KEY_BYTES, rows[i].n_value)
                put(key, value, family)
            if key is not None:
                latest.append((key[:TYPE_BYTES], (key, value)))
        finally:
            PyMem_Free(rows)
        self._size = self._n_rows = 0
        return latest


cdef inline void _put_key(
    uint8_t* p, KnownType known, const uint8_t* origin, const uint8_t* session, int64_t instance
) noexcept:
    memcpy(p, PyBytes_AS_STRING(known.type_id), TYPE_BYTES)
    memcpy(p + TYPE_BYTES, origin, ORIGIN_BYTES)
    memcpy(p + TYPE_BYTES + ORIGIN_BYTES, session, INT_BYTES)
    _put_int(p + KEY_BYTES - INT_BYTES, instance)


cdef inline void _put_entry(uint8_t* p, const uint8_t* key) noexcept nogil:
    memcpy(p, key + KEY_BYTES - LOCAL_ID_BYTES, LOCAL_ID_BYTES)
    memcpy(p + LOCAL_ID_BYTES, key, TYPE_BYTES)


cdef inline size_t _payload_bytes(const Record* record) noexcept nogil:
    return record.payload_end - record.payload_begin if record.has_payload else 0


cdef inline size_t _value_bytes(const Record* record) noexcept nogil:
    return 1 + (TIMESTAMP_BYTES if record.has_source else 0) + _payload_bytes(record)


cdef inline void _put_value(
    uint8_t* p, const Record* record, Packed packed, const uint8_t* source, int flag
) noexcept:
    cdef size_t n_source = TIMESTAMP_BYTES if record.has_source else 0
    if record.has_payload:
        flag |= JSON_FLAG
    if record.has_source:
        flag |= SOURCE_FLAG
    p[0] = <uint8_t>flag
    memcpy(p + 1, source, n_source)
    if record.has_payload:
        p += 1 + n_source
        memcpy(p, PyBytes_AS_STRING(packed._message) + record.payload_begin, _payload_bytes(record))


cdef int _follow(
    KnownType known,
    const Record* record,
    const uint8_t* position,
    const uint8_t* source,
    size_t n_value,
    const Order* order,
) noexcept:
    """Have an event follow those of its type (``source_order``).

    Returns:
        The flag of an event that is in ``source``, 0 for one that is not; -1: the order of the
        type ends with it.
    """
    cdef int out_of_order = INDEXED_FLAG if record.has_source else 0
    if known.is_ended:
        return out_of_order
    if n_value > order.max_value_bytes:
        return -1
    if memcmp(known.last_position, position, POSITION_BYTES) >= 0:
        return -1
    if not record.has_source or memcmp(known.last_source, source, TIMESTAMP_BYTES) > 0:
        if known.is_new or known.n_passed >= order.max_passed_events:
            return -1
        known.n_passed += 1
        return out_of_order
    known.is_new = False
    memcpy(known.last_source, source, TIMESTAMP_BYTES)
    memcpy(known.last_position, position, POSITION_BYTES)
    if known.n_passed:
        known.n_passed -= 1
    return 0


cdef tuple _place(KnownType known):
    """Where the order of a type is (``source_order.Place``)."""
    source = PyBytes_FromStringAndSize(<char*>known.last_source, TIMESTAMP_BYTES)
    position = PyBytes_FromStringAndSize(<char*>known.last_position, POSITION_BYTES)
    return source, position, known.n_passed


cdef bytes _session_key(const uint8_t* origin, const uint8_t* session):
    cdef bytes made = PyBytes_FromStringAndSize(NULL, ORIGIN_BYTES + INT_BYTES)
    cdef uint8_t* p = <uint8_t*>PyBytes_AS_STRING(made)
    memcpy(p, origin, ORIGIN_BYTES)
    memcpy(p + ORIGIN_BYTES, session, INT_BYTES)
    return made


cdef bytes _source_key(const uint8_t* key, const uint8_t* source):
    cdef bytes made = PyBytes_FromStringAndSize(NULL, SOURCE_KEY_BYTES)
    cdef uint8_t* p = <uint8_t*>PyBytes_AS_STRING(made)
    memcpy(p, key, TYPE_BYTES)
    memcpy(p + TYPE_BYTES, source, TIMESTAMP_BYTES)
    memcpy(p + TYPE_BYTES + TIMESTAMP_BYTES, key + TYPE_BYTES, POSITION_BYTES)
    return made
