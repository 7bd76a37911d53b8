# Apache Kafka, one node that is broker and controller; a part of scripts/services. The controller
# listens on the port after the broker's; where there is TLS, that is on the next.

kafka_jars() { printf '%s/artefacts/kafka-%s' "$DIR" "$(sha256sum "$HERE/kafka/pom.xml" | cut -c1-12)"; }

install_kafka() {
    local jars part
    have java || apt_get openjdk-17-jre-headless
    jars="$(kafka_jars)"
    [[ -d $jars ]] && return
    part="$jars.part"
    rm -rf "$part"
    have mvn || apt_get maven
    say "services: downloading Kafka"
    step mvn -q -B -Dstyle.color=never -f "$HERE/kafka/pom.xml" dependency:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$part"
    mv "$part" "$jars"
}

start_kafka() {
    local name="$1" home="$DIR/$1" port="${PORT[$1]}" tls_port="${TLS_PORT[$1]:-}" jars listeners
    jars="$(kafka_jars)"
    cp "$HERE/kafka/log4j2.properties" "$home"
    listeners="PLAINTEXT://127.0.0.1:$port${tls_port:+,SECURED://127.0.0.1:$tls_port}"
    {
        cat "$HERE/kafka/server.properties"
        echo "listeners=$listeners,CONTROLLER://127.0.0.1:$((port + 1))"
        echo "advertised.listeners=$listeners"
        [[ -z $tls_port ]] || kafka_tls "$home"
        echo "controller.quorum.voters=1@127.0.0.1:$((port + 1))"
        echo "log.dirs=$home/data"
        # After a crash the broker is let in again when its former session has run out. A short session
        # would fence a busy broker, so only the one that is there to be killed has it.
        [[ $name != kafka-faults ]] || printf 'broker.%s\n' session.timeout.ms=3000 heartbeat.interval.ms=500
    } >"$home/server.properties"

    if [[ ! -e $home/data/meta.properties ]]; then
        rm -rf "$home/data"
        java -cp "$jars/*" kafka.tools.StorageTool format --cluster-id "$(cluster_id)" \
            --config "$home/server.properties" </dev/null >>"$home/log" 2>&1 || {
            tail -n 30 "$home/log" >&2
            die "$name: could not format the storage; its log is $home/log"
        }
    fi
    launch "$name" java -Xms256m -Xmx512m -Dlog4j2.configurationFile="$home/log4j2.properties" \
        -cp "$jars/*" kafka.Kafka "$home/server.properties"
}

# The settings of the secured listener. Its users are `outbox` with PLAIN, and with SCRAM whom tests create.
kafka_tls() {
    local listener=listener.name.secured login=org.apache.kafka.common.security
    # Key and certificate in one file.
    (umask 077 && cat "$(certificates)"/server.{key,pem} >"$1/server.pem")
    echo "$listener.ssl.keystore.type=PEM"
    echo "$listener.ssl.keystore.location=$1/server.pem"
    echo "$listener.ssl.truststore.type=PEM"
    echo "$listener.ssl.truststore.location=$(certificates)/ca.pem"
    echo "$listener.ssl.client.auth=requested"
    echo "$listener.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256"
    echo "$listener.plain.sasl.jaas.config=$login.plain.PlainLoginModule required user_outbox=\"secret\";"
    echo "$listener.scram-sha-256.sasl.jaas.config=$login.scram.ScramLoginModule required;"
}

# Sixteen random bytes in the base64 of URLs, which is how Kafka writes an id.
cluster_id() { head -c 16 /dev/urandom | base64 | tr '+/' '-_' | tr -d '='; }

# Asks for the metadata of no topic and looks whether the answer names a broker: the port answers
# long before the broker has registered itself.
kafka_is_ready() {
    local brokers
    brokers="$(
        exec 2>/dev/null 3<>"/dev/tcp/127.0.0.1/${PORT[$1]}" || exit
        # Size, api key 3 (Metadata), version 1, correlation id, no client id, no topics.
        printf '\0\0\0\016\0\003\0\001\0\0\0\0\377\377\0\0\0\0' >&3
        # Size, correlation id, and the number of brokers.
        timeout 2 head -c 12 <&3 | od -An -tx1 -j8 | tr -d ' \n'
    )" || return 1
    [[ $brokers == 00000001 ]]
}

stop_kafka() { end "$1" TERM; }
crash_kafka() { end "$1" KILL; }
kafka_version() { basename -s .jar "$(kafka_jars)"/kafka_*.jar | sed 's/.*-//'; }
