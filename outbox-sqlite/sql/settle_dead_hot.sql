-- Copies messages that are given up, with the reasons; the caller removes them where they were.
INSERT INTO {prefix}dead (position, line, id, topic, key, headers, enqueued_at, payload,
                          parked, failures, error_kind, error, halted)
SELECT message.position, message.line, message.id, message.topic, message.key, message.headers,
       message.enqueued_at, message.payload, given.value ->> 'parked', given.value ->> 'failures',
       given.value ->> 'error_kind', given.value ->> 'error', given.value ->> 'halted'
  FROM json_each(?1) AS given
 CROSS JOIN {prefix}message AS message ON message.position = given.value ->> 'position'
