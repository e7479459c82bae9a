-- The merchants of the demonstration: 50, of them 5 HIGH, 15 MEDIUM, 30 LOW.
-- Applying it again changes nothing.

INSERT INTO merchants (merchant_id, risk_level)
SELECT
    'm-' || lpad(n::text, 4, '0'),
    CASE WHEN n % 10 = 0 THEN 'HIGH' WHEN n % 3 = 0 THEN 'MEDIUM' ELSE 'LOW' END
FROM generate_series(0, 49) AS n
ON CONFLICT (merchant_id) DO NOTHING;
