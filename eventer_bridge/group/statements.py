"""What is asked of PostgreSQL.

One database may hold several groups. ``$1`` is the name of one; of what the active member changes,
``$2`` is its epoch.
"""
# ruff: noqa: S608  # made of constants

from typing import Final

STANDBYS: Final = "current_setting('synchronous_standby_names') AS standbys"
"""What a change returns, to tell whether it was replicated."""

SETTINGS: Final = f"""
SELECT {STANDBYS}, current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes
"""

TIMELINE: Final = "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"

# --- tables -------------------------------------------------------------------------------

TABLES: Final = (
    "CREATE SCHEMA IF NOT EXISTS mariner",
    # the row changes with each append, within its page
    """\
CREATE TABLE IF NOT EXISTS mariner.groups (
    name text PRIMARY KEY,
    group_id text NOT NULL,
    server_id bigint NOT NULL,
    epoch bigint NOT NULL DEFAULT 0,
    attempt bigint NOT NULL DEFAULT 0,
    active text,
    since timestamptz NOT NULL DEFAULT clock_timestamp(),
    beat bigint NOT NULL DEFAULT 0,
    position bigint NOT NULL DEFAULT 0,
    acknowledged bigint NOT NULL DEFAULT 0,
    trimmed bigint NOT NULL DEFAULT 0,
    base text
) WITH (fillfactor = 10)""",
    # a row for each part; only the last one has n_parts, and n_bytes of all of them
    """\
CREATE TABLE IF NOT EXISTS mariner.records (
    name text NOT NULL,
    position bigint NOT NULL,
    part integer NOT NULL,
    epoch bigint NOT NULL,
    n_parts integer,
    n_bytes bigint,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    data bytea NOT NULL,
    PRIMARY KEY (name, position, part)
)""",
    "ALTER TABLE mariner.records ALTER COLUMN data SET STORAGE EXTERNAL",  # it is compressed
    """\
CREATE TABLE IF NOT EXISTS mariner.members (
    name text NOT NULL,
    member text NOT NULL,
    position bigint NOT NULL,
    seen timestamptz NOT NULL,
    PRIMARY KEY (name, member)
)""",
)
"""What who may create a schema runs once; does no harm again."""

HAS_TABLES: Final = "SELECT to_regclass('mariner.members') IS NOT NULL"  # the last of them


def set_up(role: str) -> str:
    """The tables, and all that the role of the gateways may do: for an administrator to run."""
    quoted = '"' + role.replace('"', '""') + '"'
    rights = (
        f"GRANT USAGE ON SCHEMA mariner TO {quoted}",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON mariner.groups, mariner.records, mariner.members"
        f" TO {quoted}",
    )
    return "".join(f"{statement};\n" for statement in (*TABLES, *rights))


# --- the row of a group, and records ------------------------------------------------------

CREATE: Final = f"""
INSERT INTO mariner.groups (name, group_id, server_id) VALUES ($1, $2, $3)
ON CONFLICT DO NOTHING RETURNING {STANDBYS}
"""

_ROW: Final = (
    "group_id, server_id, epoch, active, extract(epoch FROM since)::float8 AS since_s, beat,"
    " position, acknowledged, trimmed, base"
)
STATE: Final = f"SELECT {_ROW}, attempt FROM mariner.groups WHERE name = $1"

_MINE: Final = "name = $1::text AND epoch = $2::bigint AND active IS NOT NULL"
_NEXT: Final = f"{_MINE} AND attempt = $3::bigint AND position = $4::bigint - 1"

_REMOVED: Final = """removed AS (
    DELETE FROM mariner.records r USING changed c WHERE r.name = $1 AND r.position > c.position
)"""
"""Unfinished records. A part that it does not see, as it came while the row was locked, is passed
over by readers."""

CLAIM: Final = f"""
WITH changed AS (
    UPDATE mariner.groups SET epoch = epoch + 1, attempt = attempt + 1, active = $4,
        since = clock_timestamp(), beat = beat + 1, base = coalesce(base, $5)
    WHERE name = $1 AND epoch = $2 AND (beat = $3 OR active IS NULL) RETURNING *
), {_REMOVED}
SELECT {_ROW}, attempt, {STANDBYS} FROM changed
"""

SETTLE: Final = f"""
WITH changed AS (
    UPDATE mariner.groups SET attempt = attempt + 1, beat = beat + 1 WHERE {_MINE} RETURNING *
), {_REMOVED}
SELECT position, attempt, {STANDBYS} FROM changed
"""

BEAT: Final = f"""
UPDATE mariner.groups SET beat = beat + 1, acknowledged = greatest(acknowledged, $3::bigint)
WHERE {_MINE} RETURNING {STANDBYS}
"""

RELEASE: Final = f"""
UPDATE mariner.groups SET active = NULL, since = clock_timestamp(), beat = beat + 1
WHERE {_MINE} RETURNING {STANDBYS}
"""

_PUT: Final = f"""
ON CONFLICT (name, position, part) DO UPDATE SET epoch = excluded.epoch,
    n_parts = excluded.n_parts, n_bytes = excluded.n_bytes, at = excluded.at, data = excluded.data
RETURNING {STANDBYS}
"""

PART: Final = f"""
INSERT INTO mariner.records (name, epoch, position, part, data)
SELECT $1::text, $2::bigint, $4::bigint, $5::integer, $6::bytea
FROM mariner.groups WHERE {_NEXT} FOR SHARE {_PUT}
"""

APPEND: Final = f"""
WITH changed AS (
    UPDATE mariner.groups
    SET position = $4::bigint, acknowledged = greatest(acknowledged, $4::bigint - 1),
        beat = beat + 1
    WHERE {_NEXT} RETURNING 1
)
INSERT INTO mariner.records (name, epoch, position, part, data, n_parts, n_bytes)
SELECT $1::text, $2::bigint, $4::bigint, $5::integer, $6::bytea, $5::integer + 1, $7::bigint
FROM changed {_PUT}
"""

READ: Final = """
WITH sized AS (
    SELECT position, epoch, n_parts, n_bytes FROM mariner.records
    WHERE name = $1 AND position > $2 AND position <= $3 AND n_parts IS NOT NULL
    ORDER BY position LIMIT $5
), summed AS (
    SELECT *, sum(n_bytes) OVER (ORDER BY position) AS n_total, min(position) OVER () AS first
    FROM sized
)
SELECT s.position, s.epoch, s.n_parts, r.data FROM summed s JOIN mariner.records r
    ON r.name = $1 AND r.position = s.position AND r.part < s.n_parts
WHERE s.n_total <= $4 OR s.position = s.first ORDER BY s.position, r.part
"""

# --- members and trimming ----------------------------------------------------------------

# need not be replicated before it returns: the next one says more
NOTE_MEMBER: Final = """
INSERT INTO mariner.members (name, member, position, seen)
SELECT $1::text, $2::text, $3::bigint, clock_timestamp()
FROM set_config('synchronous_commit', 'off', true)
ON CONFLICT (name, member) DO UPDATE SET position = excluded.position, seen = excluded.seen
"""

MEMBERS: Final = """
SELECT member, position, extract(epoch FROM clock_timestamp() - seen)::float8 AS seen_s,
    extract(epoch FROM clock_timestamp() - (
        SELECT at FROM mariner.records r
        WHERE r.name = m.name AND r.position > m.position AND r.n_parts IS NOT NULL
        ORDER BY r.position LIMIT 1
    ))::float8 AS lag_s
FROM mariner.members m WHERE name = $1 ORDER BY member COLLATE "C"
"""

REMOVE_MEMBER: Final = f"""
DELETE FROM mariner.members WHERE name = $1 AND member = $2 RETURNING {STANDBYS}
"""

# before the records go, so that nobody takes their rest for all of them
TRIM: Final = f"""
WITH known AS (
    SELECT min(position) AS position, count(*) AS number FROM mariner.members WHERE name = $1
), oldest AS (
    SELECT r.position, extract(epoch FROM clock_timestamp() - at) AS age_s
    FROM mariner.records r JOIN mariner.groups USING (name)
    WHERE r.name = $1 AND r.position > trimmed AND r.n_parts IS NOT NULL
    ORDER BY r.position LIMIT $4
)
UPDATE mariner.groups g SET trimmed = least(g.acknowledged, t.up_to)
FROM (
    SELECT greatest(
        (SELECT position FROM known WHERE number > 1),
        (SELECT max(o.position) FROM oldest o, known
            WHERE number = 1 AND o.position <= known.position AND age_s > $3::float8),
        (SELECT max(position) FROM oldest WHERE age_s > $2::float8)
    ) AS up_to
) t
WHERE g.name = $1 AND g.acknowledged > g.trimmed AND t.up_to > g.trimmed  -- not so if it is null
RETURNING {STANDBYS}
"""
"""What is older than ``$2`` seconds goes anyhow; where there is one member, what it has and is
older than ``$3``."""

REMOVE_TRIMMED: Final = f"""
WITH removed AS (
    DELETE FROM mariner.records WHERE name = $1 AND position <= least(
        (SELECT trimmed FROM mariner.groups WHERE name = $1),
        (SELECT min(position) FROM mariner.records WHERE name = $1) + $2::bigint - 1
    ) RETURNING n_parts
)
SELECT count(*) AS n_rows, count(n_parts) AS n_records, {STANDBYS} FROM removed
"""
