# Requests of Eventer as SBS (``chatter.sbs``, ``eventer.events``), and its answers.
#
# Reading: as in ``json.pxi``, but what is read may have any bytes. So functions also get where the
# message ends, and look before they read there. JSON within it ends where its length says, or it is
# not packed; until that is compared, it is read up to the end of the message at most.

cdef enum:
    MAX_SBS_READ_BYTES = 9  # of an integer: 62 bits
    MAX_SBS_BYTES = 10  # of one that is written
    SBS_EVENT_BYTES = 4 + 9 * MAX_SBS_BYTES  # of an event, without type and payload

    SBS_FIRST = 0x80  # 0: no value, binary, success
    SBS_SECOND = 0x81  # 1: a value, JSON, failure


cdef const uint8_t* _sbs_int(const uint8_t* p, const uint8_t* end, int64_t* value) noexcept nogil:
    if p is NULL or p >= end:
        return NULL
    cdef int64_t number = <int64_t>(p[0] & 0x3F) - <int64_t>(p[0] & 0x40)
    cdef const uint8_t* begin = p
    while p[0] < 0x80:
        p += 1
        if p >= end or p - begin == MAX_SBS_READ_BYTES:
            return NULL
        number = number * 0x80 + (p[0] & 0x7F)
    value[0] = number
    return p + 1


cdef const uint8_t* _sbs_text(
    const uint8_t* p, const uint8_t* end, const uint8_t** begin
) noexcept nogil:
    """Text or bytes, of which ``begin`` gets where they begin."""
    cdef int64_t size = 0
    p = _sbs_int(p, end, &size)
    if p is NULL or not 0 <= size <= end - p:
        return NULL
    begin[0] = p
    return p + size


cdef const uint8_t* _sbs_type(const uint8_t* p, const uint8_t* end) noexcept nogil:
    cdef int64_t count = 0
    cdef const uint8_t* begin
    p = _sbs_int(p, end, &count)
    while count > 0 and p is not NULL:
        p = _sbs_text(p, end, &begin)
        count -= 1
    return NULL if count < 0 else p


cdef const uint8_t* _sbs_source(
    const uint8_t* p, const uint8_t* end, Record* record
) noexcept nogil:
    """A source timestamp, or none."""
    cdef int64_t us = 0
    if p is NULL or p >= end or not SBS_FIRST <= p[0] <= SBS_SECOND:
        return NULL
    record.has_source = p[0] == SBS_SECOND
    if not record.has_source:
        return p + 1
    p = _sbs_int(_sbs_int(p + 1, end, &record.s), end, &us)
    if not 0 <= us < 1_000_000:
        return NULL
    record.us = <uint32_t>us
    return p


cdef const uint8_t* _sbs_binary(
    const uint8_t* p, const uint8_t* end, const uint8_t* message, Record* record
) except? NULL:
    cdef const uint8_t* label
    cdef const uint8_t* data
    p = _sbs_text(p, end, &label)
    if p is NULL or not _is_utf8(<const char*>label, p - label):
        return NULL
    record.label_begin = <uint32_t>(label - message)
    record.label_end = <uint32_t>(p - message)
    p = _sbs_text(p, end, &data)
    if p is NULL:
        return NULL
    record.payload_kind = BYTES
    record.payload_begin = <uint32_t>(data - message)
    record.payload_end = <uint32_t>(p - message)
    record.n_decoded = <uint32_t>(p - data)
    return p


cdef const uint8_t* _sbs_payload(
    const uint8_t* p, const uint8_t* end, const uint8_t* message, Record* record
) except? NULL:
    """A payload, or none."""
    cdef const uint8_t* text
    cdef uint8_t seen = 0
    if p is NULL or p >= end:
        return NULL
    record.payload_kind = NO_PAYLOAD if p[0] == SBS_FIRST else JSON_FLAG
    if not record.payload_kind:
        return p + 1
    if end - p < 2 or p[0] != SBS_SECOND:
        return NULL
    if p[1] == SBS_FIRST:
        return _sbs_binary(p + 2, end, message, record)
    if p[1] != SBS_SECOND:
        return NULL
    p = _sbs_text(p + 2, end, &text)
    if p is NULL or <const uint8_t*>_value(<const char*>text, &seen, 0) != p:
        return NULL
    if seen & 0x80 and not _is_utf8(<const char*>text, p - text):
        return NULL
    record.payload_begin = <uint32_t>(text - message)
    record.payload_end = <uint32_t>(p - message)
    return p


cdef const uint8_t* _read_sbs_event(
    Batch batch, const uint8_t* p, const uint8_t* end
) except? NULL:
    cdef Record* record = batch._next()
    cdef const uint8_t* message = <const uint8_t*>PyBytes_AS_STRING(batch._data)
    cdef const uint8_t* behind = <const uint8_t*>batch._guess_type(<const char*>p, record)
    if behind is NULL:
        behind = _sbs_type(p, end)
        if behind is NULL:
            return NULL
        behind = <const uint8_t*>batch._look_up_type(<const char*>p, <const char*>behind, record)
    p = _sbs_payload(_sbs_source(behind, end, record), end, message, record)
    if p is not NULL and record.payload_kind:
        batch._n_text += _text_bytes(record)
        batch._has_binary |= record.payload_kind == BYTES
        batch.payload_bytes += record.payload_end - record.payload_begin
    return p


cdef bint _read_sbs(Batch batch) except -1:
    """Read a ``MsgRegisterReq``; returns whether it is a usual one."""
    cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(batch._data)
    cdef const uint8_t* end = p + PyBytes_GET_SIZE(batch._data)
    cdef int64_t count = 0
    p = _sbs_int(p, end, &count)
    if count < 1:
        return False
    while count and p is not NULL:
        p = _read_sbs_event(batch, p, end)
        count -= 1
    return p == end and _is_compact(batch)


def read_sbs(
    bytes message not None, TypeTable types not None, int64_t max_new=INT64_MAX
):
    """See the stub."""
    types._left = max_new
    cdef Batch batch = _new(message, types, True)
    is_packed = PyBytes_GET_SIZE(message) <= MAX_MESSAGE_BYTES and _read_sbs(batch)
    batch.requested = batch._size
    return batch if is_packed else None


# --- writing ------------------------------------------------------------------------------


cdef char* _write_sbs_int(char* p, int64_t value) noexcept nogil:
    cdef uint8_t groups[MAX_SBS_BYTES]
    cdef int n = 1
    groups[0] = <uint8_t>(value & 0x7F) | 0x80
    while not -0x40 <= value < 0x40:
        value >>= 7
        groups[n] = <uint8_t>(value & 0x7F)
        n += 1
    while n:
        n -= 1
        p[0] = <char>groups[n]
        p += 1
    return p


cdef char* _write_byte(char* p, int value) noexcept nogil:
    p[0] = <char>value
    return p + 1


cdef char* _write_sbs_event(char* p, Batch batch, Py_ssize_t i) noexcept:
    cdef Record* record = &batch._records[i]
    cdef bytes text = (<KnownType>record.type).text
    cdef int64_t size
    p = _write_sbs_int(p, batch.server)
    p = _write_sbs_int(p, batch.session)
    p = _write_sbs_int(p, record.instance)
    p = _write(p, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    p = _write_sbs_int(p, batch.s)
    p = _write_sbs_int(p, batch.us)
    if record.has_source:
        p = _write_byte(p, SBS_SECOND)
        p = _write_sbs_int(p, record.s)
        p = _write_sbs_int(p, record.us)
    else:
        p = _write_byte(p, SBS_FIRST)
    if not record.payload_kind:
        return _write_byte(p, SBS_FIRST)
    if record.payload_kind == BYTES:
        p = _write_byte(_write_byte(p, SBS_SECOND), SBS_FIRST)
        size = record.label_end - record.label_begin
        p = _write_sbs_int(p, size)
        p = _write(p, PyBytes_AS_STRING(batch._data) + record.label_begin, size)
    else:
        p = _write_byte(_write_byte(p, SBS_SECOND), SBS_SECOND)
    size = record.payload_end - record.payload_begin
    p = _write_sbs_int(p, size)
    return _write(p, PyBytes_AS_STRING(batch._data) + record.payload_begin, size)


cdef bytes _encode_sbs_answer(Batch batch):
    if not batch._is_sbs:  # its types have another text
        raise ValueError("a request of another wire")
    cdef Py_ssize_t i, n = max(0, min(batch.requested, batch._size))
    cdef size_t most = 1 + MAX_SBS_BYTES + n * SBS_EVENT_BYTES
    for i in range(n):
        most += PyBytes_GET_SIZE((<KnownType>batch._records[i].type).text)
        most += _text_bytes(&batch._records[i])
    cdef char* begin = <char*>PyMem_Malloc(most)
    if begin is NULL:
        raise MemoryError
    cdef char* p = _write_sbs_int(_write_byte(begin, SBS_FIRST), n)
    for i in range(n):
        p = _write_sbs_event(p, batch, i)
    try:
        return PyBytes_FromStringAndSize(begin, p - begin)
    finally:
        PyMem_Free(begin)


def encode_sbs_answers(list requests not None):
    """See the stub."""
    cdef Batch batch
    return [_encode_sbs_answer(_checked(batch)) for batch in requests]
