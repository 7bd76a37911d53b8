-- What a relay needs (`grant_relay.sql`) and the asking role does not have.
SELECT needed.privilege || ' on ' || needed.object
  FROM (VALUES ('migration', 'SELECT'), ('paused', 'SELECT'), ('lane', 'SELECT'),
               ('message', 'SELECT'), ('message', 'DELETE'),
               ('parked', 'SELECT'), ('parked', 'INSERT'), ('parked', 'DELETE'),
               ('blocked', 'SELECT'), ('blocked', 'INSERT'), ('blocked', 'UPDATE'), ('blocked', 'DELETE'),
               ('dead', 'SELECT'), ('dead', 'INSERT'), ('delivered', 'INSERT')) AS needed(object, privilege)
 WHERE NOT has_table_privilege(format('%I.%I', '{schema}', needed.object), needed.privilege)
UNION ALL
SELECT format('UPDATE (%s) on %s', needed.attribute, needed.object)
  FROM (VALUES ('lane', 'floor'), ('lane', 'blocked'), ('lane', 'suspects'), ('lane', 'step'),
               ('lane', 'alone'), ('lane', 'deaths'),
               ('parked', 'parked'), ('parked', 'failures')) AS needed(object, attribute)
 WHERE NOT has_column_privilege(format('%I.%I', '{schema}', needed.object), needed.attribute, 'UPDATE')
UNION ALL
SELECT format('SELECT (%s) on delayed', needed.attribute)
  FROM (VALUES ('deliver_at'), ('number'), ('topic')) AS needed(attribute)
 WHERE NOT has_column_privilege('{schema}.delayed', needed.attribute, 'SELECT')
UNION ALL
SELECT 'EXECUTE on deliver_due'
 WHERE NOT has_function_privilege('{schema}.deliver_due(timestamptz, bigint, timestamptz, integer, bigint)', 'EXECUTE')
UNION ALL
SELECT 'EXECUTE on keep_delivered'
 WHERE NOT has_function_privilege('{schema}.keep_delivered(interval)', 'EXECUTE')
UNION ALL
SELECT 'SELECT on message_position'
 WHERE NOT has_sequence_privilege('{schema}.message_position', 'SELECT')
