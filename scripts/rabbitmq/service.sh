# RabbitMQ, one node; a part of scripts/services. The port after the listener's is that of the node, the
# one after that is its port mapper's (epmd), and where there is TLS the next is for that.

RABBITMQ_BIN=/usr/lib/rabbitmq/bin

install_rabbitmq() { [[ -x $RABBITMQ_BIN/rabbitmq-server ]] || apt_get_server rabbitmq-server; }

# Prints what goes before a program of RabbitMQ, a word a line: an environment with our settings only.
# HOME is where Erlang looks for the cookie that lets rabbitmqctl in; it is also what the node is known by.
with_rabbitmq() {
    local name="$1" home="$DIR/$1" port="${PORT[$1]}" loopback='-kernel inet_dist_use_interface {127,0,0,1}'
    printf '%s\n' env --ignore-environment "PATH=$PATH" LANG=C.UTF-8 "HOME=$home/" \
        "RABBITMQ_NODENAME=outbox-$name@localhost" \
        "RABBITMQ_DIST_PORT=$((port + 1))" "ERL_EPMD_PORT=$((port + 2))" ERL_EPMD_ADDRESS=127.0.0.1 \
        RABBITMQ_CONF_ENV_FILE=/dev/null \
        "RABBITMQ_CONFIG_FILE=$home/rabbitmq.conf" \
        "RABBITMQ_ADVANCED_CONFIG_FILE=$home/advanced.config" \
        "RABBITMQ_GENERATED_CONFIG_DIR=$home/config" \
        "RABBITMQ_ENABLED_PLUGINS_FILE=$home/enabled_plugins" \
        "RABBITMQ_MNESIA_DIR=$home/data" \
        "RABBITMQ_FEATURE_FLAGS_FILE=$home/data-feature_flags" \
        "RABBITMQ_PID_FILE=$home/rabbitmq.pid" \
        "RABBITMQ_LOG_BASE=$home" \
        "RABBITMQ_CTL_ERL_ARGS=$loopback" \
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-noinput $loopback +sbwt none +sbwtdcpu none +sbwtdio none" \
        RABBITMQ_ALLOW_INPUT=1
}

rabbitmqctl() {
    local before
    [[ ${1:-} == rabbitmq* && -n ${PORT[$1]:-} ]] ||
        die "rabbitmqctl needs a node, rabbitmq or rabbitmq-faults, before its arguments"
    mapfile -t before < <(with_rabbitmq "$1")
    "${before[@]}" "$RABBITMQ_BIN/rabbitmqctl" "${@:2}"
}

start_rabbitmq() {
    local name="$1" home="$DIR/$1" before
    {
        cat "$HERE/rabbitmq/rabbitmq.conf"
        echo "listeners.tcp.1 = 127.0.0.1:${PORT[$name]}"
        [[ -z ${TLS_PORT[$name]:-} ]] || rabbitmq_tls "${TLS_PORT[$name]}"
    } >"$home/rabbitmq.conf"
    echo '[].' >"$home/enabled_plugins"
    if [[ ! -s $home/.erlang.cookie ]]; then
        (umask 077 && head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$home/.erlang.cookie")
    fi
    mapfile -t before < <(with_rabbitmq "$name")
    # With input allowed the script becomes the node instead of its parent; the node reads none all the same.
    launch "$name" "${before[@]}" "$RABBITMQ_BIN/rabbitmq-server"
}

# A certificate of the client is looked at where there is one.
rabbitmq_tls() {
    echo "listeners.ssl.1 = 127.0.0.1:$1"
    echo "ssl_options.cacertfile = $(certificates)/ca.pem"
    echo "ssl_options.certfile = $(certificates)/server.pem"
    echo "ssl_options.keyfile = $(certificates)/server.key"
    echo 'ssl_options.verify = verify_peer'
    echo 'ssl_options.fail_if_no_peer_cert = false'
}

# Greets with the protocol's version; a node that serves answers with the first frame of a connection.
# Its listener opens when everything else is there.
rabbitmq_is_ready() {
    local kind
    kind="$(
        exec 2>/dev/null 3<>"/dev/tcp/127.0.0.1/${PORT[$1]}" || exit
        printf 'AMQP\0\0\011\001' >&3
        timeout 2 head -c 1 <&3 | od -An -tx1 | tr -d ' \n'
    )" || return 1
    [[ $kind == 01 ]]
}

stop_rabbitmq() { end_rabbitmq "$1" TERM; }
crash_rabbitmq() { end_rabbitmq "$1" KILL; }

# The port mapper was started by the node and outlives it; it ends only when no node is registered with it.
end_rabbitmq() {
    end "$@"
    ERL_EPMD_PORT="$((${PORT[$1]} + 2))" epmd -kill >/dev/null 2>&1 || true
}
rabbitmq_version() { rabbitmqctl "$1" version; }
