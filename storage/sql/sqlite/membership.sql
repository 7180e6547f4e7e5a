CREATE TABLE IF NOT EXISTS siloring_cluster (
    cluster     TEXT    NOT NULL PRIMARY KEY,
    view_number INTEGER NOT NULL CHECK (view_number >= 0)
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS siloring_silo (
    cluster    TEXT    NOT NULL,
    generation INTEGER NOT NULL CHECK (generation > 0),
    name       TEXT    NOT NULL,
    status     TEXT    NOT NULL CHECK (status IN ('joining', 'active', 'draining', 'dead')),
    advertised TEXT    NOT NULL,
    host       TEXT    NOT NULL,
    shards     INTEGER NOT NULL CHECK (shards > 0),
    votes      TEXT    NOT NULL,
    changed_in INTEGER NOT NULL,
    heartbeat  INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (cluster, generation)
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS siloring_setting (
    cluster TEXT NOT NULL,
    name    TEXT NOT NULL,
    value   TEXT NOT NULL,
    PRIMARY KEY (cluster, name)
) STRICT, WITHOUT ROWID;

DROP TRIGGER IF EXISTS siloring_silo_dead_stays_dead;
CREATE TRIGGER siloring_silo_dead_stays_dead BEFORE UPDATE ON siloring_silo
WHEN OLD.status = 'dead' AND NEW.status <> 'dead'
BEGIN
    SELECT RAISE(ABORT, 'siloring: a Dead incarnation never returns');
END;

DROP TRIGGER IF EXISTS siloring_cluster_view_rises;
CREATE TRIGGER siloring_cluster_view_rises BEFORE UPDATE ON siloring_cluster
WHEN NEW.view_number <= OLD.view_number
BEGIN
    SELECT RAISE(ABORT, 'siloring: the view never goes back');
END;
