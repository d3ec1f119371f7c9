# Rows of the store (``backends.rocksdb.keys``), made of batch requests. How much is written is
# counted first (``BatchRows.stage``), from the same records.


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
cdef class BatchRows:
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
        list batches not None,
        object ids,
        object last,
        dict ends not None,
        bytes floor not None,
        bint is_counted,
        Py_ssize_t begin=0,
        Py_ssize_t end=-1,
    ):
        """See the stub."""
        cdef Batch batch
        if not isinstance(ids, dict) or not isinstance(last, dict):  # a ``LastingDict`` is one
            raise TypeError("ids or last is no dict")
        batches = [*batches]
        for batch in batches:
            _checked(batch)
        self._enter()
        for batch in batches:
            batch._n_stagings += 1
        try:
            return self._stage(batches, ids, last, ends, floor, is_counted, begin, end)
        finally:
            self._is_busy = False
            for batch in batches:
                batch._n_stagings -= 1

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
        list batches,
        object ids,
        object last,
        dict ends,
        bytes floor,
        bint is_counted,
        Py_ssize_t begin,
        Py_ssize_t end,
    ):
        global _turn
        _turn += 1
        cdef uint64_t turn = _turn
        cdef uint8_t origin[ORIGIN_BYTES]
        cdef uint8_t session[INT_BYTES]
        cdef uint8_t source[TIMESTAMP_BYTES]
        cdef Batch batch
        cdef KnownType known
        cdef Record* record
        cdef uint8_t* p
        cdef size_t n_value, size = self._size
        cdef Py_ssize_t i, stop, n_rows = self._n_rows
        cdef int flag
        cdef dict touched = {}  # of each type the one that came first
        cdef list session_keys = [], sources = [], ended = []
        cdef Py_ssize_t n_events = self._make_room(batches, begin, end)
        cdef bytes entries = PyBytes_FromStringAndSize(NULL, n_events * ENTRY_BYTES)
        cdef uint8_t* entry = <uint8_t*>PyBytes_AS_STRING(entries)
        for batch in batches:
            _put_timestamp(origin, batch.s, <uint32_t>batch.us)
            _put_int(origin + TIMESTAMP_BYTES, batch.server)
            _put_int(session, batch.session)
            session_keys.append(_session_key(origin, session))
            stop = _stop(batch, end)
            for i in range(begin, stop):
                record = &batch._records[i]
                known = <KnownType>record.type
                if known.turn != turn:
                    self._begin(batch._types, known, turn, ids, touched, last, ends, floor, ended)
                known = <KnownType>known.first
                p = self._data + size
                _put_key(p, known, origin, session, record.instance)
                _put_entry(entry, p)
                entry += ENTRY_BYTES
                if record.has_source:
                    _put_timestamp(source, record.s, record.us)
                n_value = _value_bytes(record)
                flag = _follow(known, record, p + TYPE_BYTES, source, n_value, &self._order)
                if flag < 0:
                    ended.append((known.staged_id, _end_of(known)))
                    known.is_ended = True
                    flag = INDEXED_FLAG if record.has_source else 0
                if flag == INDEXED_FLAG:
                    sources.append(_source_key(p, source))
                _put_value(p + KEY_BYTES, record, batch, source, flag)
                self._rows[n_rows].begin = size
                self._rows[n_rows].n_value = <uint32_t>n_value
                n_rows += 1
                size += KEY_BYTES + n_value
                known.n_events += 1
                known.n_bytes += n_value
        n_values = size - self._size - n_events * KEY_BYTES
        self._size, self._n_rows = size, n_rows
        for known in touched.values():
            if known.is_ended:
                last.pop(known.staged_id, None)
            else:
                last[known.staged_id] = _place(known)
        ends.update(ended)
        counts = []
        if is_counted:
            for known in touched.values():
                counts.append((known.staged_id, known.n_events, known.n_bytes))
        return entries, session_keys, sources, n_values, counts, ended

    cdef Py_ssize_t _make_room(self, list batches, Py_ssize_t begin, Py_ssize_t end) except -1:
        """Room for the rows of batches; returns how many these are."""
        cdef Batch batch
        cdef Py_ssize_t i, stop, n_events = 0
        cdef size_t n_bytes = 0
        if begin < 0:
            raise IndexError(begin)
        for batch in batches:
            stop = _stop(batch, end)
            n_events += max(0, stop - begin)
            for i in range(begin, stop):
                n_bytes += _payload_bytes(&batch._records[i])
        self._reserve(n_bytes + n_events * (KEY_BYTES + 1 + TIMESTAMP_BYTES), n_events)
        return n_events

    cdef int _begin(
        self,
        TypeTable types,
        KnownType known,
        uint64_t turn,
        object ids,
        dict touched,
        object last,
        dict ends,
        bytes floor,
        list ended,
    ) except -1:
        """Begin with a type in this call."""
        cdef bytes type_id = known.type_id
        if known.epoch != types.epoch:
            type_id = <bytes?>ids[known.type]
            if PyBytes_GET_SIZE(type_id) != TYPE_BYTES:
                raise ValueError("type_id")
        # the same type may have come as another text, or before the table was emptied
        cdef Py_ssize_t n_touched = len(touched)
        cdef KnownType first = touched.setdefault(type_id, known)
        if first is known:
            if len(touched) == n_touched:
                raise RuntimeError("a type of these rows was staged in others meanwhile")
            self._load(known, type_id, last, ends, floor, ended)
        # last, because comparing keys of ``last`` and ``ends`` may have called anything
        known.turn, known.staged_id, known.first = turn, type_id, <PyObject*>first
        return 0

    cdef int _load(
        self, KnownType known, bytes type_id, object last, dict ends, bytes floor, list ended
    ) except -1:
        """Load the order of a type; if it is not known, it ends now."""
        known.n_events = 0
        known.n_bytes = 0
        known.is_ended = type_id in ends
        if known.is_ended:
            return 0
        place = last.get(type_id)
        if place is None:
            ended.append((type_id, floor))
            known.is_ended = True
            return 0
        of_source, of_position, n_passed = place
        cdef bytes source = <bytes?>of_source, position = <bytes?>of_position
        known.n_passed = n_passed
        known.is_new = not source
        if known.is_new:  # nothing is before
            source, position = bytes(TIMESTAMP_BYTES), bytes(POSITION_BYTES)
        if PyBytes_GET_SIZE(source) != TIMESTAMP_BYTES or PyBytes_GET_SIZE(position) != POSITION_BYTES:
            raise ValueError("place")
        memcpy(known.last_source, PyBytes_AS_STRING(source), TIMESTAMP_BYTES)
        memcpy(known.last_position, PyBytes_AS_STRING(position), POSITION_BYTES)
        return 0

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
    memcpy(p, PyBytes_AS_STRING(known.staged_id), TYPE_BYTES)
    memcpy(p + TYPE_BYTES, origin, ORIGIN_BYTES)
    memcpy(p + TYPE_BYTES + ORIGIN_BYTES, session, INT_BYTES)
    _put_int(p + KEY_BYTES - INT_BYTES, instance)


cdef inline void _put_entry(uint8_t* p, const uint8_t* key) noexcept nogil:
    memcpy(p, key + KEY_BYTES - LOCAL_ID_BYTES, LOCAL_ID_BYTES)
    memcpy(p + LOCAL_ID_BYTES, key, TYPE_BYTES)


cdef inline Py_ssize_t _stop(Batch batch, Py_ssize_t end) noexcept:
    return batch._size if end < 0 or end > batch._size else end


cdef inline bytes _end_of(KnownType known):
    """Where the order of a type ended (``source_order``)."""
    if known.is_new:
        return b""
    return PyBytes_FromStringAndSize(<char*>known.last_position, POSITION_BYTES)


cdef inline size_t _text_bytes(const Record* record) noexcept nogil:
    """Of a payload, and its label, as it came."""
    if not record.payload_kind:
        return 0
    cdef size_t n_bytes = record.payload_end - record.payload_begin
    return n_bytes + (record.label_end - record.label_begin if record.payload_kind >= BASE64 else 0)


cdef inline size_t _size_of(const Record* record) noexcept nogil:
    """Of a payload that was read, as it counts."""
    if record.payload_kind >= BASE64:
        return record.n_decoded
    return record.payload_end - record.payload_begin if record.payload_kind else 0


cdef inline size_t _payload_bytes(const Record* record) noexcept nogil:
    """Of a payload in a row."""
    if record.payload_kind >= BASE64:
        return LABEL_BYTES + (record.label_end - record.label_begin) + record.n_decoded
    return record.payload_end - record.payload_begin if record.payload_kind else 0


cdef void _put_binary(uint8_t* p, const Record* record, const char* data) noexcept nogil:
    """A binary payload as in a row (``keys``)."""
    cdef uint32_t n_label = record.label_end - record.label_begin
    cdef uint32_t value
    cdef uint8_t* end
    cdef const char* text = data + record.payload_begin
    p[0] = <uint8_t>(n_label >> 24)
    p[1] = <uint8_t>(n_label >> 16)
    p[2] = <uint8_t>(n_label >> 8)
    p[3] = <uint8_t>n_label
    memcpy(p + LABEL_BYTES, data + record.label_begin, n_label)
    p += LABEL_BYTES + n_label
    if record.payload_kind == BYTES:
        memcpy(p, text, record.n_decoded)
        return
    end = p + record.n_decoded
    while p < end:
        value = (_sextet(text[0]) & 63) << 18 | (_sextet(text[1]) & 63) << 12
        value |= (_sextet(text[2]) & 63) << 6 | (_sextet(text[3]) & 63)
        text += 4
        p[0] = <uint8_t>(value >> 16)
        if p + 1 < end:
            p[1] = <uint8_t>(value >> 8)
        if p + 2 < end:
            p[2] = <uint8_t>value
        p += 3


cdef inline size_t _value_bytes(const Record* record) noexcept nogil:
    return 1 + (TIMESTAMP_BYTES if record.has_source else 0) + _payload_bytes(record)


cdef inline void _put_value(
    uint8_t* p, const Record* record, Batch batch, const uint8_t* source, int flag
) noexcept:
    cdef size_t n_source = TIMESTAMP_BYTES if record.has_source else 0
    flag |= BINARY_FLAG if record.payload_kind >= BASE64 else record.payload_kind
    if record.has_source:
        flag |= SOURCE_FLAG
    p[0] = <uint8_t>flag
    memcpy(p + 1, source, n_source)
    if record.payload_kind:
        p += 1 + n_source
        if record.payload_kind >= BASE64:
            _put_binary(p, record, PyBytes_AS_STRING(batch._data))
        else:
            memcpy(p, PyBytes_AS_STRING(batch._data) + record.payload_begin, _payload_bytes(record))


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
