-- The server's clock, which all times are compared with, in microseconds since the epoch.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
