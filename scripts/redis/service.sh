# Redis, one server; a part of scripts/services.

install_redis() { have redis-server || apt_get_server redis-server; }

start_redis() {
    local name="$1" home="$DIR/$1"
    mkdir -p "$home/data"
    {
        cat "$HERE/redis/redis.conf"
        echo "port ${PORT[$name]}"
        echo "dir \"$home/data\""
    } >"$home/redis.conf"
    launch "$name" redis-server "$home/redis.conf"
}

# While it reads its log it answers with an error.
redis_is_ready() { [[ "$(timeout 2 redis-cli -p "${PORT[$1]}" PING 2>/dev/null)" == PONG ]]; }

stop_redis() { end "$1" TERM; }
crash_redis() { end "$1" KILL; }
redis_version() { redis-server --version; }
