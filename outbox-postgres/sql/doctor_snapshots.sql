-- What keeps vacuum from removing deleted messages, the oldest first: sessions, prepared transactions,
-- replication slots, and standbys that report their queries. Ages are in transactions; the time is NULL
-- where the asking role may not see it.
SELECT holder.kind, holder.name, holder.transactions, (extract(epoch FROM holder.age) * 1000000)::bigint
  FROM (SELECT CASE WHEN backend_type = 'walsender' THEN 'standby' ELSE 'session' END AS kind,
               concat_ws(', ', 'pid ' || pid, nullif(application_name, ''), 'role ' || usename,
                         host(client_addr), nullif(state, 'active')) AS name,
               age(backend_xmin) AS transactions,
               clock_timestamp() - xact_start AS age
          FROM pg_stat_activity
         WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
           AND (datname = current_database() OR backend_type = 'walsender')
        UNION ALL
        SELECT 'prepared transaction', concat_ws(', ', gid, 'role ' || owner), age(transaction),
               clock_timestamp() - prepared
          FROM pg_prepared_xacts
         WHERE database = current_database()
        UNION ALL
        SELECT 'replication slot', concat_ws(', ', slot_name, CASE WHEN active THEN 'active' ELSE 'inactive' END),
               age(xmin), NULL
          FROM pg_replication_slots
         WHERE xmin IS NOT NULL
        UNION ALL
        SELECT 'replication slot, for catalogs',
               concat_ws(', ', slot_name, CASE WHEN active THEN 'active' ELSE 'inactive' END),
               age(catalog_xmin), NULL
          FROM pg_replication_slots
         WHERE catalog_xmin IS NOT NULL AND xmin IS NULL) AS holder
 ORDER BY holder.age DESC NULLS LAST, holder.transactions DESC
 LIMIT 20
