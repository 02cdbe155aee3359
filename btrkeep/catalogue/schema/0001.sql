-- The first schema of the catalogue. Never changed after a release: later changes are 0002.sql and so on (docs/decisions/0079).

-- Facts about the pool and about this file, by name.
CREATE TABLE about (
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    CONSTRAINT about_key PRIMARY KEY (name)
);

-- The hosts that ever had a row. A row is never deleted.
CREATE TABLE host (
    name TEXT NOT NULL,
    CONSTRAINT host_key PRIMARY KEY (name)
);

-- A backup's name is '' while it is unfinished: NULLs are never equal, and a key must be unique.
CREATE TABLE backup (
    host TEXT NOT NULL,
    name TEXT NOT NULL,
    path TEXT NOT NULL,
    state TEXT NOT NULL,
    started TEXT NOT NULL,
    finished TEXT,
    duration FLOAT,
    files BIGINT,
    bytes BIGINT,
    new_bytes BIGINT,
    error TEXT,
    warnings TEXT,
    base TEXT,
    subvolume_id BIGINT,
    uuid TEXT,
    outcome TEXT,
    expired TEXT,
    held_until TEXT,
    held_why TEXT,
    cause TEXT,
    shared_bytes BIGINT,
    sealed BIGINT,
    CONSTRAINT backup_key PRIMARY KEY (host, name),
    CONSTRAINT backup_of_host FOREIGN KEY(host) REFERENCES host (name),
    CONSTRAINT backup_state_known CHECK (state IN ('running', 'partial', 'complete', 'suspect', 'failed', 'altered', 'expired',
        'deleting'))
);
CREATE INDEX backup_by_start ON backup (host, started, name);

-- Some kilobytes each, so a table of its own: a list of all backups does not read it.
CREATE TABLE backup_detail (
    host TEXT NOT NULL,
    name TEXT NOT NULL,
    detail TEXT NOT NULL,
    CONSTRAINT backup_detail_key PRIMARY KEY (host, name),
    CONSTRAINT backup_detail_of_backup FOREIGN KEY(host, name) REFERENCES backup (host, name) ON DELETE CASCADE
);

-- AUTOINCREMENT here and below: the id of a deleted row is never given to another one.
CREATE TABLE run (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    host TEXT NOT NULL,
    started TEXT NOT NULL,
    finished TEXT,
    outcome TEXT,
    backup TEXT,
    attempts INTEGER NOT NULL,
    exit_code INTEGER,
    meaning TEXT,
    error TEXT,
    last_lines TEXT,
    literal_bytes BIGINT,
    matched_bytes BIGINT,
    received_bytes BIGINT,
    rsync_version TEXT,
    protocol INTEGER,
    pid INTEGER NOT NULL,
    pid_started TEXT,
    night BOOLEAN NOT NULL,
    cause TEXT,
    shared_bytes BIGINT,
    CONSTRAINT run_of_host FOREIGN KEY(host) REFERENCES host (name),
    CONSTRAINT run_outcome_known CHECK (outcome IN ('complete', 'suspect', 'failed', 'partial', 'skipped'))
);
CREATE INDEX run_by_host ON run (host, id);
CREATE INDEX run_by_end ON run (finished);

CREATE TABLE progress (
    host TEXT NOT NULL,
    run_id INTEGER NOT NULL,
    pid INTEGER NOT NULL,
    pid_started TEXT,
    path TEXT NOT NULL,
    files_done BIGINT NOT NULL,
    files_total BIGINT,
    bytes BIGINT NOT NULL,
    rate FLOAT,
    share FLOAT,
    updated TEXT NOT NULL,
    CONSTRAINT progress_key PRIMARY KEY (host),
    CONSTRAINT progress_of_host FOREIGN KEY(host) REFERENCES host (name),
    CONSTRAINT progress_of_run FOREIGN KEY(run_id) REFERENCES run (id) ON DELETE CASCADE
);

CREATE TABLE expiry (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    started TEXT NOT NULL,
    finished TEXT,
    outcome TEXT,
    pid INTEGER NOT NULL,
    pid_started TEXT,
    planned INTEGER NOT NULL,
    marked INTEGER NOT NULL,
    revived INTEGER NOT NULL,
    deleted INTEGER NOT NULL,
    left_out INTEGER NOT NULL,
    waiting INTEGER,
    most_waiting INTEGER,
    rate FLOAT,
    eta FLOAT,
    written_bytes BIGINT,
    mount_option TEXT,
    paused TEXT,
    error TEXT,
    updated TEXT NOT NULL,
    hosts INTEGER,
    CONSTRAINT expiry_outcome_known CHECK (outcome IN ('complete', 'partial', 'stopped', 'failed', 'killed'))
);

CREATE TABLE score (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    filesystem TEXT NOT NULL,
    taken TEXT NOT NULL,
    block_groups INTEGER NOT NULL,
    length BIGINT NOT NULL,
    used BIGINT NOT NULL,
    unallocated BIGINT NOT NULL,
    fragments BIGINT NOT NULL,
    score FLOAT NOT NULL,
    bad INTEGER NOT NULL,
    largest_free BIGINT NOT NULL,
    free_in_large BIGINT NOT NULL,
    histogram TEXT NOT NULL
);
CREATE INDEX score_by_time ON score (filesystem, taken, id);

CREATE TABLE balance (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    filesystem TEXT NOT NULL,
    mountpoint TEXT NOT NULL,
    started TEXT NOT NULL,
    finished TEXT,
    outcome TEXT,
    why TEXT,
    policy TEXT NOT NULL,
    budget BIGINT,
    pid INTEGER NOT NULL,
    pid_started TEXT,
    block_groups INTEGER NOT NULL,
    moved BIGINT NOT NULL,
    written BIGINT,
    gained FLOAT NOT NULL,
    failed INTEGER NOT NULL,
    current BIGINT,
    "before" TEXT,
    "after" TEXT,
    updated TEXT NOT NULL,
    CONSTRAINT balance_outcome_known CHECK (outcome IN ('done', 'budget', 'time', 'window', 'stopped', 'unallocated',
        'exclusive operation', 'backups', 'pressure', 'no space', 'failed', 'killed'))
);
CREATE INDEX balance_by_filesystem ON balance (filesystem, id);

CREATE TABLE balance_step (
    balance INTEGER NOT NULL,
    number INTEGER NOT NULL,
    vaddr BIGINT NOT NULL,
    length BIGINT NOT NULL,
    used BIGINT NOT NULL,
    extents BIGINT,
    refs BIGINT,
    fragments BIGINT NOT NULL,
    score FLOAT NOT NULL,
    started TEXT NOT NULL,
    seconds FLOAT NOT NULL,
    moved BIGINT NOT NULL,
    written BIGINT,
    estimate_written BIGINT,
    estimate_seconds FLOAT,
    gained FLOAT NOT NULL,
    outcome TEXT NOT NULL,
    error TEXT,
    CONSTRAINT balance_step_key PRIMARY KEY (balance, number),
    CONSTRAINT balance_step_of_balance FOREIGN KEY(balance) REFERENCES balance (id) ON DELETE CASCADE,
    CONSTRAINT balance_step_outcome_known CHECK (outcome IN ('done', 'gone', 'no space', 'cancelled', 'failed'))
);

CREATE TABLE sample (
    filesystem TEXT NOT NULL,
    taken TEXT NOT NULL,
    span TEXT NOT NULL,
    size BIGINT NOT NULL,
    allocated BIGINT NOT NULL,
    used BIGINT NOT NULL,
    spaces TEXT NOT NULL,
    devices TEXT NOT NULL,
    orphans INTEGER,
    score FLOAT,
    scored TEXT,
    options TEXT NOT NULL,
    activity TEXT NOT NULL,
    seconds FLOAT NOT NULL,
    read BIGINT NOT NULL,
    written BIGINT NOT NULL,
    peak_read FLOAT NOT NULL,
    peak_written FLOAT NOT NULL,
    pressure TEXT NOT NULL,
    counters TEXT NOT NULL,
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    CONSTRAINT sample_span_known CHECK (span IN ('raw', 'hour', 'day'))
);
CREATE INDEX sample_by_time ON sample (filesystem, taken, id);
CREATE INDEX sample_by_span ON sample (filesystem, span, taken);

CREATE TABLE alarm (
    what TEXT NOT NULL,
    subject TEXT NOT NULL,
    text TEXT NOT NULL,
    grade BIGINT NOT NULL,
    since TEXT NOT NULL,
    times INTEGER NOT NULL,
    told TEXT,
    recovered TEXT,
    cleared TEXT,
    CONSTRAINT alarm_key PRIMARY KEY (what, subject)
);

CREATE TABLE damage (
    host TEXT NOT NULL,
    name TEXT NOT NULL,
    path TEXT NOT NULL,
    start BIGINT NOT NULL,
    length BIGINT NOT NULL,
    found_by TEXT NOT NULL,
    found_at TEXT NOT NULL,
    fate TEXT,
    CONSTRAINT damage_key PRIMARY KEY (host, name, path, start),
    CONSTRAINT damage_damage_found_by_known CHECK (found_by IN ('scrub', 'verify', 'source', 'device'))
);

CREATE TABLE verification (
    host TEXT NOT NULL,
    name TEXT NOT NULL,
    begun TEXT NOT NULL,
    at TEXT NOT NULL,
    read BIGINT NOT NULL,
    compared BIGINT NOT NULL,
    whole TEXT,
    CONSTRAINT verification_key PRIMARY KEY (host, name)
);

CREATE TABLE comparison (
    host TEXT NOT NULL,
    name TEXT NOT NULL,
    at TEXT NOT NULL,
    files BIGINT NOT NULL,
    alike BIGINT NOT NULL,
    changed BIGINT NOT NULL,
    differing BIGINT NOT NULL,
    CONSTRAINT comparison_key PRIMARY KEY (host, name)
);

CREATE TABLE dedupe (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    started TEXT NOT NULL,
    finished TEXT,
    outcome TEXT,
    pid INTEGER NOT NULL,
    pid_started TEXT,
    backups INTEGER NOT NULL,
    files BIGINT NOT NULL,
    shared_bytes BIGINT NOT NULL,
    read_bytes BIGINT NOT NULL,
    left_out INTEGER NOT NULL,
    data_saved BIGINT,
    metadata_added BIGINT,
    updated TEXT NOT NULL,
    CONSTRAINT dedupe_outcome_known CHECK (outcome IN ('complete', 'stopped', 'failed', 'killed'))
);
