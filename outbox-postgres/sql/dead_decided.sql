-- Where the dead messages of one lane lie that a decision is about. What died after it began, again perhaps,
-- is left alone.
ctid = ANY (ARRAY(
    SELECT found.ctid
      FROM unnest($1::bigint[]) AS decided(position)
     CROSS JOIN LATERAL (
         SELECT dead.ctid, dead.died_at
           FROM {schema}.dead
          WHERE dead.position = decided.position
          LIMIT 1
     ) AS found
     WHERE found.died_at <= 'epoch'::timestamptz + $2 * interval '1 microsecond'))
