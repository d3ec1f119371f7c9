"""The lake: events as Delta tables, written by ``deltalake`` without a JVM.

Tables
    ``LAKE/events`` has the events, ``LAKE/latest`` the last one of each type, and ``LAKE/rollups``
    what they were in each minute, hour and day (``rollups``). The latter two are derived from the
    first, and can be rebuilt from it.

Each event once
    Ids of a server ascend, so its position in the lake, its last event, says which events are
    there. It is kept in *application transactions* of the table ``events``
    (``writer``), committed together with the files. A writer reads the
    positions, writes the events after them to files of the table's folder, and commits. Delta
    rejects a commit if another one has changed a transaction of the same application since the
    writer read it: of two ingestions of the same events, the second changes nothing.

Who commits
    Processes write files in parts; a file is no part of the table yet. One commit adds the files of
    a batch, or of a whole store (``ingest``). The derived tables have a
    transaction of their own: the version of ``events`` that they include. So each includes each
    commit once (``maintenance``).

What a crash leaves
    A writer that is killed before it commits leaves files that belong to no table. They are never
    read, and the vacuum of ``mariner lake compact`` removes them, with the files that compaction
    replaced, when they are older than its grace. A batch that took longer than that is refused when
    it is committed, because its files are gone.

Compaction
    Changes files but no rows, and conflicts with no writer (``maintenance``).
    Readers keep the files of the version that they read until a vacuum.

``README.md`` beside this file shows how to read a lake with other tools.
"""
