# NATS with JetStream, one server; a part of scripts/services.

install_nats() { have nats-server || apt_get_server nats-server; }

start_nats() {
    local name="$1" home="$DIR/$1"
    {
        cat "$HERE/nats/nats.conf"
        echo "listen: 127.0.0.1:${PORT[$name]}"
        echo "server_name: outbox-$name"
        echo "jetstream: { store_dir: \"$home/data\", max_memory_store: 64MB, max_file_store: 16GB }"
    } >"$home/nats.conf"
    # With its last stream the server removes the folder of streams, and one that is being made beside that
    # fails. A folder that is not empty stays.
    mkdir -p "$home/data/jetstream/\$G/streams/not-empty"
    launch "$name" nats-server --config "$home/nats.conf"
}

# The server speaks first, and says whether JetStream is there.
nats_is_ready() {
    local line
    line="$(
        exec 2>/dev/null 3<>"/dev/tcp/127.0.0.1/${PORT[$1]}" || exit
        timeout 2 head -n 1 <&3
    )" || return 1
    [[ $line == INFO*'"jetstream":true'* ]]
}

stop_nats() { end "$1" TERM; }
crash_nats() { end "$1" KILL; }
