# Requests of Mariner as JSON, and its answers.
#
# Reading: functions get where to begin, and return where what they read ends; NULL for something
# else, and for NULL. They move only behind bytes that they compared with one that is not NUL, so
# that they stop at the NUL with which every ``bytes`` object ends.
#
# Writing: what is written is counted first, in ``_most_bytes``.

cdef enum:
    MAX_INT_DIGITS = 19  # that are read: fits 64 bits without a sign in any case
    MAX_INT_BYTES = 20  # that are written


cdef inline const char* _space(const char* p) noexcept nogil:
    if p is NULL:
        return NULL
    while p[0] == c' ' or p[0] == c'\n' or p[0] == c'\t' or p[0] == c'\r':
        p += 1
    return p


cdef inline const char* _mark(const char* p, char mark) noexcept nogil:
    """A mark, and the space around it."""
    p = _space(p)
    return NULL if p is NULL or p[0] != mark else _space(p + 1)


cdef inline const char* _word(const char* p, const char* word, size_t size) noexcept nogil:
    return NULL if p is NULL or strncmp(p, word, size) != 0 else p + size


cdef inline bint _is_digit(char c) noexcept nogil:
    return c'0' <= c <= c'9'


cdef inline bint _is_hex(char c) noexcept nogil:
    return c'0' <= c <= c'9' or c'a' <= c <= c'f' or c'A' <= c <= c'F'


cdef const char* _int(const char* p, int64_t* value) noexcept nogil:
    """An integer of 64 bits, which may be written with zeros behind a point."""
    if p is NULL:
        return NULL
    cdef bint is_negative = p[0] == c'-'
    cdef uint64_t number = 0
    if is_negative:
        p += 1
    cdef const char* begin = p
    while _is_digit(p[0]) and p - begin < MAX_INT_DIGITS:
        number = 10 * number + <uint64_t>(p[0] - c'0')
        p += 1
    if p == begin or _is_digit(p[0]) or begin[0] == c'0' and (p - begin > 1 or is_negative):
        return NULL
    if number > <uint64_t>INT64_MAX + is_negative:
        return NULL
    if p[0] == c'.':
        if p[1] != c'0':
            return NULL
        p += 2
        while p[0] == c'0':
            p += 1
    if _is_digit(p[0]) or p[0] == c'e' or p[0] == c'E':
        return NULL
    value[0] = <int64_t>(0 - number if is_negative else number)
    return p


cdef inline bint _is_surrogate(const char* p) noexcept nogil:
    return (p[0] == c'd' or p[0] == c'D') and p[1] >= c'8'


cdef inline bint _is_low(const char* p) noexcept nogil:
    """Whether it is the second half of a pair, if it is a surrogate."""
    return p[1] >= c'c' or c'C' <= p[1] <= c'F'


cdef const char* _character(const char* p) noexcept nogil:
    """A character by its four digits, or one that takes two halves."""
    cdef const char* digits = p
    while p - digits < 4:
        if not _is_hex(p[0]):
            return NULL
        p += 1
    if not _is_surrogate(digits):
        return p
    if _is_low(digits) or p[0] != c'\\' or p[1] != c'u':
        return NULL
    digits = p = p + 2
    while p - digits < 4:
        if not _is_hex(p[0]):
            return NULL
        p += 1
    return p if _is_surrogate(digits) and _is_low(digits) else NULL


cdef const char* _string(const char* p, uint8_t* seen) noexcept nogil:
    """A string, from behind its opening quote.

    Args:
        p: where to begin.
        seen: gets the bits of its bytes, so that it tells ASCII.
    """
    cdef uint8_t c, bits = 0
    while True:
        c = <uint8_t>p[0]
        if c == c'"':
            seen[0] |= bits
            return p + 1
        if c < 0x20:  # the NUL at the end, too
            return NULL
        if c != c'\\':
            bits |= c
            p += 1
            continue
        c = <uint8_t>p[1]
        if c == c'u':
            p = _character(p + 2)
            if p is NULL:
                return NULL
        elif (
            c == c'"' or c == c'\\' or c == c'/' or c == c'b'
            or c == c'f' or c == c'n' or c == c'r' or c == c't'
        ):
            p += 2
        else:
            return NULL


cdef const char* _digits(const char* p) noexcept nogil:
    """One digit or more."""
    if not _is_digit(p[0]):
        return NULL
    while _is_digit(p[0]):
        p += 1
    return p


cdef const char* _number(const char* p) noexcept nogil:
    cdef const char* begin = p
    if p[0] == c'-':
        p += 1
    p = p + 1 if p[0] == c'0' else _digits(p)
    if p is NULL:
        return NULL
    if p[0] == c'.':
        p = _digits(p + 1)
        if p is NULL:
            return NULL
    if p[0] == c'e' or p[0] == c'E':
        p += 1
        if p[0] == c'+' or p[0] == c'-':
            p += 1
        p = _digits(p)
        if p is NULL:
            return NULL
    return NULL if p - begin > MAX_NUMBER_BYTES else p


cdef const char* _value(const char* p, uint8_t* seen, int depth) noexcept nogil:
    """Any value within as many others."""
    if p is NULL:
        return NULL
    if p[0] == c'"':
        return _string(p + 1, seen)
    if p[0] == c'{' or p[0] == c'[':
        return NULL if depth == MAX_DEPTH else _container(p, seen, depth + 1)
    if p[0] == c't':
        return _word(p, b"true", 4)
    if p[0] == c'f':
        return _word(p, b"false", 5)
    if p[0] == c'n':
        return _word(p, b"null", 4)
    return _number(p)


cdef const char* _container(const char* p, uint8_t* seen, int depth) noexcept nogil:
    """An object or an array."""
    cdef bint is_object = p[0] == c'{'
    cdef char end = c'}' if is_object else c']'
    p = _space(p + 1)
    if p[0] == end:
        return p + 1
    while True:
        if is_object:
            if p[0] != c'"':
                return NULL
            p = _mark(_string(p + 1, seen), c':')
        p = _space(_value(p, seen, depth))
        if p is NULL:
            return NULL
        if p[0] == end:
            return p + 1
        if p[0] != c',':
            return NULL
        p = _space(p + 1)


cdef const char* _type(const char* p, uint8_t* seen) noexcept nogil:
    """An array of strings."""
    if p[0] != c'[':
        return NULL
    p = _space(p + 1)
    if p[0] == c']':
        return p + 1
    while p[0] == c'"':
        p = _space(_string(p + 1, seen))
        if p is NULL:
            return NULL
        if p[0] == c']':
            return p + 1
        p = _mark(p, c',')
        if p is NULL:
            return NULL
    return NULL


cdef const char* _extra(const char* p, uint8_t* seen) noexcept nogil:
    """A property that is not looked at; not one whose key has escapes, which may be any key."""
    if p is NULL or p[0] != c'"':
        return NULL
    p += 1
    while p[0] != c'"':
        if <uint8_t>p[0] < 0x20 or p[0] == c'\\':
            return NULL
        seen[0] |= <uint8_t>p[0]
        p += 1
    return _value(_mark(p + 1, c':'), seen, 0)


cdef inline const char* _next_key(const char* p) noexcept nogil:
    """The next key of an object, or its end."""
    p = _space(p)
    if p is NULL or p[0] == c'}':
        return p
    p = _mark(p, c',')
    return NULL if p is NULL or p[0] != c'"' else p


cdef inline bint _is_key(const char* p, const char* key, size_t size) noexcept nogil:
    return strncmp(p, key, size) == 0


# Properties of an object that were read, each of which comes once: of two, only the last would
# count. Their order does not matter.
cdef enum:
    S = 1
    US = 2
    PAYLOAD_TYPE = 1
    DATA = 2
    DATA_TYPE = 4
    TYPE = 1
    SOURCE = 2
    PAYLOAD = 4
    MSG_TYPE = 1
    REGISTER_ID = 2
    REGISTER_EVENTS = 4
    REQUEST_KEY = 8
    AFTER_KEY = 16


cdef const char* _source(const char* p, Record* record, uint8_t* seen) noexcept nogil:
    """A source timestamp, or null."""
    cdef int64_t us = 0
    cdef int found = 0, name
    if p is NULL:
        return NULL
    record.has_source = p[0] != c'n'
    if not record.has_source:
        return _word(p, b"null", 4)
    p = _mark(p, c'{')
    while p is not NULL and p[0] != c'}':
        name = 0
        if p[0] == c'"' and p[1] == c's' and p[2] == c'"':
            name = S
        elif _is_key(p, b'"us"', 4):
            name = US
        if found & name:
            return NULL
        found |= name
        if name == S:
            p = _int(_mark(p + 3, c':'), &record.s)
        elif name == US:
            p = _int(_mark(p + 4, c':'), &us)
        else:
            p = _extra(p, seen)
        p = _next_key(p)
    if p is NULL or found != S | US or not 0 <= us < 1_000_000:
        return NULL
    record.us = <uint32_t>us
    return p + 1


cdef inline int _sextet(char c) noexcept nogil:
    """Value of a character of base64; below 0: it is none."""
    if c'A' <= c <= c'Z':
        return c - c'A'
    if c'a' <= c <= c'z':
        return c - c'a' + 26
    if c'0' <= c <= c'9':
        return c - c'0' + 52
    return 62 if c == c'+' else 63 if c == c'/' else -1


cdef Py_ssize_t _base64_bytes(const char* p, Py_ssize_t size) noexcept nogil:
    """Bytes that a text encodes, if it is as it would be encoded again; else -1."""
    cdef Py_ssize_t i, n_padding = 0
    if size % 4:
        return -1
    if not size:
        return 0
    if p[size - 1] == c'=':
        n_padding = 2 if p[size - 2] == c'=' else 1
    for i in range(size - n_padding):
        if _sextet(p[i]) < 0:
            return -1
    if n_padding and _sextet(p[size - n_padding - 1]) & (3 if n_padding == 1 else 15):
        return -1
    return size // 4 * 3 - n_padding


cdef const char* _quoted(const char* p) noexcept nogil:
    """A string without escapes."""
    if p is NULL or p[0] != c'"':
        return NULL
    p += 1
    while p[0] != c'"':
        if <uint8_t>p[0] < 0x20 or p[0] == c'\\':
            return NULL
        p += 1
    return p + 1


cdef bint _is_binary(const char* message, Record* record) noexcept nogil:
    """Whether what was read is a binary payload as it would be written again."""
    cdef const char* data = message + record.payload_begin
    cdef const char* label = message + record.label_begin
    if _quoted(data) != message + record.payload_end or _quoted(label) != message + record.label_end:
        return False
    record.payload_begin += 1
    record.payload_end -= 1
    record.label_begin += 1
    record.label_end -= 1
    cdef Py_ssize_t n = _base64_bytes(data + 1, record.payload_end - record.payload_begin)
    record.n_decoded = <uint32_t>n
    record.payload_kind = BASE64
    return n >= 0


cdef const char* _payload(
    const char* p, const char* message, Record* record, uint8_t* seen
) noexcept nogil:
    """A payload, or null."""
    cdef int found = 0, name
    cdef bint is_binary = False
    if p is NULL:
        return NULL
    record.payload_kind = NO_PAYLOAD if p[0] == c'n' else JSON_FLAG
    if not record.payload_kind:
        return _word(p, b"null", 4)
    p = _mark(p, c'{')
    while p is not NULL and p[0] != c'}':
        name = 0
        if p[0] == c'"' and p[1] == c'p':
            name = PAYLOAD_TYPE if _is_key(p, b'"payload_type"', 14) else 0
        elif _is_key(p, b'"data"', 6):
            name = DATA
        elif _is_key(p, b'"data_type"', 11):
            name = DATA_TYPE
        if found & name:
            return NULL
        found |= name
        if name == PAYLOAD_TYPE:
            p = _mark(p + 14, c':')
            is_binary = p is not NULL and p[0] == c'"' and p[1] == c'b'
            p = _word(p, b'"binary"', 8) if is_binary else _word(p, b'"json"', 6)
        elif name == DATA:
            p = _mark(p + 6, c':')
            if p is NULL:
                return NULL
            record.payload_begin = <uint32_t>(p - message)
            p = _value(p, seen, 0)
            if p is NULL:
                return NULL
            record.payload_end = <uint32_t>(p - message)
        elif name == DATA_TYPE:
            p = _mark(p + 11, c':')
            if p is NULL:
                return NULL
            record.label_begin = <uint32_t>(p - message)
            p = _value(p, seen, 0)
            if p is NULL:
                return NULL
            record.label_end = <uint32_t>(p - message)
        else:
            p = _extra(p, seen)
        p = _next_key(p)
    if p is NULL or (found | (0 if is_binary else DATA_TYPE)) != PAYLOAD_TYPE | DATA | DATA_TYPE:
        return NULL
    return NULL if is_binary and not _is_binary(message, record) else p + 1


cdef const char* _plain_text(const char* p) noexcept nogil:
    """A short string of ASCII without escapes."""
    if p is NULL or p[0] != c'"':
        return NULL
    cdef const char* begin = p + 1
    p = begin
    while 0x20 <= p[0] < 0x7F and p[0] != c'"' and p[0] != c'\\':
        p += 1
    return p + 1 if p[0] == c'"' and 0 < p - begin <= MAX_REQUEST_KEY_CHARACTERS else NULL


cdef str _text_of(const char* p, const char* end):
    return PyUnicode_DecodeASCII(p + 1, end - p - 2, NULL)


cdef const char* _read_type(
    Batch batch, const char* p, Record* record, uint8_t* seen
) except? NULL:
    if p is NULL:
        return NULL
    cdef const char* end = batch._guess_type(p, record)
    if end is not NULL:
        return end
    end = _type(p, seen)
    return NULL if end is NULL else batch._look_up_type(p, end, record)


cdef inline int _event_property(const char* p) noexcept nogil:
    if p[0] != c'"':
        return 0
    if p[1] == c't':
        return TYPE if _is_key(p, b'"type"', 6) else 0
    if p[1] == c's':
        return SOURCE if _is_key(p, b'"source_timestamp"', 18) else 0
    return PAYLOAD if _is_key(p, b'"payload"', 9) else 0


cdef const char* _read_event(Batch batch, const char* p, uint8_t* seen) except? NULL:
    cdef Record* record = batch._next()
    cdef const char* message = PyBytes_AS_STRING(batch._data)
    cdef int found = 0, name
    p = _mark(p, c'{')
    while p is not NULL and p[0] != c'}':
        name = _event_property(p)
        if found & name:
            return NULL
        found |= name
        if name == TYPE:
            p = _read_type(batch, _mark(p + 6, c':'), record, seen)
        elif name == SOURCE:
            p = _source(_mark(p + 18, c':'), record, seen)
        elif name == PAYLOAD:
            p = _payload(_mark(p + 9, c':'), message, record, seen)
        else:
            p = _extra(p, seen)
        p = _next_key(p)
    if p is NULL or found != TYPE | SOURCE | PAYLOAD:
        return NULL
    if record.payload_kind:
        batch._n_text += _text_bytes(record)
        batch.payload_bytes += _size_of(record)
    return _space(p + 1)


cdef const char* _read_events(Batch batch, const char* p, uint8_t* seen) except? NULL:
    """Some events."""
    p = _mark(p, c'[')
    while True:
        p = _read_event(batch, p, seen)
        if p is NULL or p[0] == c']':
            return NULL if p is NULL else p + 1
        p = _mark(p, c',')


cdef bint _is_utf8(const char* text, Py_ssize_t size) except -1:
    try:
        PyUnicode_DecodeUTF8(text, size, NULL)
    except UnicodeDecodeError:
        return False
    return True


cdef bint _is_compact(Batch batch):
    """Whether most of the message counts as payload, or as an event: it stays in memory."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(batch._data)
    return size - batch._n_text <= MAX_AROUND_BYTES * (1 + batch._size)


cdef inline int _request_property(const char* p) noexcept nogil:
    if _is_key(p, b'"register_events"', 17):
        return REGISTER_EVENTS
    if _is_key(p, b'"register_id"', 13):
        return REGISTER_ID
    if _is_key(p, b'"msg_type"', 10):
        return MSG_TYPE
    if _is_key(p, b'"request_key"', 13):
        return REQUEST_KEY
    return AFTER_KEY if _is_key(p, b'"after_key"', 11) else 0


cdef const char* _read_key(Batch batch, const char* p, int name) except? NULL:
    """The key of the request, or that of the one before it, or null."""
    if p is not NULL and p[0] == c'n':
        return _word(p, b"null", 4)
    cdef const char* end = _plain_text(p)
    if end is NULL:
        return NULL
    if name == REQUEST_KEY:
        batch.request_key = _text_of(p, end)
    else:
        batch.after_key = _text_of(p, end)
    return end


cdef bint _read_json(Batch batch) except -1:
    """Read a ``register_req``; returns whether it is a usual one."""
    cdef uint8_t seen = 0
    cdef int found = 0, name
    cdef const char* message = PyBytes_AS_STRING(batch._data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(batch._data)
    cdef const char* p = _mark(message, c'{')
    while p is not NULL and p[0] != c'}':
        name = _request_property(p)
        if found & name:
            return False
        found |= name
        if name == MSG_TYPE:
            p = _word(_mark(p + 10, c':'), b'"register_req"', 14)
        elif name == REGISTER_ID:
            p = _int(_mark(p + 13, c':'), &batch.register_id)
        elif name == REGISTER_EVENTS:
            p = _read_events(batch, _mark(p + 17, c':'), &seen)
        elif name:
            p = _read_key(batch, _mark(p + (13 if name == REQUEST_KEY else 11), c':'), name)
        else:
            p = _extra(p, &seen)
        p = _next_key(p)
    if p is NULL or (found & ~(REQUEST_KEY | AFTER_KEY)) != MSG_TYPE | REGISTER_ID | REGISTER_EVENTS:
        return False
    if batch.after_key is not None and batch.request_key is None:
        return False
    p = _space(p + 1)
    if p - message != size or not _is_compact(batch):
        return False
    return not seen & 0x80 or _is_utf8(message, size)


def read_json(
    bytes message not None, TypeTable types not None, int64_t max_new=INT64_MAX
):
    """See the stub."""
    types._left = max_new
    cdef Batch batch = _new(message, types, False)
    is_packed = PyBytes_GET_SIZE(message) <= MAX_MESSAGE_BYTES and _read_json(batch)
    batch.requested = batch._size
    return batch if is_packed else None


# --- writing ------------------------------------------------------------------------------

cdef inline char* _write(char* p, const char* text, size_t size) noexcept nogil:
    memcpy(p, text, size)
    return p + size


cdef char* _write_int(char* p, int64_t value) noexcept nogil:
    cdef char digits[MAX_INT_BYTES]
    cdef int n = 0
    cdef uint64_t left = <uint64_t>value
    if value < 0:
        p[0] = c'-'
        p += 1
        left = 0 - left
    while True:
        digits[n] = <char>(c'0' + left % 10)
        left //= 10
        n += 1
        if not left:
            break
    while n:
        n -= 1
        p[0] = digits[n]
        p += 1
    return p


cdef const char* ID_TEXT = b'{"id":{"server":'
cdef const char* SESSION_TEXT = b',"session":'
cdef const char* INSTANCE_TEXT = b',"instance":'
cdef const char* TYPE_TEXT = b'"type":'
cdef const char* TIMESTAMP_TEXT = b',"timestamp":{"s":'
cdef const char* US_TEXT = b',"us":'
cdef const char* SOURCE_TEXT = b',"source_timestamp":{"s":'
cdef const char* NO_SOURCE_TEXT = b',"source_timestamp":null'
cdef const char* PAYLOAD_TEXT = b',"payload":{"payload_type":"json","data":'
cdef const char* BINARY_TEXT = b',"payload":{"payload_type":"binary","data_type":"'
cdef const char* DATA_TEXT = b'","data":"'
cdef const char* NO_PAYLOAD_TEXT = b',"payload":null}'

cdef enum:
    MAX_HEADER_BYTES = 9  # of a frame
    EVENT_BYTES = 200 + 7 * MAX_INT_BYTES  # of an event, without type and payload


cdef inline char* _write_type(char* p, Record* record) noexcept:
    cdef KnownType known = <KnownType>record.type
    p = _write(p, TYPE_TEXT, 7)
    return _write(p, PyBytes_AS_STRING(known.json), PyBytes_GET_SIZE(known.json))


cdef inline char* _write_rest(char* p, Record* record, const char* message) noexcept:
    """What follows the timestamp of an event."""
    if record.has_source:
        p = _write(p, SOURCE_TEXT, 25)
        p = _write_int(p, record.s)
        p = _write(p, US_TEXT, 6)
        p = _write_int(p, record.us)
        p = _write(p, b"}", 1)
    else:
        p = _write(p, NO_SOURCE_TEXT, 24)
    if not record.payload_kind:
        return _write(p, NO_PAYLOAD_TEXT, 16)
    if record.payload_kind == BASE64:
        p = _write(p, BINARY_TEXT, 49)
        p = _write(p, message + record.label_begin, record.label_end - record.label_begin)
        p = _write(p, DATA_TEXT, 10)
        p = _write(p, message + record.payload_begin, record.payload_end - record.payload_begin)
        return _write(p, b'"}}', 3)
    p = _write(p, PAYLOAD_TEXT, 41)
    p = _write(p, message + record.payload_begin, record.payload_end - record.payload_begin)
    return _write(p, b"}}", 2)


cdef size_t _most_bytes(Batch batch, Py_ssize_t begin, Py_ssize_t end) except 0:
    """The most that some events take in an answer, with what is between them."""
    cdef Py_ssize_t i
    if batch._has_binary:
        raise ValueError("a binary payload")
    cdef size_t most = 1 + max(0, end - begin) * EVENT_BYTES
    for i in range(begin, end):
        most += PyBytes_GET_SIZE((<KnownType>batch._records[i].type).json)
        most += _text_bytes(&batch._records[i])
    return most


cdef char* _write_events(char* p, Batch batch, Py_ssize_t begin, Py_ssize_t end, list indices) except NULL:
    """Events of what a request became, with commas between them; at most :func:`_most_bytes`.

    Args:
        p: where to write them.
        batch: the request.
        begin: index of the first event.
        end: where they end.
        indices: ascending, of the events, in place of these; None: these.
    """
    cdef Py_ssize_t i, k, last = -1, n = max(0, end - begin) if indices is None else len(indices)
    cdef Record* record
    cdef const char* message = PyBytes_AS_STRING(batch._data)
    # what the events have in common
    cdef char id[80]
    cdef char* q = _write(id, ID_TEXT, 16)
    q = _write_int(q, batch.server)
    q = _write(q, SESSION_TEXT, 11)
    q = _write_int(q, batch.session)
    q = _write(q, INSTANCE_TEXT, 12)
    cdef size_t n_id = q - id
    cdef char moment[80]
    q = _write(moment, TIMESTAMP_TEXT, 18)
    q = _write_int(q, batch.s)
    q = _write(q, US_TEXT, 6)
    q = _write_int(q, batch.us)
    q = _write(q, b"}", 1)
    cdef size_t n_moment = q - moment
    for k in range(n):
        i = begin + k if indices is None else indices[k]
        if not last < i < batch._size:  # each once, so that there is room for them
            raise IndexError(i)
        last = i
        record = &batch._records[i]
        if k:
            p[0] = c','
            p += 1
        p = _write(p, id, n_id)
        p = _write_int(p, record.instance)
        p = _write(p, b"},", 2)
        p = _write_type(p, record)
        p = _write(p, moment, n_moment)
        p = _write_rest(p, record, message)
    return p


cdef char* _write_frame(
    char* frame, Batch batch, bytes before, bytes between, bytes behind
) except NULL:
    """An answer with its header (``net.framing``)."""
    cdef char* begin = frame + MAX_HEADER_BYTES
    cdef char* p = _write(begin, PyBytes_AS_STRING(before), PyBytes_GET_SIZE(before))
    p = _write_int(p, batch.register_id)
    p = _write(p, PyBytes_AS_STRING(between), PyBytes_GET_SIZE(between))
    p = _write_events(p, batch, 0, min(batch.requested, batch._size), None)
    p = _write(p, PyBytes_AS_STRING(behind), PyBytes_GET_SIZE(behind))
    cdef size_t size = p - begin
    cdef int i, n = 1
    while size >> (8 * n):
        n += 1
    frame[0] = <char>n
    for i in range(n):
        frame[n - i] = <char>(size >> (8 * i))
    memmove(frame + 1 + n, begin, size)
    return frame + 1 + n + size


def content(Batch batch not None):
    """See the stub."""
    cdef Py_ssize_t i, n = batch._size
    cdef Record* record
    cdef const char* message = PyBytes_AS_STRING(batch._data)
    cdef char* begin = <char*>PyMem_Malloc(2 + _most_bytes(batch, 0, batch._size))
    if begin is NULL:
        raise MemoryError
    cdef char* p = begin
    for i in range(n):
        record = &batch._records[i]
        p[0] = c',' if i else c'['
        p[1] = c'{'
        p = _write_type(p + 2, record)
        p = _write_rest(p, record, message)
    p = _write(p, b"]", 1) if n else _write(p, b"[]", 2)
    try:
        return PyBytes_FromStringAndSize(begin, p - begin)
    finally:
        PyMem_Free(begin)


def encode_events(
    Batch batch not None, list indices=None, Py_ssize_t begin=0, Py_ssize_t end=-1
):
    """See the stub."""
    if begin < 0:
        raise IndexError(begin)
    if indices is not None:  # ``__index__`` of one of them could change them, or the batch
        indices = [PyNumber_Index(index) for index in [*indices]]
    end = _stop(batch, end)
    cdef size_t most
    if indices is None:
        most = _most_bytes(batch, begin, end)
    else:
        most = _most_bytes(batch, 0, batch._size)
    cdef PyObject* made = _new_bytes(NULL, most)
    cdef char* text = PyBytes_AS_STRING(<bytes>made)
    cdef Py_ssize_t size
    try:
        size = _write_events(text, batch, begin, end, indices) - text
    except BaseException:
        Py_DECREF(<object>made)
        raise
    return _cut(made, size)


def encode_answers(
    list requests not None, bytes before not None, bytes between not None, bytes behind not None
):
    """See the stub."""
    cdef Batch batch
    cdef size_t around = PyBytes_GET_SIZE(before) + PyBytes_GET_SIZE(between)
    around += PyBytes_GET_SIZE(behind) + MAX_INT_BYTES + MAX_HEADER_BYTES
    cdef size_t most = 0
    for batch in requests:
        most += around + _most_bytes(batch, 0, _checked(batch)._size)
    cdef char* begin = <char*>PyMem_Malloc(most)
    if begin is NULL:
        raise MemoryError
    cdef char* p = begin
    try:
        for batch in requests:
            p = _write_frame(p, batch, before, between, behind)
        return PyBytes_FromStringAndSize(begin, p - begin)
    finally:
        PyMem_Free(begin)
