-- What the order of delivery rests on: the sequence, the triggers of the hot table, and the lanes.
SELECT (SELECT seqcache FROM pg_sequence WHERE seqrelid = to_regclass('{schema}.message_position')),
       (SELECT seqincrement FROM pg_sequence WHERE seqrelid = to_regclass('{schema}.message_position')),
       (SELECT seqcycle FROM pg_sequence WHERE seqrelid = to_regclass('{schema}.message_position')),
       (SELECT count(*)
          FROM pg_trigger
         WHERE tgrelid = to_regclass('{schema}.message') AND tgenabled IN ('O', 'A')
           AND tgname IN ('check_headers', 'place_message', 'wake_relay'))::integer,
       (SELECT count(*) FROM {schema}.lane)::integer,
       EXISTS (SELECT FROM {schema}.message LIMIT 1)
