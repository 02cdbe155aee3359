-- Hosts, groups and kinds of problems that a user has silenced until a date (docs/monitoring.rst).
CREATE TABLE silence (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    until TEXT NOT NULL,
    who TEXT NOT NULL,
    why TEXT NOT NULL,
    since TEXT NOT NULL,
    paused BOOLEAN NOT NULL,
    CONSTRAINT silence_key PRIMARY KEY (kind, name),
    CONSTRAINT silence_kind_known CHECK (kind IN ('host', 'group', 'problem'))
);
