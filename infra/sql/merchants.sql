-- The merchant directory: the table that the enrichment of alerts reads, and the merchants of the demonstration.
-- Applying it again changes nothing.

CREATE TABLE IF NOT EXISTS merchants (
    merchant_id TEXT PRIMARY KEY,
    risk_level TEXT NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL DEFAULT now()
);

-- 50 merchants: 5 HIGH, 15 MEDIUM, 30 LOW.
INSERT INTO merchants (merchant_id, risk_level)
SELECT
    'm-' || lpad(n::text, 4, '0'),
    CASE WHEN n % 10 = 0 THEN 'HIGH' WHEN n % 3 = 0 THEN 'MEDIUM' ELSE 'LOW' END
FROM generate_series(0, 49) AS n
ON CONFLICT (merchant_id) DO NOTHING;
