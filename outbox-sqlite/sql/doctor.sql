-- What the database and this connection to it are set to.
SELECT sqlite_version(),
       (SELECT journal_mode FROM pragma_journal_mode),
       (SELECT synchronous FROM pragma_synchronous),
       (SELECT timeout FROM pragma_busy_timeout),
       (SELECT file FROM pragma_database_list WHERE name = 'main')
