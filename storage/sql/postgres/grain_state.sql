CREATE TABLE IF NOT EXISTS siloring_state (
    cluster            text    COLLATE "C" NOT NULL,
    address            text    COLLATE "C" NOT NULL,
    name               text    COLLATE "C" NOT NULL,
    fence_view         bigint  NOT NULL,
    fence_counter      bigint  NOT NULL,
    etag               bigint  NOT NULL DEFAULT 0,
    schema_type        bigint,
    schema_version     integer,
    schema_fingerprint integer,
    bytes              bytea,
    PRIMARY KEY (cluster, address, name)
);
