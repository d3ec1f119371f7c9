# cython: language_level=3, wraparound=False, boundscheck=False, cdivision=True, auto_pickle=False
"""See ``eventer_bridge.packed``. Here is what all of it is about; the rest is included:

- ``json.pxi``: reading requests of Mariner, and writing its answers;
- ``sbs.pxi``: the same of Eventer;
- ``rows.pxi``: making rows of the store;
- ``stored.pxi``: reading these, and writing them as JSON.

Requests are a peer's: wrong, or made to do harm. How that cannot read or write anything else is said
in each of these files. Neither can callbacks, whatever they return or change: None, which Cython
takes for any type, is refused (``<bytes?>``), and lists that they could change are copied.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.number cimport PyNumber_Index
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.unicode cimport PyUnicode_DecodeASCII, PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memcmp, memcpy, memmove, strncmp
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec


from binascii import a2b_base64

from msgspec import Raw

from eventer_bridge.model import BinaryPayload, EventId, JsonPayload, RegisterEvent, Timestamp
from eventer_bridge.packed.views import session_events


cdef extern from "Python.h":
    PyObject* _new_bytes "PyBytes_FromStringAndSize"(const char* text, Py_ssize_t size) except NULL
    int _PyBytes_Resize(PyObject** text, Py_ssize_t size) except -1

cdef extern from *:
    """
    #ifndef HAS_SPARE
    #define HAS_SPARE 1
    #endif
    """
    # 0: memory is as large as was counted, so that a sanitizer notices what is beyond
    const bint HAS_SPARE


cdef enum:
    MAX_MESSAGE_BYTES = 0x7FFFFFFF  # offsets have 32 bits
    MAX_DEPTH = 32  # of what is packed; the bound of a payload (``limits.MAX_JSON_DEPTH``) is higher
    MAX_NUMBER_BYTES = 64  # likewise, of ``limits.MAX_NUMBER_DIGITS``
    MAX_REQUEST_KEY_CHARACTERS = 64  # ``limits``
    MAX_AROUND_BYTES = 512  # of an event, besides its payload
    FIRST_EVENTS = 4  # that there is memory for
    ENTRY_OVERHEAD_BYTES = 600  # of a known type, besides its texts and segments
    SEGMENT_BYTES = 64
    MAX_TYPE_SEGMENTS = 64  # of what may be registered (``limits``)
    MAX_TYPE_CHARACTERS = 1_024  # which are as many bytes at least
    OBJECT_BYTES = 256  # of an event as an object (``limits``)
    KEPT_EVENTS = 256  # as objects (``limits.STEP_EVENTS``)
    KEPT_BYTES = 32 << 10  # of their payloads

    TYPE_BYTES = 4
    TIMESTAMP_BYTES = 12
    INT_BYTES = 8
    ORIGIN_BYTES = TIMESTAMP_BYTES + INT_BYTES
    LOCAL_ID_BYTES = 2 * INT_BYTES
    POSITION_BYTES = ORIGIN_BYTES + LOCAL_ID_BYTES
    KEY_BYTES = TYPE_BYTES + POSITION_BYTES
    ENTRY_BYTES = LOCAL_ID_BYTES + TYPE_BYTES
    SOURCE_KEY_BYTES = TYPE_BYTES + TIMESTAMP_BYTES + POSITION_BYTES

    # kinds of payloads: the flags of rows (``keys``)
    NO_PAYLOAD = 0
    JSON_FLAG = 1
    BINARY_FLAG = 2
    SOURCE_FLAG = 4
    INDEXED_FLAG = 8
    BASE64 = 16  # a binary one as text, which is decoded for its row
    BYTES = 32  # a binary one, with its label elsewhere
    LABEL_BYTES = 4  # before the label of a binary one in a row, its length


# an event of a batch
ctypedef struct Record:
    PyObject* type  # a KnownType, owned
    int64_t instance
    int64_t s  # of its source timestamp
    uint32_t us
    uint8_t has_source
    uint8_t payload_kind
    uint32_t payload_begin  # in the data; of a binary one, as in a row: its label and bytes
    uint32_t payload_end
    uint32_t label_begin  # of one in BASE64 or BYTES
    uint32_t label_end
    uint32_t n_decoded


@cython.no_gc  # it refers to texts only
@cython.final
cdef class KnownType:
    cdef readonly object type
    cdef bytes type_id  # empty: it was never stored, or may not be without being checked
    cdef long epoch  # of the table, in which ``type_id`` holds
    cdef bytes text  # as it came; empty if it came as an object
    cdef bytes json
    cdef Py_ssize_t number, next  # in the table; of the type that followed this one last time
    # of the call of ``BatchRows.stage`` that has this number
    cdef uint64_t turn
    cdef bytes staged_id
    cdef PyObject* first  # the one of its type that came first, whose order counts; may be itself
    cdef bint is_ended, is_new  # its order; nothing is in order yet
    cdef uint8_t last_source[TIMESTAMP_BYTES]
    cdef uint8_t last_position[POSITION_BYTES]
    cdef long n_passed
    cdef long n_events
    cdef size_t n_bytes


@cython.final
cdef class TypeTable:
    """See the stub."""

    cdef readonly long epoch
    cdef object _find
    cdef dict _by_key
    cdef object _ids, _checked
    cdef list _entries, _forgotten
    cdef Py_ssize_t _max_bytes, _n_bytes
    cdef Py_ssize_t _before, _expected  # number of the type that came last; of the one expected next
    cdef int64_t _left  # types that the message being read may still bring

    def __init__(self, find, Py_ssize_t max_bytes, ids not None, checked not None):
        self._find, self._ids, self._checked = find, ids, checked
        self._max_bytes = max_bytes
        self.epoch = 1
        self._forget()

    def __len__(self):
        return len(self._entries)

    def use(self, ids not None):
        self._ids = ids
        self.epoch += 1

    cdef _forget(self):
        self._by_key = {}
        # freed as others come: tens of thousands at one go would take 50 ms
        self._forgotten, self._entries = self._entries, []
        self._n_bytes = 0
        self._before = self._expected = 0

    cdef KnownType look_up(self, object key, bytes text):
        """The entry of a type, as it came, or of a type itself, whose text is empty.

        None: it is no type, its text is too large for the table, or the message brings too many. A
        type itself that is too large is not kept.
        """
        cdef KnownType entry = <KnownType>self._by_key.get(key)
        if entry is not None:
            return entry
        if text:
            self._left -= 1
            if self._left < 0:
                return None
        found = self._find(key)
        if found is None:
            return None
        entry = KnownType.__new__(KnownType)
        event_type, json = found
        entry.type, entry.json, entry.text = event_type, <bytes?>json, text
        self.is_ready(entry)
        cdef Py_ssize_t n_bytes = PyBytes_GET_SIZE(text) + PyBytes_GET_SIZE(entry.json)
        n_bytes += ENTRY_OVERHEAD_BYTES + SEGMENT_BYTES * len(entry.type)
        if n_bytes > self._max_bytes:
            return None if text else entry
        if self._n_bytes + n_bytes > self._max_bytes:
            self._forget()
        self._n_bytes += n_bytes
        cdef dict by_key = self._by_key  # which comparing keys may replace
        entry.number = entry.next = len(self._entries)
        self._entries.append(entry)
        by_key[key] = entry
        if self._forgotten:
            del self._forgotten[max(0, len(self._forgotten) - 2):]
        return entry

    cdef bint is_ready(self, KnownType entry) except -1:
        """Whether a type may be stored, and its id is known."""
        if entry.epoch == self.epoch:
            return True
        ids, checked = self._ids, self._checked  # which comparing types may replace
        type_id = ids.get(entry.type)
        if not type_id or entry.type not in checked:
            return False
        if PyBytes_GET_SIZE(<bytes?>type_id) != TYPE_BYTES:
            raise ValueError("type_id")
        if ids is not self._ids:
            return False
        entry.type_id, entry.epoch = <bytes>type_id, self.epoch
        return True


@cython.final
cdef class Batch:
    """See the stub."""

    cdef public int64_t register_id
    cdef readonly Py_ssize_t payload_bytes
    cdef public str request_key, after_key
    cdef readonly int64_t server, session, s, us
    cdef public object source, quota, key, request, committed, first
    cdef public Py_ssize_t requested
    cdef public bint is_large, is_stepwise
    cdef bytes _data  # the message; or payloads, or both
    cdef Py_ssize_t _used  # bytes of it
    cdef bint _is_own
    cdef list _objects  # that it was made of; or of a small one, when they were looked at
    cdef object _events, _encodings
    cdef TypeTable _types
    cdef bint _is_sbs, _has_binary
    cdef Py_ssize_t _n_text  # bytes of the message that are payloads
    cdef Py_ssize_t _n_stagings  # that are under way, while which it does not grow
    cdef Record* _records
    cdef Py_ssize_t _size, _capacity

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self._size):
            Py_DECREF(<object>self._records[i].type)
        PyMem_Free(self._records)

    def __len__(self):
        return self._size

    def __iter__(self):
        if self._is_small():
            return iter(self[:])
        return map(self.__getitem__, range(self._size))

    def __getitem__(self, index):
        cdef Py_ssize_t i
        if self._objects is None:
            if not isinstance(index, slice):
                i = PyNumber_Index(index)
                if i < 0:
                    i += self._size
                return _object(self, i)
            if not self._is_small():
                return [_object(self, i) for i in range(*index.indices(self._size))]
            objects = [_object(self, i) for i in range(self._size)]
            if len(objects) == self._size:  # what was called did not add to it
                self._objects = objects
            return objects[index]
        return self._objects[index]

    def index(self, *args):
        return self[:].index(*args)

    def count(self, value):
        return self[:].count(value)

    @property
    def is_sbs(self):
        return self._is_sbs

    @property
    def is_encodable(self):
        return not self._has_binary

    @property
    def events(self):
        if self._events is None:
            if not self.session:
                return ()
            self._events = session_events(self)
        return self._events

    @property
    def has_events(self):
        return self._events is not None

    @property
    def encodings(self):
        if self._encodings is None:
            self._encodings = {}
        return self._encodings

    @property
    def has_failed(self):
        return self.committed.done() and self.committed.exception() is not None

    @property
    def last_id(self):
        return EventId(self.server, self.session, self.last_instance)

    def keep_events(self, events not None):
        self._events = events

    def answer_with(self, events not None):
        self._events, self._has_binary, self._is_sbs = events, True, False

    @property
    def event_types(self):
        cdef Py_ssize_t i
        return [(<KnownType>self._records[i].type).type for i in range(self._size)]

    @property
    def types(self):
        return set(self.event_types)

    @property
    def instances(self):
        cdef Py_ssize_t i
        return [self._records[i].instance for i in range(self._size)]

    def parts(self, Py_ssize_t max_events, size_t max_bytes):
        cdef Py_ssize_t i, begin = 0
        cdef size_t n_bytes = 0
        cdef list found = []
        for i in range(self._size):
            if i - begin == max_events or n_bytes >= max_bytes:
                found.append(slice(begin, i))
                begin, n_bytes = i, 0
            n_bytes += _payload_bytes(&self._records[i])
        if begin < self._size:
            found.append(slice(begin, self._size))
        return found

    @property
    def last_instance(self):
        return self._records[self._size - 1].instance if self._size else 0

    @property
    def object_bytes(self):
        cdef Py_ssize_t i
        cdef KnownType known
        cdef size_t n_bytes = self._capacity * sizeof(Record)
        if self._objects is not None:
            n_bytes += self._size * OBJECT_BYTES
        for i in range(self._size):
            known = <KnownType>self._records[i].type
            if known.epoch != self._types.epoch:
                n_bytes += ENTRY_OVERHEAD_BYTES + SEGMENT_BYTES * len(known.type)
        return n_bytes

    cdef bint _is_small(self):
        """Whether its objects are kept, because they are few."""
        return self._size <= KEPT_EVENTS and self.payload_bytes <= KEPT_BYTES

    cdef int _make_room(self, Py_ssize_t size) except -1:
        """Room for so many events."""
        cdef Py_ssize_t capacity
        cdef void* records
        if size > self._capacity:
            capacity = max(size, 2 * self._capacity, FIRST_EVENTS) if HAS_SPARE else size
            records = PyMem_Realloc(self._records, capacity * sizeof(Record))
            if records is NULL:
                raise MemoryError
            self._records, self._capacity = <Record*>records, capacity
        return 0

    cdef Record* _next(self) except NULL:
        """Room for one more event, which counts when its type is known (:meth:`_own`)."""
        self._make_room(self._size + 1)
        self._records[self._size].instance = self._size + 1
        return &self._records[self._size]

    cdef const char* _guess_type(self, const char* p, Record* record) except? NULL:
        """Behind the type that came here last time; NULL: it is another one."""
        cdef TypeTable types = self._types
        if types._expected >= len(types._entries):
            return NULL
        cdef KnownType known = <KnownType>types._entries[types._expected]
        cdef Py_ssize_t size = PyBytes_GET_SIZE(known.text)
        if not size or self._left(p) < size or memcmp(p, PyBytes_AS_STRING(known.text), size) != 0:
            return NULL
        self._own(record, known)
        return p + size

    cdef const char* _look_up_type(
        self, const char* p, const char* end, Record* record
    ) except? NULL:
        """Behind a type that ends there; NULL: it is none."""
        cdef TypeTable types = self._types
        cdef bytes text = PyBytes_FromStringAndSize(p, end - p)
        cdef KnownType known = types.look_up(text, text)
        if known is None:
            return NULL
        if types._before < len(types._entries):  # next time it is expected behind that one again
            (<KnownType>types._entries[types._before]).next = known.number
        self._own(record, known)
        return end

    cdef inline Py_ssize_t _left(self, const char* p):
        return PyBytes_AS_STRING(self._data) + PyBytes_GET_SIZE(self._data) - p

    cdef _own(self, Record* record, KnownType known):
        record.type = <PyObject*>known
        Py_INCREF(known)
        self._size += 1
        self._types._before, self._types._expected = known.number, known.next


cdef Batch _new(bytes data, TypeTable types, bint is_sbs):
    cdef Batch batch = Batch.__new__(Batch)
    batch._data = data
    batch._used = PyBytes_GET_SIZE(data)
    batch._types = types
    batch._is_sbs = is_sbs
    return batch


cdef inline Batch _checked(Batch batch):
    """Of a list, where None would pass as any type."""
    if batch is None:
        raise TypeError("a batch is None")
    return batch


def make_batch(
    events not None,
    TypeTable types not None,
    get_payload,
    int64_t register_id=0,
    str request_key=None,
    str after_key=None,
    list instances=None,
):
    """See the stub."""
    cdef Batch batch = _new(b"", types, False)
    batch.register_id, batch.request_key, batch.after_key = register_id, request_key, after_key
    cdef list objects = [*events]
    _fill(batch, objects, get_payload, instances, False)
    batch._objects = objects  # which may tell more, as those of modules do
    batch.requested = batch._size
    return batch


def extend_batch(
    Batch batch not None, events not None, get_payload, list instances=None, bint is_request=False
):
    """See the stub."""
    if batch._types is None:
        raise TypeError("a batch without types")
    cdef Batch added = _new(b"", batch._types, False)
    _fill(added, [*events], get_payload, instances, is_request)
    _add(batch, added, batch._size if instances is None else 0)
    batch._objects = None
    batch._is_sbs = False  # what was added has no text


cdef KnownType _too_long(object event_type):
    """An entry of a type that is refused anyway, as it is too long to be looked up; else None."""
    cdef Py_ssize_t n_characters = 0
    cdef KnownType entry
    if type(event_type) is not tuple:
        return None
    if len(event_type) <= MAX_TYPE_SEGMENTS:
        for segment in event_type:
            n_characters += len(segment)
        if n_characters <= MAX_TYPE_CHARACTERS:
            return None
    entry = KnownType.__new__(KnownType)
    entry.type, entry.json, entry.text = event_type, b"[]", b""
    return entry


cdef bytes _cut(PyObject* text, Py_ssize_t size):
    """The beginning of bytes that nobody else has; a copy would take long where they are many."""
    _PyBytes_Resize(&text, size)
    cdef bytes found = <bytes>text
    Py_DECREF(found)  # of two references
    return found


cdef bytes _bytes_of(bytes data, Py_ssize_t begin, Py_ssize_t end):
    return PyBytes_FromStringAndSize(PyBytes_AS_STRING(data) + begin, end - begin)


cdef object _object(Batch batch, Py_ssize_t i):
    """An event as an object; what making it calls may change the batch."""
    if not 0 <= i < batch._size:
        raise IndexError(i)
    cdef Record record = batch._records[i]
    cdef bytes data = batch._data
    event_type = (<KnownType>record.type).type
    source = Timestamp(record.s, record.us) if record.has_source else None
    if record.payload_kind == NO_PAYLOAD:
        return RegisterEvent(event_type, source, None)
    cdef object content = _bytes_of(data, record.payload_begin, record.payload_end)
    if record.payload_kind == JSON_FLAG:
        return RegisterEvent(event_type, source, JsonPayload(Raw(content)))
    if record.payload_kind == BINARY_FLAG:
        end = LABEL_BYTES + int.from_bytes(content[:LABEL_BYTES], "big")
        label, content = content[LABEL_BYTES:end], content[end:]
    else:
        label = _bytes_of(data, record.label_begin, record.label_end)
        if record.payload_kind == BASE64:
            content = a2b_base64(content)
    return RegisterEvent(
        event_type, source, BinaryPayload(label.decode("utf-8", "surrogatepass"), content)
    )


cdef int _fill(
    Batch batch, list events, get_payload, list instances, bint is_request
) except -1:
    """Fill a batch that nobody else has yet; else what is called here might read or change it."""
    cdef list parts = []
    cdef Record* record
    cdef Record found
    cdef KnownType known
    cdef Py_ssize_t n_payload_bytes, n_bytes = 0
    cdef bytes text
    if instances is not None:
        instances = [*instances]
        if len(instances) != len(events):
            raise ValueError("not as many instances as events")
    for event in events:
        kind, data, n_payload_bytes = get_payload(event.payload)
        event_type = event.type
        known = _too_long(event_type) if is_request else None
        if known is None:
            known = batch._types.look_up(event_type, b"")
        if known is None:
            raise ValueError("a type that cannot be stored")
        text = <bytes?>data
        if n_bytes + PyBytes_GET_SIZE(text) > MAX_MESSAGE_BYTES:
            raise ValueError("too many bytes of payloads")
        source = event.source_timestamp
        found.has_source = source is not None
        if source is not None:
            found.s, found.us = source.s, source.us
        found.payload_kind = kind
        if found.payload_kind > BINARY_FLAG:
            raise ValueError("kind of payload")
        found.payload_begin = <uint32_t>n_bytes
        n_bytes += PyBytes_GET_SIZE(text)
        found.payload_end = <uint32_t>n_bytes
        found.instance = batch._size + 1 if instances is None else instances[batch._size]
        record = batch._next()
        record[0] = found
        batch._own(record, known)
        parts.append(text)
        batch.payload_bytes += n_payload_bytes
        batch._has_binary |= found.payload_kind == BINARY_FLAG
    batch._data = b"".join(parts)
    batch._used = n_bytes
    return 0


cdef int _add(Batch batch, Batch added, int64_t before) except -1:
    """Move events to another batch, behind its own, and their payloads to where there may be room."""
    cdef bytes data = batch._data
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), n_bytes = batch._used + added._used
    cdef Record* record
    if batch._n_stagings:
        raise RuntimeError("this batch is being staged")
    if n_bytes > MAX_MESSAGE_BYTES:
        raise ValueError("too many bytes of payloads")
    batch._make_room(batch._size + added._size)
    if not batch._used:  # a large payload is not copied
        batch._data, batch._is_own = added._data, False
    else:
        if n_bytes > size or not batch._is_own:
            size = n_bytes + n_bytes // 4 if HAS_SPARE else n_bytes
            data = PyBytes_FromStringAndSize(NULL, size)
            memcpy(PyBytes_AS_STRING(data), PyBytes_AS_STRING(batch._data), batch._used)
            batch._data, batch._is_own = data, True  # nobody else has it
        memcpy(PyBytes_AS_STRING(data) + batch._used, PyBytes_AS_STRING(added._data), added._used)
    cdef Py_ssize_t i
    for i in range(added._size):
        record = &batch._records[batch._size + i]
        record[0] = added._records[i]
        record.instance += before
        record.payload_begin += <uint32_t>batch._used
        record.payload_end += <uint32_t>batch._used
    batch._size += added._size
    added._size = 0  # their types are owned by the batch now
    batch._used = n_bytes
    batch.payload_bytes += added.payload_bytes
    batch._has_binary |= added._has_binary
    return 0


def totals(list batches not None):
    """See the stub."""
    cdef Batch batch
    cdef Py_ssize_t n_events = 0, n_requested = 0, n_bytes = 0
    for batch in batches:
        n_events += _checked(batch)._size
        n_requested += batch.requested
        n_bytes += batch.payload_bytes
    return n_events, n_requested, n_bytes


def claim(list batches not None, source, quota):
    """See the stub."""
    cdef Batch batch
    cdef Py_ssize_t n_events = 0
    for batch in batches:
        n_events += max(1, _checked(batch)._size)
        batch.source, batch.quota = source, quota
    return n_events


def are_keyed(list batches not None):
    """See the stub."""
    cdef Batch batch
    for batch in batches:
        if _checked(batch).key is not None or batch.request_key is not None:
            return True
    return False


def are_alike(list batches not None):
    """See the stub."""
    cdef Batch batch
    cdef Batch first = None
    for batch in batches:
        if first is None:
            first = _checked(batch)
        if _checked(batch).committed is not first.committed or batch.first is not None:
            return False
    return True


def assign(list batches not None, int64_t server, int64_t session, int64_t s, int64_t us):
    """See the stub."""
    cdef Batch batch
    for batch in batches:
        _checked(batch)
        batch.server, batch.session, batch.s, batch.us = server, session, s, us
        session += 1


def unready(list batches not None, Py_ssize_t begin=0, Py_ssize_t end=-1):
    """See the stub."""
    cdef Batch batch
    cdef Py_ssize_t i
    if begin < 0:
        raise IndexError(begin)
    cdef KnownType known
    cdef dict found = {}  # by identity: of many events of a type, one is looked at
    for batch in [*batches]:
        for i in range(begin, _stop(_checked(batch), end)):
            known = <KnownType>batch._records[i].type
            if known.epoch == batch._types.epoch or known in found:
                continue
            if not batch._types.is_ready(known):
                found[known] = i, known.type
    return [*found.values()]


include "json.pxi"
include "sbs.pxi"
include "rows.pxi"
include "stored.pxi"
