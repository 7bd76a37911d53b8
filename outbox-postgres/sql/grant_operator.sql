-- Replay moves rows from `dead` to `parked`, under the lock of a lane, and makes their keys due.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role};
GRANT SELECT ON {schema}.message_position TO {role};
GRANT UPDATE (floor) ON {schema}.lane TO {role};
GRANT INSERT ON {schema}.parked TO {role};
GRANT INSERT, UPDATE, DELETE ON {schema}.blocked TO {role};
GRANT DELETE ON {schema}.dead TO {role};
GRANT INSERT, UPDATE, DELETE ON {schema}.paused TO {role};
GRANT DELETE ON {schema}.inbox TO {role};
GRANT EXECUTE ON FUNCTION {schema}.cancel(uuid) TO {role};
