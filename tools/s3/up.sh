#!/bin/bash
# Starts a real S3 server, a Ceph RGW of one node, on 127.0.0.1, and returns once it takes authenticated writes.
# No systemd, no containers, no root needed; everything it writes and every process it starts belongs to DIR.
#
#   tools/s3/up.sh DIR [bluestore|memstore]     start; key svkey, secret svsecret
#   tools/s3/up.sh --stop DIR                   stop what was started with DIR (also: tools/s3/down.sh DIR)
#
# STREAMVID_S3_PORT    port of the S3 endpoint (7480)
set -eu

PORT=${STREAMVID_S3_PORT:-7480}
KEY=svkey
SECRET=svsecret
ENDPOINT=http://127.0.0.1:$PORT

die() {
    echo "up.sh: $*" >&2
    exit 1
}

# Whether process $1 is one that we started for the cluster in $2: a recycled pid must not be killed.
is_ours() {
    [ -r "/proc/$1/cmdline" ] && tr '\0' '\n' <"/proc/$1/cmdline" 2>/dev/null | grep -qxF -- "$2/ceph.conf"
}

stop() {
    local dir=$1 file pid
    # The gateway first, then the store under it, then the monitor: the other way round each waits for the one it lost.
    for file in "$dir"/run/client.*.pid "$dir"/run/osd.*.pid "$dir"/run/mon.*.pid; do
        [ -f "$file" ] || continue
        pid=$(tr -dc 0-9 <"$file")
        if [ -n "$pid" ] && is_ours "$pid" "$dir"; then
            kill "$pid" 2>/dev/null || true
            for _ in $(seq 100); do
                is_ours "$pid" "$dir" || break
                sleep 0.1
            done
            is_ours "$pid" "$dir" && kill -9 "$pid" 2>/dev/null
        fi
        rm -f "$file"
    done
    return 0
}

if [ "${1:-}" = --stop ]; then
    [ $# -eq 2 ] || die "usage: up.sh --stop DIR"
    [ -f "$2/ceph.conf" ] || die "$2 is not a folder that up.sh started a server in."
    stop "$(realpath "$2")"
    exit 0
fi

[ $# -ge 1 ] && [ $# -le 2 ] || die "usage: up.sh DIR [bluestore|memstore]"
STORE=${2:-bluestore}
case $STORE in bluestore | memstore) ;; *) die "the store must be bluestore or memstore, not $STORE." ;; esac
case $PORT in '' | *[!0-9]*) die "STREAMVID_S3_PORT must be a port number, not '$PORT'." ;; esac
[ "$PORT" -ge 1 ] && [ "$PORT" -le 65535 ] || die "STREAMVID_S3_PORT must be from 1 to 65535, not $PORT."

missing=
for tool in radosgw radosgw-admin ceph ceph-mon ceph-osd ceph-authtool monmaptool curl; do
    command -v $tool >/dev/null || missing="$missing $tool"
done
[ -z "$missing" ] || die "not installed:$missing; run: sudo ${0%/*}/install.sh"

listening() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
listening "$PORT" && die "port $PORT is in use; stop what listens there or set STREAMVID_S3_PORT to a free port."

# Only an empty folder or one of our own is emptied.
DIR=$(realpath -m "$1")
if [ -f "$DIR/ceph.conf" ] && [ -d "$DIR/rgw" ]; then
    stop "$DIR"
    rm -rf "${DIR:?}"/{mon,osd,run,log,rgw,ceph.conf,keyring,monmap}
elif [ -n "$(ls -A "$DIR" 2>/dev/null)" ]; then
    die "$DIR is not empty; name a new folder."
fi
mkdir -p "$DIR"/{mon,osd,run,log,rgw}
# Ceph refuses admin sockets with paths of more than 107 bytes, as all Unix sockets do.
[ ${#DIR} -le 75 ] || die "$DIR is too long a path for Ceph's sockets; name a folder of at most 75 characters."

# The monitor needs a port of its own: the first free one from a start that differs between S3 ports.
MON=$((20000 + PORT % 10000))
while listening "$MON"; do MON=$((MON + 1)); done

FSID=$(cat /proc/sys/kernel/random/uuid)
OSD=$(cat /proc/sys/kernel/random/uuid)
cat >"$DIR/ceph.conf" <<C
[global]
fsid=$FSID
mon_host=v1:127.0.0.1:$MON
ms_bind_msgr2=false
public_addr=127.0.0.1
cluster_addr=127.0.0.1
keyring=$DIR/keyring
osd_pool_default_size=1
osd_pool_default_min_size=1
osd_pool_default_pg_num=4
osd_pool_default_pgp_num=4
osd_pool_default_pg_autoscale_mode=off
osd_crush_chooseleaf_type=0
mon_allow_pool_size_one=true
mon_max_pg_per_osd=2000
mon_data_avail_crit=1
auth_allow_insecure_global_id_reclaim=false
run_dir=$DIR/run
log_file=$DIR/log/\$name.log
admin_socket=$DIR/run/\$name.asok
pid_file=$DIR/run/\$name.pid
crash_dir=$DIR/log
osd_objectstore=$STORE
bluestore_block_size=21474836480
memstore_device_bytes=8589934592
osd_memory_target=1073741824
rgw_data=$DIR/rgw
[mon.a]
mon_data=$DIR/mon
[osd.0]
osd_data=$DIR/osd
[client.rgw]
keyring=$DIR/keyring
rgw_frontends=beast endpoint=127.0.0.1:$PORT tcp_nodelay=1
C

finished=
cleanup() {
    [ -n "$finished" ] && return
    echo "up.sh: the server did not start; the ends of its logs in $DIR/log follow." >&2
    tail -n 5 "$DIR"/log/*.log >&2 2>/dev/null || true
    stop "$DIR"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# What the tools say goes to a log, so that a good start is silent and a caller's pipe is not held open by a daemon.
out="$DIR/log/up.log"
quietly() { "$@" >>"$out" 2>&1 </dev/null; }
C=(-c "$DIR/ceph.conf")

quietly ceph-authtool "$DIR/keyring" --create-keyring --gen-key -n mon. --cap mon 'allow *'
for name in client.admin client.rgw osd.0; do
    quietly ceph-authtool "$DIR/keyring" --gen-key -n $name --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
done
quietly monmaptool --create --fsid "$FSID" --addv a "[v1:127.0.0.1:$MON]" "$DIR/monmap"
quietly ceph-mon "${C[@]}" -i a --mkfs --monmap "$DIR/monmap" --keyring "$DIR/keyring"
quietly ceph-mon "${C[@]}" -i a
quietly timeout 120 ceph "${C[@]}" osd new "$OSD" 0
quietly ceph-osd "${C[@]}" -i 0 --mkfs --osd-uuid "$OSD" --keyring "$DIR/keyring"
quietly ceph-osd "${C[@]}" -i 0
# The user before the gateway: both create the default zone when there is none, and must not do so at once.
quietly timeout 120 radosgw-admin "${C[@]}" user create --uid=sv --display-name=sv --access-key=$KEY --secret-key=$SECRET
quietly radosgw "${C[@]}" -n client.rgw

# Ready means that a signed write works: the port opens before, and the first write creates the pools that hold data.
# The header is what older curls leave out of their signatures, and S3 servers want in it.
s3() {
    curl -fsS -m 30 --aws-sigv4 aws:amz:us-east-1:s3 --user $KEY:$SECRET -H 'x-amz-content-sha256: UNSIGNED-PAYLOAD' \
        "$@" >>"$out" 2>&1
}
ready=
deadline=$((SECONDS + 180))
while [ $SECONDS -lt $deadline ]; do
    if s3 -X PUT "$ENDPOINT/up-sh-ready" && s3 -X PUT --data-binary ok "$ENDPOINT/up-sh-ready/ok"; then
        ready=1
        break
    fi
    sleep 0.2
done
[ -n "$ready" ]
s3 -X DELETE "$ENDPOINT/up-sh-ready/ok" && s3 -X DELETE "$ENDPOINT/up-sh-ready"
finished=1
echo "$ENDPOINT is up: AWS_ACCESS_KEY_ID=$KEY AWS_SECRET_ACCESS_KEY=$SECRET; stop it with: ${0%/*}/down.sh $DIR"
