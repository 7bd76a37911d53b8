-- What the order of delivery rests on: the sequence, the triggers, and the lanes.
SELECT (SELECT seqcache FROM pg_sequence WHERE seqrelid = to_regclass('{schema}.message_position')),
       (SELECT seqincrement FROM pg_sequence WHERE seqrelid = to_regclass('{schema}.message_position')),
       (SELECT seqcycle FROM pg_sequence WHERE seqrelid = to_regclass('{schema}.message_position')),
       (SELECT count(*)
          FROM pg_trigger
         WHERE tgenabled IN ('O', 'A')
           AND (tgrelid, tgname) IN (('{schema}.message'::regclass, 'check_headers'),
                                     ('{schema}.message'::regclass, 'place_message'),
                                     ('{schema}.message'::regclass, 'wake_relay'),
                                     ('{schema}.delayed'::regclass, 'check_headers'),
                                     ('{schema}.delayed'::regclass, 'time_delayed'),
                                     ('{schema}.delayed'::regclass, 'wake_relay'),
                                     ('{schema}.blocked'::regclass, 'say_blocked')))::integer,
       (SELECT count(*) FROM {schema}.lane)::integer,
       -- What only waits for its time needs a relay too.
       EXISTS (SELECT FROM {schema}.message LIMIT 1)
       OR EXISTS (SELECT FROM {schema}.parked LIMIT 1)
       OR EXISTS (SELECT FROM {schema}.delayed LIMIT 1)
