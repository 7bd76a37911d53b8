-- The sessions of relays, by the name that a store gives them. What a role may not see of others is NULL.
SELECT activity.application_name, coalesce(activity.usename::text, ''), host(activity.client_addr),
       count(*), (extract(epoch FROM min(activity.backend_start)) * 1000000)::bigint
  FROM pg_stat_activity AS activity
 WHERE activity.datname = current_database()
   AND (activity.application_name = $1 OR starts_with(activity.application_name, $1 || ' '))
 GROUP BY activity.application_name, activity.usename, activity.client_addr
 ORDER BY activity.application_name, activity.usename, activity.client_addr
