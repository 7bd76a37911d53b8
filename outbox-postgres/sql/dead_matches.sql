-- Whether a dead message fits a filter; what is not asked for is NULL. `$4`, in microseconds since the
-- epoch, is when a decision began: what has died since is not meant, so that what dies again is not
-- decided about again. Ages count from then.
(($4::bigint IS NULL OR dead.died_at <= 'epoch'::timestamptz + $4 * interval '1 microsecond')
 AND ($6::text IS NULL OR dead.key = $6)
 AND ($7::text IS NULL OR dead.topic LIKE $7)
 AND ($8::text IS NULL OR dead.error_kind = $8)
 AND ($9::bigint IS NULL
      OR dead.died_at <= coalesce('epoch'::timestamptz + $4 * interval '1 microsecond', statement_timestamp())
                         - $9 * interval '1 microsecond')
 AND ($10::bigint IS NULL
      OR dead.died_at >= coalesce('epoch'::timestamptz + $4 * interval '1 microsecond', statement_timestamp())
                         - $10 * interval '1 microsecond'))
