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

redis_at() {  # redis_at PORT: a Redis server on loopback
    redis-server --port "$1" --save '' --daemonize yes --protected-mode no >/dev/null
    until redis-cli -p "$1" ping >/dev/null 2>&1; do sleep 0.05; done
}

unmount_all() {
    dlcmd --json mounts | .venv/bin/python -c '
import json, sys
for line in sys.stdin:
    print(json.loads(line)["mountpoint"])' | xargs -r -d "\n" dlcmd -q umount --lazy
}
