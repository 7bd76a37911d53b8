-- In the caller's transaction.
SELECT {schema}.cancel($1)
