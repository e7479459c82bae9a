-- Totals of merchants by the minute. A window's end follows from its start, so the key goes without it.
-- Applying it again changes nothing.

CREATE TABLE IF NOT EXISTS merchant_stats (
    merchant_id TEXT NOT NULL,
    window_start_ms BIGINT NOT NULL,
    window_end_ms BIGINT NOT NULL,
    payment_count BIGINT NOT NULL,
    amount_minor BIGINT NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (merchant_id, window_start_ms)
);
