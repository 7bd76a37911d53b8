-- The first mark of a session: the sequence as it was before the transaction id of the next statement.
-- The epoch tells a failover or a restart behind a pooler, where the connection outlives the server.
SELECT coalesce(pg_sequence_last_value('{schema}.message_position'::regclass), 0),
       {epoch},
       current_setting('server_version_num')::integer,
       (SELECT seqcache = 1 AND seqincrement = 1 AND NOT seqcycle
          FROM pg_sequence
         WHERE seqrelid = '{schema}.message_position'::regclass)
