-- Without parameters, so that it can run as a simple query, as the migrations themselves do.
SELECT version, checksum, compatible_from FROM {schema}.migration ORDER BY version
