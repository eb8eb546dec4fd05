# A machine to throw away, for one page: `unshare` runs this in new mount, process and network
# namespaces. All that a page writes lies in memory and is gone at the end, also below /etc and /mnt.
#
#   machine.sh BUILT CHECKOUT COMMAND...    BUILT is shown at CHECKOUT, and COMMAND runs there
#
# WRITABLE=1 keeps what is written to BUILT, which is how its virtual environment is made; the
# machine's network is there then.
set -euo pipefail
built=$1 checkout=$2
shift 2

root=/tmp
mount --make-rprivate /
exec 8<"$built"  # also if it lies below /tmp
mount -t tmpfs -o mode=755 machine $root
mkdir $root/{upper,work,root,checkout}

overlay() {  # overlay <lower> <name> <at>
    mkdir -p $root/{upper,work}/"$2"
    mount -t overlay -o "lowerdir=$1,upperdir=$root/upper/$2,workdir=$root/work/$2" overlay "$3"
}

overlay / machine $root/root
for folder in dev sys; do mount --rbind /$folder $root/root/$folder; done
mount -t proc proc $root/root/proc
for folder in tmp run dev/shm home data mnt local nvme shared srv var/log var/cache/dieselfs; do
    mkdir -p $root/root/$folder
    mount -t tmpfs -o mode=755 "${folder//\//-}" $root/root/$folder
done
chmod 1777 $root/root/{tmp,dev/shm}
mkdir -p $root/root/home/reader "$root/root$checkout"
if [[ ${WRITABLE-} ]]; then
    mount --bind /proc/self/fd/8 "$root/root$checkout"
else
    overlay /proc/self/fd/8 checkout "$root/root$checkout"
    ip link set lo up
    for address in 10.0.0.{1..3}; do ip address add $address/32 dev lo; done
    echo "127.0.0.1 localhost cache1 cache2 node0 node1 node2 s3.example.org" >$root/root/etc/hosts
fi
exec 8<&-

mkdir -p $root/root/.old
cd $root/root
pivot_root . .old
umount --lazy /.old
rmdir /.old

for name in $(compgen -e); do
    case $name in
        DIESELFS_* | XDG_* | PYTHON* | VIRTUAL_ENV) unset "$name" ;;
    esac
done
export HOME=/home/reader USER=reader
cd "$checkout"
"$@"
