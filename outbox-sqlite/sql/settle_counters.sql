-- What was counted for messages that failed. It runs after they were set aside.
UPDATE {prefix}parked
   SET parked = given.parked, failures = given.failures
  FROM (SELECT value ->> 'position' AS position, value ->> 'parked' AS parked, value ->> 'failures' AS failures
          FROM json_each(?1)) AS given
 WHERE {prefix}parked.position = given.position
