CREATE TABLE IF NOT EXISTS siloring_registry (
    cluster TEXT    NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL CHECK (version >= 0)
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS siloring_subscription (
    cluster   TEXT    NOT NULL,
    stream    TEXT    NOT NULL,
    key       TEXT    NOT NULL,
    consumer  TEXT    NOT NULL,
    handler   INTEGER NOT NULL,
    owner     INTEGER CHECK (owner > 0),
    view      INTEGER NOT NULL,
    filter    TEXT    NOT NULL,
    operation TEXT    NOT NULL,
    version   INTEGER NOT NULL CHECK (version > 0),
    PRIMARY KEY (cluster, stream, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS siloring_subscription_owner ON siloring_subscription (cluster, owner)
    WHERE owner IS NOT NULL;

CREATE TABLE IF NOT EXISTS siloring_dead_letter (
    position           INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    cluster            TEXT    NOT NULL,
    stream             TEXT    NOT NULL,
    key                TEXT    NOT NULL,
    origin             TEXT    NOT NULL,
    number             INTEGER NOT NULL,
    consumer           TEXT    NOT NULL,
    attempts           INTEGER NOT NULL,
    reason             TEXT    NOT NULL,
    schema_type        INTEGER NOT NULL,
    schema_version     INTEGER NOT NULL,
    schema_fingerprint INTEGER NOT NULL,
    body               BLOB    NOT NULL,
    view               INTEGER NOT NULL,
    UNIQUE (cluster, stream, key, origin, number)
) STRICT;

CREATE INDEX IF NOT EXISTS siloring_dead_letter_position
    ON siloring_dead_letter (cluster, stream, position);
