-- The server itself: its version, whether it writes, who asks, and how much room it has.
SELECT current_setting('server_version_num')::integer, current_setting('server_version'),
       pg_is_in_recovery(), current_setting('default_transaction_read_only')::boolean,
       current_user::text, to_regclass('{schema}.lane') IS NOT NULL,
       current_setting('max_connections')::integer
           - current_setting('superuser_reserved_connections')::integer,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')::integer,
       (SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database()),
       (SELECT mxid_age(datminmxid) FROM pg_database WHERE datname = current_database()),
       pg_notification_queue_usage()::float8,
       current_setting('fsync')::boolean, current_setting('full_page_writes')::boolean,
       current_setting('synchronous_standby_names') <> ''
