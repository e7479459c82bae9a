-- The merchant directory: the table that the enrichment of alerts reads.
-- Applying it again changes nothing.

CREATE TABLE IF NOT EXISTS merchants (
    merchant_id TEXT PRIMARY KEY,
    risk_level TEXT NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL DEFAULT now()
);
