-- What keeps vacuum from removing deleted messages, the oldest first: sessions, prepared transactions,
-- replication slots, and standbys that report their queries. Ages are in transactions; the time is NULL
-- where the asking role may not see it.
--
-- A transaction that has written holds vacuum back by its own id, also between two statements, where it has no
-- snapshot. In another database it does so through every snapshot that is taken in this one.
SELECT holder.kind, holder.name, holder.transactions, (extract(epoch FROM holder.age) * 1000000)::bigint,
       holder.elsewhere
  FROM (SELECT CASE WHEN backend_type = 'walsender' THEN 'standby' ELSE 'session' END AS kind,
               concat_ws(', ', 'pid ' || pid, nullif(application_name, ''), 'role ' || usename,
                         host(client_addr), nullif(state, 'active'),
                         'database ' || nullif(datname, current_database())) AS name,
               greatest(age(backend_xmin), age(backend_xid)) AS transactions,
               clock_timestamp() - xact_start AS age,
               coalesce(datname <> current_database(), false) AS elsewhere
          FROM pg_stat_activity
         WHERE pid <> pg_backend_pid()
           AND (backend_xid IS NOT NULL
                OR backend_xmin IS NOT NULL AND (datname = current_database() OR backend_type = 'walsender'))
        UNION ALL
        SELECT 'prepared transaction', concat_ws(', ', gid, 'role ' || owner), age(transaction),
               clock_timestamp() - prepared, false
          FROM pg_prepared_xacts
         WHERE database = current_database()
        UNION ALL
        SELECT 'replication slot', concat_ws(', ', slot_name, CASE WHEN active THEN 'active' ELSE 'inactive' END),
               age(xmin), NULL, false
          FROM pg_replication_slots
         WHERE xmin IS NOT NULL
        UNION ALL
        SELECT 'replication slot, for catalogs',
               concat_ws(', ', slot_name, CASE WHEN active THEN 'active' ELSE 'inactive' END),
               age(catalog_xmin), NULL, false
          FROM pg_replication_slots
         WHERE catalog_xmin IS NOT NULL AND xmin IS NULL) AS holder
 ORDER BY holder.age DESC NULLS LAST, holder.transactions DESC
 LIMIT 20
