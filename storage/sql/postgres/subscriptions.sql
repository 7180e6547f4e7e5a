CREATE TABLE IF NOT EXISTS siloring_registry (
    cluster text   COLLATE "C" NOT NULL PRIMARY KEY,
    version bigint NOT NULL CHECK (version >= 0)
) WITH (fillfactor = 50);

CREATE TABLE IF NOT EXISTS siloring_subscription (
    cluster   text   COLLATE "C" NOT NULL,
    stream    text   COLLATE "C" NOT NULL,
    key       text   COLLATE "C" NOT NULL,
    consumer  text   NOT NULL,
    handler   bigint NOT NULL,
    owner     bigint CHECK (owner > 0),
    view      bigint NOT NULL,
    filter    text   NOT NULL,
    operation text   NOT NULL,
    version   bigint NOT NULL CHECK (version > 0),
    PRIMARY KEY (cluster, stream, key)
);

CREATE INDEX IF NOT EXISTS siloring_subscription_owner ON siloring_subscription (cluster, owner)
    WHERE owner IS NOT NULL;

CREATE TABLE IF NOT EXISTS siloring_dead_letter (
    cluster            text    COLLATE "C" NOT NULL,
    stream             text    COLLATE "C" NOT NULL,
    key                text    COLLATE "C" NOT NULL,
    origin             text    COLLATE "C" NOT NULL,
    number             bigint  NOT NULL,
    position           bigint  NOT NULL GENERATED ALWAYS AS IDENTITY,
    consumer           text    NOT NULL,
    attempts           integer NOT NULL,
    reason             text    NOT NULL,
    schema_type        bigint  NOT NULL,
    schema_version     integer NOT NULL,
    schema_fingerprint integer NOT NULL,
    body               bytea   NOT NULL,
    view               bigint  NOT NULL,
    PRIMARY KEY (cluster, stream, key, origin, number)
);

CREATE INDEX IF NOT EXISTS siloring_dead_letter_position
    ON siloring_dead_letter (cluster, stream, position);
