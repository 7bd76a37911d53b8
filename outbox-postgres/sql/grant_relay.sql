-- Rows move from `message` to `parked` and `dead` and are deleted; none is changed in place
-- but for its counters. UPDATE of a lane's floor is also what locking the lane takes.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON {schema}.migration, {schema}.message_position, {schema}.paused TO {role};
GRANT SELECT, UPDATE (floor, blocked, suspects, step, alone, deaths) ON {schema}.lane TO {role};
GRANT SELECT, DELETE ON {schema}.message TO {role};
GRANT SELECT, INSERT, UPDATE (parked, failures), DELETE ON {schema}.parked TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.blocked TO {role};
GRANT SELECT, INSERT ON {schema}.dead TO {role};
GRANT INSERT ON {schema}.delivered TO {role};
GRANT EXECUTE ON FUNCTION {schema}.keep_delivered(interval) TO {role};
-- Of delayed messages it sees when they are due and how many of each topic there are, and has them enqueued by the
-- function.
GRANT SELECT (deliver_at, number, topic) ON {schema}.delayed TO {role};
GRANT EXECUTE ON FUNCTION {schema}.deliver_due(timestamptz, bigint, timestamptz, integer, bigint) TO {role};
