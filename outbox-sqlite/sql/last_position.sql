-- The last position that was drawn, by what the connection sees: a rollback gives the number back.
SELECT seq FROM sqlite_sequence WHERE name = '{prefix}message'
