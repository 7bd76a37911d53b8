-- Makes and drops the partitions of what is kept: see the function.
SELECT {schema}.keep_delivered($1::bigint * interval '1 microsecond')
