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
