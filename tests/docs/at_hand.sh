# What pages take for granted: datasets to pack, and servers that run elsewhere. Each page names in
# a comment what it needs of these: `<!-- before: images /data/imagenet/train cat dog -->`.

images() {  # images FOLDER CLASS...: 60 images in a folder for each class
    local folder=$1
    shift
    .venv/bin/python - "$folder" "$@" <<'PYTHON'
import pathlib, random, sys
from PIL import Image
numbers = random.Random(1)
for name in sys.argv[2:]:
    folder = pathlib.Path(sys.argv[1], name)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(60):
        picture = Image.frombytes("RGB", (48, 48), numbers.randbytes(48 * 48 * 3))
        picture.save(folder / f"{number:03}.jpg")
PYTHON
}

imagenet() {  # imagenet [FOLDER]: a packed dataset `imagenet` with train/ and val/, and a mountpoint
    local folder=${1:-/data/imagenet}
    images "$folder/train" cat dog owl
    images "$folder/val" cat dog owl
    dlcmd -q put "$folder/" imagenet
    mkdir -p /mnt/imagenet
}

secrets() {  # secrets NAME...: NAME.secret of a task or a cache cluster
    local name
    for name; do dlcmd -q task secret "$name.secret"; done
}

redis_at() {  # redis_at PORT: a Redis server at cache1
    redis-server --port "$1" --bind 0.0.0.0 --save '' --daemonize yes --protected-mode no >/dev/null
    until redis-cli -h cache1 -p "$1" ping >/dev/null 2>&1; do sleep 0.05; done
}

s3_at() {  # s3_at PORT BUCKET: an S3 server at cache1, with this bucket
    .venv/bin/python -m tests.services.atomic_moto -H 0.0.0.0 -p "$1" >/dev/null 2>&1 &
    until curl -sf -X PUT "http://cache1:$1/$2" >/dev/null; do sleep 0.1; done
}

unmount_all() {
    dlcmd --json mounts | .venv/bin/python -c '
import json, sys
for line in sys.stdin:
    print(json.loads(line)["mountpoint"])' | xargs -r -d "\n" dlcmd -q umount --lazy
}

slurm_here() {  # a Slurm whose controller and only node are this machine, and Redis at cache1:6379
    local host user=slurm
    host=$(hostname -s)
    # As Debian's Slurm does, unless the environment's Python is below /root.
    setpriv --reuid=slurm --regid=slurm --clear-groups .venv/bin/python -c '' 2>/dev/null || user=root
    PATH=$PATH:/usr/sbin
    mkdir -p /run/munge /var/log/munge /var/spool/slurm /etc/slurm
    chown $user /var/spool/slurm
    munged --force >/dev/null 2>&1
    cat >/etc/slurm/slurm.conf <<CONF
ClusterName=here
SlurmctldHost=$host(127.0.0.1)
SlurmUser=$user
StateSaveLocation=/var/spool/slurm
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/var/spool/slurm/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
NodeName=$host NodeAddr=127.0.0.1 CPUs=4
PartitionName=all Nodes=ALL Default=YES State=UP
CONF
    slurmctld >/dev/null 2>&1
    slurmd >/dev/null 2>&1
    until [[ $(sinfo --noheader --format=%T) == idle ]]; do sleep 0.2; done
    redis_at 6379
    export DIESELFS_STORE=file:///shared/dieselfs DIESELFS_INDEX=redis://cache1:6379
}

systemctl() {  # systemctl restart slurmctld: where no systemd runs
    [[ $* == "restart slurmctld" ]]
    local pid
    pid=$(</var/spool/slurm/slurmctld.pid)
    kill "$pid"
    while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
    slurmctld >/dev/null 2>&1
    until scontrol ping | grep -q UP; do sleep 0.2; done
}

slurm_job_is_declared() {  # and its dataset is mounted
    local job
    job=$(squeue --noheader --format=%i)
    until [[ -s slurm-$job.out ]]; do sleep 0.2; done
    [[ $(<"slurm-$job.out") == 360 ]]
    dlcmd --json alloc job ls | grep -q "\"job\": \"$job\""
}
