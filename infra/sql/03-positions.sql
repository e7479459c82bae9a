-- How far each task of each pipeline has written: moved in the transaction that writes its rows, so that both are true or
-- neither. Nobody else may change it.
-- Applying it again changes nothing.

CREATE TABLE IF NOT EXISTS payguard_positions (
    pipeline TEXT NOT NULL,
    task TEXT NOT NULL,
    seq BIGINT NOT NULL CHECK (seq > 0),
    inputs JSONB NOT NULL,
    counters JSONB NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, task)
) WITH (fillfactor = 50); -- Each row is updated all the time: its next version finds room beside it.
