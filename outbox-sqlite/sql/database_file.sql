-- The file of the database, with symbolic links resolved; empty for one that is in memory.
SELECT file FROM pragma_database_list WHERE name = 'main'
