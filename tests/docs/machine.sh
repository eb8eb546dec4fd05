# A machine to throw away, for one page: `unshare` runs this in new mount, process and network
# namespaces. What a page writes is in memory or in the folder DISK, also if it is below /etc or /mnt.
#
#   machine.sh BUILT CHECKOUT DISK COMMAND...    BUILT is shown at CHECKOUT, and COMMAND runs there
#
# WRITABLE=1 keeps what is written to BUILT, which is how its virtual environment is made; the
# machine's network is there then.
set -euo pipefail
built=$1 checkout=$2 disk=$3
shift 3

root=/tmp
mount --make-rprivate /
exec 8<"$built" 9<"$disk"  # also if they lie below /tmp
mount -t tmpfs -o mode=755 machine $root
mkdir $root/{upper,work,root,checkout}

overlay() {  # overlay <lower> <name> <at>
    mkdir -p $root/{upper,work}/"$2"
    mount -t overlay -o "lowerdir=$1,upperdir=$root/upper/$2,workdir=$root/work/$2" overlay "$3"
}

overlay / machine $root/root
mount --bind /dev $root/root/dev  # without what others have mounted below /dev/shm
mount --bind /dev/pts $root/root/dev/pts
mount --rbind /sys $root/root/sys
mount -t proc proc $root/root/proc
for folder in tmp run dev/shm; do
    mount -t tmpfs "${folder//\//-}" $root/root/$folder
done
for folder in home/reader data mnt local nvme shared srv var/log var/cache/dieselfs; do
    mkdir -p /proc/self/fd/9/$folder $root/root/$folder
    mount --bind /proc/self/fd/9/$folder $root/root/$folder
done
mkdir -p "$root/root$checkout"
if [[ ${WRITABLE-} ]]; then
    mount --bind /proc/self/fd/8 "$root/root$checkout"
else
    overlay /proc/self/fd/8 checkout "$root/root$checkout"
    ip link set lo up
    ip address add 10.0.0.1/32 dev lo
    ip address add 10.0.0.11/32 dev lo
    printf '%s\n' '127.0.0.1 localhost' '10.0.0.1 node0' '10.0.0.11 cache1' '10.0.0.12 cache2' >$root/root/etc/hosts
fi
exec 8<&- 9<&-

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
