-- The last position that was drawn, and the last number of a delayed message, by what the connection sees: a rollback
-- gives them back. Neither is there before the first one.
SELECT (SELECT seq FROM sqlite_sequence WHERE name = '{prefix}message'),
       (SELECT seq FROM sqlite_sequence WHERE name = '{prefix}delayed')
