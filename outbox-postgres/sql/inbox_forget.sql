-- Of what was processed more than $2 microseconds ago the oldest $3, by the index on time. $1 is the time of
-- the last row of the step before this one, in microseconds since the epoch: the entries of what was deleted
-- stay in the index until a vacuum, and a scan from its beginning would pass over all of them again, step
-- after step. Gives the number of rows found and deleted, and the time of the last.
WITH old AS MATERIALIZED (
    SELECT ctid AS place, processed_at
      FROM {schema}.inbox
     WHERE processed_at >= coalesce(timestamptz 'epoch' + $1::bigint * interval '1 microsecond', '-infinity')
       AND processed_at < statement_timestamp() - $2::bigint * interval '1 microsecond'
     ORDER BY processed_at
     LIMIT $3
), forgotten AS (
    DELETE FROM {schema}.inbox WHERE ctid = ANY (ARRAY(SELECT place FROM old)) RETURNING 1
)
SELECT (SELECT count(*) FROM old), (SELECT count(*) FROM forgotten),
       (SELECT (extract(epoch FROM max(processed_at)) * 1000000)::bigint FROM old)
