-- Whose transactions are confirmed before they are on the disk: by the server's own setting, or by that of a
-- role or of this database.
SELECT 'the server'
 WHERE EXISTS (SELECT FROM pg_settings
                WHERE name = 'synchronous_commit' AND reset_val = 'off'
                  AND source NOT IN ('client', 'session', 'user', 'database', 'database user'))
UNION ALL
SELECT concat_ws(', ', 'role ' || role.rolname, 'database ' || database.datname)
  FROM pg_db_role_setting AS setting
  LEFT JOIN pg_roles AS role ON role.oid = setting.setrole
  LEFT JOIN pg_database AS database ON database.oid = setting.setdatabase
 WHERE 'synchronous_commit=off' = ANY (setting.setconfig)
   AND (setting.setdatabase = 0 OR database.datname = current_database())
