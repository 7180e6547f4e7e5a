CREATE TABLE IF NOT EXISTS siloring_state (
    cluster            TEXT    NOT NULL,
    address            TEXT    NOT NULL,
    name               TEXT    NOT NULL,
    fence_view         INTEGER NOT NULL,
    fence_counter      INTEGER NOT NULL,
    etag               INTEGER NOT NULL DEFAULT 0,
    schema_type        INTEGER,
    schema_version     INTEGER,
    schema_fingerprint INTEGER,
    bytes              BLOB,
    PRIMARY KEY (cluster, address, name)
) STRICT;
