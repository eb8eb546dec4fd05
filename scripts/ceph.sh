#!/usr/bin/env bash
# A real Ceph on loopback, for `make test-ceph`: one monitor, manager, OSD and S3 gateway, everything in one folder.
#
#   scripts/ceph.sh install        the Debian packages (65 MB), and librados in .venv
#   scripts/ceph.sh up FOLDER      start; S3 at 127.0.0.1:7480 with the keys AK and SK, librados by FOLDER/ceph.conf
#   scripts/ceph.sh osd FOLDER     start its OSD again
#   scripts/ceph.sh down FOLDER    stop
#
# Its ports are fixed (3300, 6789, 6800 and up, 7480): one at a time on a machine.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(radosgw ceph-mon ceph-osd ceph-mgr ceph-common python3-rados curl)

install() {
    local programs=(radosgw ceph-mon ceph-osd ceph-mgr ceph curl)
    if (($(type -P "${programs[@]}" | wc -l) < ${#programs[@]})) ||
        ! ls /usr/lib/python3/dist-packages/rados.cpython-*.so >/dev/null 2>&1; then
        scripts/setup.sh --as-root "${packages[@]}"
    fi
    # Alone: the other modules of Debian's folder are not meant for this environment.
    ln -sf /usr/lib/python3/dist-packages/rados.cpython-*.so "$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/"
}

configure() {
    mkdir -p "$folder"/{mon.a,mgr.x,osd.0,rgw,log,sock}
    cat >"$folder/ceph.conf" <<CONF
[global]
fsid = $(cat /proc/sys/kernel/random/uuid)
mon_initial_members = a
mon_host = [v2:127.0.0.1:3300,v1:127.0.0.1:6789]
public_network = 127.0.0.0/8
cluster_network = 127.0.0.0/8
ms_bind_ipv4 = true
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
keyring = $folder/keyring
run_dir = $folder/sock
admin_socket = $folder/sock/\$name.asok
pid_file = $folder/sock/\$name.pid
log_file = $folder/log/\$name.log
log_to_stderr = false
mon_data = $folder/mon.a
mgr_data = $folder/mgr.x
osd_data = $folder/osd.0
rgw_data = $folder/rgw
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pgp_num = 8
osd_pool_default_pg_autoscale_mode = off
mon_allow_pool_size_one = true
mon_warn_on_pool_no_redundancy = false
mon_data_avail_warn = 1
mon_data_avail_crit = 1
osd_crush_chooseleaf_type = 0
osd_objectstore = bluestore
osd_memory_target = 939524096
bluestore_block_size = 17179869184
bluestore_block_wal_size = 0
bluestore_block_db_size = 0
mgr_initial_modules =
[client.rgw.a]
# Without tcp_nodelay a small ranged read takes 44 ms instead of 1.
rgw_frontends = beast endpoint=127.0.0.1:7480 tcp_nodelay=1
rgw_enable_usage_log = false
rgw_run_sync_thread = false
rgw_thread_pool_size = 32
rgw_zone = default
CONF
}

up() {
    [[ -z $(ls -A "$folder" 2>/dev/null) ]] || { echo "$folder is not empty" >&2; exit 2; }
    configure
    local ceph="timeout 60 ceph -c $conf"
    ceph-authtool --create-keyring "$folder/keyring" --gen-key -n mon. --cap mon 'allow *' >/dev/null
    ceph-authtool "$folder/keyring" --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *' >/dev/null
    for entity in mgr.x osd.0 client.rgw.a; do
        ceph-authtool "$folder/keyring" --gen-key -n $entity --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *' >/dev/null
    done
    monmaptool --create --addv a '[v2:127.0.0.1:3300,v1:127.0.0.1:6789]' --fsid "$(sed -n 's/^fsid = //p' "$conf")" "$folder/monmap" >/dev/null
    ceph-mon -c "$conf" --mkfs -i a --monmap "$folder/monmap" --keyring "$folder/keyring"
    ceph-mon -c "$conf" -i a
    $ceph auth import -i "$folder/keyring" >/dev/null 2>&1
    ceph-mgr -c "$conf" -i x
    local uuid
    uuid=$(cat /proc/sys/kernel/random/uuid)
    $ceph osd new "$uuid" >/dev/null
    ceph-osd -c "$conf" -i 0 --mkfs --osd-uuid "$uuid" --setuser root >"$folder/log/mkfs.out" 2>&1
    osd
    radosgw -c "$conf" -n client.rgw.a
    for _ in $(seq 120); do curl -s -o /dev/null http://127.0.0.1:7480/ && break; sleep 0.5; done
    radosgw-admin -c "$conf" -n client.rgw.a user create --uid=t --display-name=t --access-key=AK --secret-key=SK >"$folder/user.json" 2>/dev/null
}

osd() {
    # One that was killed may hold its lock for a moment still.
    for _ in $(seq 20); do ceph-osd -c "$conf" -i 0 >>"$folder/log/start.out" 2>&1 && break; sleep 0.5; done
    for _ in $(seq 120); do
        timeout 60 ceph -c "$conf" osd stat 2>/dev/null | grep -q '1 up' && return
        sleep 0.5
    done
    echo "the OSD does not come up: see $folder/log" >&2
    exit 1
}

down() {
    local pids=()
    for file in "$folder"/sock/*.pid; do [[ -f $file ]] && pids+=("$(<"$file")"); done
    ((${#pids[@]})) || return 0
    kill "${pids[@]}" 2>/dev/null || true
    for _ in $(seq 40); do kill -0 "${pids[@]}" 2>/dev/null || return 0; sleep 0.1; done
    kill -9 "${pids[@]}" 2>/dev/null || true
}

folder=${2:-}
conf=$folder/ceph.conf
case ${1:-} in
install) install ;;
up | osd | down) [[ $folder ]] || { echo "usage: scripts/ceph.sh $1 FOLDER" >&2; exit 2; }; "$1" ;;
*) sed -n '2,9s/^# \?//p' "$0"; exit 2 ;;
esac
