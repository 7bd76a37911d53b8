-- Copies parked messages that are given up, with the reasons; the caller removes them where they were.
INSERT INTO {prefix}dead (position, line, id, topic, key, headers, enqueued_at, payload,
                          parked, failures, error_kind, error, halted)
SELECT parked.position, parked.line, parked.id, parked.topic, parked.key, parked.headers,
       parked.enqueued_at, parked.payload, given.value ->> 'parked', given.value ->> 'failures',
       given.value ->> 'error_kind', given.value ->> 'error', given.value ->> 'halted'
  FROM json_each(?1) AS given
 CROSS JOIN {prefix}parked AS parked ON parked.position = given.value ->> 'position'
