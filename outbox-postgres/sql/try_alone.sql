-- Says, before it is published, which message of a lane is tried alone.
UPDATE {schema}.lane
   SET alone = $2::bigint, deaths = CASE WHEN alone = $2 THEN deaths ELSE '{}' END
 WHERE lane = $1::smallint
