# PgBouncer in front of the service `postgres`; a part of scripts/services.

install_pgbouncer() { have pgbouncer || apt_get_server pgbouncer; }

start_pgbouncer() {
    local name="$1" home="$DIR/$1" user=()
    mkdir -p "$home"
    {
        cat "$HERE/pgbouncer/pgbouncer.ini"
        echo "listen_port = ${PORT[$name]}"
        echo "auth_file = $home/users.txt"
        echo '[databases]'
        echo "* = host=127.0.0.1 port=${PORT[postgres]}"
    } >"$home/pgbouncer.ini"
    cp "$HERE/pgbouncer/users.txt" "$home"
    # Like Postgres it refuses to run as root.
    mapfile -t user < <(as_postgres)
    launch "$name" "${user[@]}" pgbouncer "$home/pgbouncer.ini"
}

# It answers when Postgres is away, too: its own console.
pgbouncer_is_ready() {
    PGCONNECT_TIMEOUT=2 psql -X -q -h 127.0.0.1 -p "${PORT[$1]}" -U outbox -d pgbouncer -c 'SHOW VERSION' >/dev/null 2>&1
}

stop_pgbouncer() { end "$1" INT; }
crash_pgbouncer() { end "$1" KILL; }
pgbouncer_version() { pgbouncer --version; }
