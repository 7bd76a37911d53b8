-- What was counted for messages that are parked and do not stand for their key in `blocked`. It runs after
-- the rows have been parked.
UPDATE {schema}.parked
   SET parked = counted.parked, failures = counted.failures
  FROM (SELECT found.ctid, given.parked, given.failures
          FROM unnest($1::bigint[], $2::bigint[], $3::integer[], $4::integer[])
               AS given(key_hash, position, parked, failures)
         CROSS JOIN LATERAL (
             SELECT parked.ctid
               FROM {schema}.parked
              WHERE parked.key_hash = given.key_hash AND parked.position = given.position
              LIMIT 1
         ) AS found) AS counted
 WHERE parked.ctid = counted.ctid
