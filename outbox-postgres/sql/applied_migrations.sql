SELECT version, checksum, compatible_from FROM {schema}.migration ORDER BY version
