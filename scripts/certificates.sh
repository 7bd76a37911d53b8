# The certificates of the secured listeners; a part of scripts/services.
#
# Self-made, and the keys lie open in the services' folder, so nobody may trust them but tests. `ca.pem` has
# signed `server.pem` and `client.pem`; `other-ca.pem` has signed `other-server.pem`, which stands for a
# stranger's server. Each has its key beside it, in PKCS#8.

certificates() { printf '%s/certificates' "$DIR"; }

# Does nothing where they are; servers of several checkouts may be starting side by side.
install_certificates() (
    home="$(certificates)"
    flock -w 60 9 || die 'another command has held the certificates for a minute'
    [[ ! -d $home ]] || exit 0
    have openssl || apt_get openssl
    rm -rf "$home.part"
    mkdir -m 0700 "$home.part"
    cd "$home.part"
    make_authority ca
    make_certificate ca server serverAuth
    make_certificate ca client clientAuth
    make_authority other-ca
    make_certificate other-ca other-server serverAuth
    mv "$home.part" "$home"
) 9>"$DIR/certificates.lock"

NEW_KEY=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
VALID=(-days 3650)

make_authority() {
    step openssl req -x509 "${NEW_KEY[@]}" "${VALID[@]}" -subj "/CN=outbox tests $1" \
        -addext keyUsage=critical,keyCertSign -keyout "$1.key" -out "$1.pem"
}

make_certificate() {
    local authority="$1" name="$2" usage="$3"
    step openssl req "${NEW_KEY[@]}" -subj "/CN=outbox-$name" -keyout "$name.key" -out "$name.csr"
    step openssl x509 -req "${VALID[@]}" -in "$name.csr" -CA "$authority.pem" -CAkey "$authority.key" \
        -CAcreateserial -out "$name.pem" -extfile <(
            echo 'subjectAltName = DNS:localhost, IP:127.0.0.1'
            echo "extendedKeyUsage = $usage"
        )
    rm "$name.csr"
}
