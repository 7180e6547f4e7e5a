CREATE TABLE IF NOT EXISTS siloring_cluster (
    cluster     text   COLLATE "C" NOT NULL PRIMARY KEY,
    view_number bigint NOT NULL CHECK (view_number >= 0)
);

CREATE TABLE IF NOT EXISTS siloring_silo (
    cluster    text    COLLATE "C" NOT NULL,
    generation bigint  NOT NULL CHECK (generation > 0),
    name       text    NOT NULL,
    status     text    NOT NULL CHECK (status IN ('joining', 'active', 'draining', 'dead')),
    advertised text    NOT NULL,
    host       text    NOT NULL,
    shards     integer NOT NULL CHECK (shards > 0),
    votes      text    NOT NULL,
    changed_in bigint  NOT NULL,
    heartbeat  bigint  NOT NULL DEFAULT 0,
    PRIMARY KEY (cluster, generation)
) WITH (fillfactor = 50);

CREATE TABLE IF NOT EXISTS siloring_setting (
    cluster text COLLATE "C" NOT NULL,
    name    text COLLATE "C" NOT NULL,
    value   text NOT NULL,
    PRIMARY KEY (cluster, name)
);

CREATE OR REPLACE FUNCTION siloring_refuse_return() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    IF OLD.status = 'dead' AND NEW.status <> 'dead' THEN
        RAISE EXCEPTION 'a Dead incarnation never returns (% at generation %)', OLD.name, OLD.generation
            USING ERRCODE = 'SR001';
    END IF;
    RETURN NEW;
END
$body$;

DROP TRIGGER IF EXISTS siloring_silo_dead_stays_dead ON siloring_silo;
CREATE TRIGGER siloring_silo_dead_stays_dead BEFORE UPDATE ON siloring_silo
    FOR EACH ROW EXECUTE FUNCTION siloring_refuse_return();

CREATE OR REPLACE FUNCTION siloring_refuse_regress() RETURNS trigger LANGUAGE plpgsql AS $body$
BEGIN
    IF NEW.view_number <= OLD.view_number THEN
        RAISE EXCEPTION 'the view never goes back (% to %)', OLD.view_number, NEW.view_number
            USING ERRCODE = 'SR002';
    END IF;
    RETURN NEW;
END
$body$;

DROP TRIGGER IF EXISTS siloring_cluster_view_rises ON siloring_cluster;
CREATE TRIGGER siloring_cluster_view_rises BEFORE UPDATE ON siloring_cluster
    FOR EACH ROW EXECUTE FUNCTION siloring_refuse_regress();
