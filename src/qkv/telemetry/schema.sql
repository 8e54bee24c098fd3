-- The telemetry of one run: telemetry.sqlite in its folder.
--
-- Three kinds of content are kept apart:
--   names   what can be measured and where: arms, addresses, measures
--   steps   a pure function of the run and of the step: equal, row for row, after a kill and a resume
--   clocks  what the wall clock said: differs from one execution to the next, and has tables of its own
--
-- A step is the number of updates made so far. A row at step s speaks of the weights after s updates; its gradient is the
-- one that made update s (so step 0 has none). Losses are in nats per token. NULL reads "undefined here", never 0.
-- An arm is one training: 0 the run itself, 1 the random-label control (called the null here), others as `arms` says.
--
-- To look at it with any SQLite client:
--   SELECT step, value FROM history WHERE address = 'L0.W_Q' AND measure = 'drift' AND arm = 'run';

PRAGMA application_id = 1902867969;  -- the bytes 'q' 'k' 'v' 1: what a careful reader looks at
PRAGMA user_version = 1;             -- the version of this schema; a reader refuses a newer one

-- names -------------------------------------------------------------------------------------------------------------

CREATE TABLE IF NOT EXISTS arms (
    arm          INTEGER PRIMARY KEY,   -- 0 run, 1 random labels, 2.. others
    name         TEXT NOT NULL UNIQUE,
    description  TEXT NOT NULL          -- one sentence
);
INSERT OR IGNORE INTO arms VALUES
    (0, 'run', 'the training itself'),
    (1, 'random labels', 'random-label control: the same model, inputs and optimizer; random labels, drawn as the manifest says');

-- Everything that has been measured: matrices, heads (L2.H3.W_Q), circuits (L2.H3.QK), activations (L2.resid_post).
CREATE TABLE IF NOT EXISTS addresses (
    id       INTEGER PRIMARY KEY,       -- in canonical order of the model's catalogue, then order of first use
    address  TEXT NOT NULL UNIQUE,
    site     TEXT NOT NULL,             -- embed attn mlp norm head; '' for what is not a catalogue entry
    layer    INTEGER,                   -- NULL outside the layers
    head     INTEGER,                   -- NULL for a whole matrix; the key/value head for L2.KV1.W_K
    kind     TEXT NOT NULL,             -- W_Q, gain, QK, ...
    shape    TEXT NOT NULL,             -- JSON list, e.g. [128, 512]
    tied_to  TEXT                       -- the other name of a tied matrix
);

-- Each measure says what it is, where it comes from and what to compare it with.
CREATE TABLE IF NOT EXISTS measures (
    id           INTEGER PRIMARY KEY,   -- in order of the registry
    name         TEXT NOT NULL UNIQUE,
    meaning      TEXT NOT NULL,         -- one plain sentence
    formula      TEXT NOT NULL,
    range        TEXT NOT NULL,         -- with its unit
    source       TEXT NOT NULL,
    property_of  TEXT NOT NULL CHECK (property_of IN ('function', 'parametrisation')),
    "null"       TEXT NOT NULL,         -- what it reads without learning
    decision     TEXT NOT NULL          -- one decision that it informs
);

-- steps -------------------------------------------------------------------------------------------------------------

-- One row per update.
CREATE TABLE IF NOT EXISTS steps (
    arm        INTEGER NOT NULL,
    step       INTEGER NOT NULL,
    tokens     INTEGER NOT NULL,        -- training tokens seen so far
    loss       REAL,                    -- training loss of this update's batch, before the update
    lr         REAL,                    -- learning rate of the first optimizer group
    grad_norm  REAL,                    -- of all gradients together, before clipping
    PRIMARY KEY (arm, step)
) WITHOUT ROWID;

-- The whole validation split, the same windows every time.
CREATE TABLE IF NOT EXISTS evaluations (
    arm            INTEGER NOT NULL,
    step           INTEGER NOT NULL,
    loss           REAL NOT NULL,
    train_loss     REAL,                -- mean over the updates since the evaluation before; NULL at step 0
    bits_per_byte  REAL,                -- NULL where the tokenizer loses something, or the task is not a language model
    metric         REAL,                -- the task's own: accuracy 0..1, BLEU 0..100
    is_best        INTEGER NOT NULL,    -- 1 if lowest loss so far
    PRIMARY KEY (arm, step)
) WITHOUT ROWID;

-- One number. Clustered by step, so that recording only ever appends; a series is one look-up per recorded step.
CREATE TABLE IF NOT EXISTS measurements (
    arm      INTEGER NOT NULL,
    step     INTEGER NOT NULL,
    measure  INTEGER NOT NULL REFERENCES measures (id),
    address  INTEGER NOT NULL REFERENCES addresses (id),
    value    REAL,
    PRIMARY KEY (arm, step, measure, address)
) WITHOUT ROWID;

-- Which steps have measurements of which measure: the index of the table above.
CREATE TABLE IF NOT EXISTS recorded (
    arm      INTEGER NOT NULL,
    measure  INTEGER NOT NULL REFERENCES measures (id),
    step     INTEGER NOT NULL,
    PRIMARY KEY (arm, measure, step)
) WITHOUT ROWID;

-- A measure that is a list: singular values, one number per token row of W_E, a histogram.
CREATE TABLE IF NOT EXISTS vectors (
    arm      INTEGER NOT NULL,
    step     INTEGER NOT NULL,
    measure  INTEGER NOT NULL REFERENCES measures (id),
    address  INTEGER NOT NULL REFERENCES addresses (id),
    dtype    TEXT NOT NULL CHECK (dtype IN ('<f4', '<f8', '<i4', '<i8')),
    data     BLOB NOT NULL,             -- little-endian
    PRIMARY KEY (arm, step, measure, address)
);

-- What the model wrote, or answered, at a step.
CREATE TABLE IF NOT EXISTS samples (
    arm     INTEGER NOT NULL,
    step    INTEGER NOT NULL,
    prompt  TEXT NOT NULL,
    text    TEXT NOT NULL,
    PRIMARY KEY (arm, step, prompt)
);

-- What happened and when: over-fitting onset, a spike, a head that specialised, a non-finite gradient.
CREATE TABLE IF NOT EXISTS events (
    arm       INTEGER NOT NULL,
    step      INTEGER NOT NULL,
    kind      TEXT NOT NULL,            -- e.g. over-fitting, spike, non-finite
    address   TEXT NOT NULL,            -- '' for the whole model
    sentence  TEXT NOT NULL,            -- what a person reads
    evidence  TEXT NOT NULL,            -- JSON object with the numbers behind the sentence
    PRIMARY KEY (arm, step, kind, address)
);

-- Anything that is one value for the run: corpus, baselines, settings of the instruments. JSON.
CREATE TABLE IF NOT EXISTS facts (
    key    TEXT PRIMARY KEY,
    step   INTEGER,                     -- NULL: true of the run; else learned at that step and dropped with it on resume
    value  TEXT NOT NULL
);

-- clocks ------------------------------------------------------------------------------------------------------------

CREATE TABLE IF NOT EXISTS clock (
    arm                INTEGER NOT NULL,
    step               INTEGER NOT NULL,
    wall_seconds       REAL NOT NULL,   -- since training began, earlier sessions of a resumed run included
    tokens_per_second  REAL,
    watch_seconds      REAL,            -- of these, spent by the instruments
    PRIMARY KEY (arm, step)
) WITHOUT ROWID;

-- What happened to the process rather than to the model: started, resumed, interrupted, a torn checkpoint skipped.
CREATE TABLE IF NOT EXISTS sessions (
    id        INTEGER PRIMARY KEY,
    arm       INTEGER NOT NULL,
    step      INTEGER NOT NULL,
    kind      TEXT NOT NULL,
    sentence  TEXT NOT NULL
);

CREATE TABLE IF NOT EXISTS clock_facts (
    key    TEXT PRIMARY KEY,
    value  TEXT NOT NULL                -- JSON
);

-- for people --------------------------------------------------------------------------------------------------------

CREATE VIEW IF NOT EXISTS history AS
SELECT arms.name AS arm, step, addresses.address AS address, measures.name AS measure, value
FROM measurements
JOIN arms USING (arm)
JOIN addresses ON addresses.id = measurements.address
JOIN measures ON measures.id = measurements.measure;
