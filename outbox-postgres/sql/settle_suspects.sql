-- A claim of a suspect lane ends well, so none of its messages was the cause.
UPDATE {schema}.lane
   SET suspects = greatest(suspects - $2::integer, 0), alone = NULL, deaths = '{}'
 WHERE lane = $1::smallint
