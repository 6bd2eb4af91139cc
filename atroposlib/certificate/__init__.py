"""Certificate of a row: seals of its writers, and the claims that they prove."""
