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
from cpython.dict cimport PyDict_GetItem
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.unicode cimport PyUnicode_DecodeASCII, PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport qsort
from libc.string cimport memcmp, memcpy, memmove, strncmp
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec


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
    ENTRY_OVERHEAD_BYTES = 600  # of a known type, besides its texts

    TYPE_BYTES = 4
    TIMESTAMP_BYTES = 12
    INT_BYTES = 8
    ORIGIN_BYTES = TIMESTAMP_BYTES + INT_BYTES
    LOCAL_ID_BYTES = 2 * INT_BYTES
    POSITION_BYTES = ORIGIN_BYTES + LOCAL_ID_BYTES
    KEY_BYTES = TYPE_BYTES + POSITION_BYTES
    ENTRY_BYTES = LOCAL_ID_BYTES + TYPE_BYTES
    SOURCE_KEY_BYTES = TYPE_BYTES + TIMESTAMP_BYTES + POSITION_BYTES


# an event of a request
ctypedef struct Record:
    PyObject* type  # a KnownType, owned
    int64_t s  # of its source timestamp
    uint32_t us
    uint8_t has_source
    uint8_t has_payload
    uint32_t payload_begin  # in the message
    uint32_t payload_end


@cython.final
cdef class KnownType:
    cdef readonly object type
    cdef readonly bytes type_id
    cdef bytes text  # as it came
    cdef bytes json
    cdef Py_ssize_t number, next  # in the table; of the type that followed this one last time
    # of the call of ``PackedRows.stage`` that has this number
    cdef uint64_t turn
    cdef PyObject* first  # the one of its type that came first, whose order counts; may be itself
    cdef bint is_ended, is_new  # its order; nothing is in order yet
    cdef uint8_t last_source[TIMESTAMP_BYTES]
    cdef uint8_t last_position[POSITION_BYTES]
    cdef long n_passed
    cdef long n_events
    cdef size_t n_bytes


@cython.final
cdef class KnownTypes:
    """See the stub."""

    cdef readonly long epoch
    cdef object _find
    cdef dict _by_text
    cdef list _entries
    cdef Py_ssize_t _max_bytes, _n_bytes
    cdef Py_ssize_t _before, _expected  # number of the type that came last; of the one expected next

    def __init__(self, find, Py_ssize_t max_bytes):
        self._find = find
        self._max_bytes = max_bytes
        self.epoch = 0
        self.clear()

    def __len__(self):
        return len(self._entries)

    def clear(self):
        self.epoch += 1
        self._forget()

    cdef _forget(self):
        self._by_text = {}
        self._entries = []
        self._n_bytes = 0
        self._before = self._expected = 0

    cdef KnownType look_up(self, bytes text):
        cdef PyObject* found = PyDict_GetItem(self._by_text, text)
        if found is not NULL:
            return <KnownType>found
        known = self._find(text)
        if known is None:
            return None
        cdef KnownType entry = KnownType.__new__(KnownType)
        entry.type, type_id, json = known
        entry.type_id, entry.json = <bytes?>type_id, <bytes?>json
        if PyBytes_GET_SIZE(entry.type_id) != TYPE_BYTES:
            raise ValueError("type_id")
        entry.text = text
        cdef Py_ssize_t n_bytes = PyBytes_GET_SIZE(text) + PyBytes_GET_SIZE(entry.json)
        n_bytes += ENTRY_OVERHEAD_BYTES
        if n_bytes > self._max_bytes:
            return None
        if self._n_bytes + n_bytes > self._max_bytes:
            self._forget()
        self._n_bytes += n_bytes
        entry.number = entry.next = len(self._entries)
        self._entries.append(entry)
        self._by_text[text] = entry
        return entry


@cython.final
cdef class Packed:
    """See the stub."""

    cdef readonly int64_t register_id
    cdef readonly Py_ssize_t payload_bytes
    cdef readonly str request_key, after_key
    cdef readonly int64_t server, session, s, us
    cdef bytes _message
    cdef object _decode, _events
    cdef KnownTypes _types
    cdef long _epoch
    cdef bint _is_sbs
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
        return iter(self.events)

    def __getitem__(self, index):
        return self.events[index]

    def __repr__(self):
        return repr(self.events)

    def index(self, *args):
        return self.events.index(*args)

    def count(self, value):
        return self.events.count(value)

    @property
    def is_valid(self):
        return self._types is not None and self._epoch == self._types.epoch

    @property
    def events(self):
        if self._events is None:
            self._events = self._decode(self._message)
        return self._events

    @property
    def register_events(self):
        return self

    @property
    def event_types(self):
        cdef Py_ssize_t i
        return [(<KnownType>self._records[i].type).type for i in range(self._size)]

    @property
    def types(self):
        return set(self.event_types)

    cdef Record* _next(self) except NULL:
        """Room for one more event, which counts when its type is known (:meth:`_own`)."""
        cdef Py_ssize_t capacity
        cdef void* records
        if self._size == self._capacity:
            capacity = 2 * self._capacity or FIRST_EVENTS if HAS_SPARE else self._size + 1
            records = PyMem_Realloc(self._records, capacity * sizeof(Record))
            if records is NULL:
                raise MemoryError
            self._records, self._capacity = <Record*>records, capacity
        return &self._records[self._size]

    cdef const char* _guess_type(self, const char* p, Record* record) except? NULL:
        """Behind the type that came here last time; NULL: it is another one."""
        cdef KnownTypes types = self._types
        if types._expected >= len(types._entries):
            return NULL
        cdef KnownType known = <KnownType>types._entries[types._expected]
        cdef Py_ssize_t size = PyBytes_GET_SIZE(known.text)
        if self._left(p) < size or memcmp(p, PyBytes_AS_STRING(known.text), size) != 0:
            return NULL
        self._own(record, known)
        return p + size

    cdef const char* _look_up_type(
        self, const char* p, const char* end, Record* record
    ) except? NULL:
        """Behind a type that ends there; NULL: it is not known."""
        cdef KnownTypes types = self._types
        cdef KnownType known = types.look_up(PyBytes_FromStringAndSize(p, end - p))
        if known is None:
            return NULL
        if types._before < len(types._entries):  # next time it is expected behind that one again
            (<KnownType>types._entries[types._before]).next = known.number
        self._own(record, known)
        return end

    cdef inline Py_ssize_t _left(self, const char* p):
        return PyBytes_AS_STRING(self._message) + PyBytes_GET_SIZE(self._message) - p

    cdef _own(self, Record* record, KnownType known):
        record.type = <PyObject*>known
        Py_INCREF(known)
        self._size += 1
        self._types._before, self._types._expected = known.number, known.next


cdef Packed _new(bytes message, KnownTypes types, object decode, bint is_sbs):
    cdef Packed packed = Packed.__new__(Packed)
    packed._message = message
    packed._decode = decode
    packed._types = types
    packed._epoch = types.epoch
    packed._is_sbs = is_sbs
    return packed


include "json.pxi"
include "sbs.pxi"
include "rows.pxi"
include "stored.pxi"
