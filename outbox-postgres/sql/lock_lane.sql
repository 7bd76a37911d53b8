-- Waits for the claim that holds the lane: what it settles may block or unblock the same keys.
SELECT lane FROM {schema}.lane WHERE lane = $1 FOR UPDATE
