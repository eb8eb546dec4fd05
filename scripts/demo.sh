#!/usr/bin/env bash
# The main job from end to end, on one machine and without a server: pack a tree of images, list it,
# take a snapshot, mount it, compare it, train on it, unmount it. `make demo` runs it.
#
# DEMO_IMAGES=FOLDER uses your own images, one folder a class, instead of Debian's Oxygen icons.
# Everything but the downloaded icons lies in a temporary folder and is gone at the end, also when
# the demo is interrupted.
set -euo pipefail
cd "$(dirname "$0")/.."

PATH=$PWD/.venv/bin:$PATH
cache=${XDG_CACHE_HOME:-$HOME/.cache}/dieselfs-demo
work=$(mktemp -d -t dieselfs-demo.XXXXXX)
mountpoint=$work/mnt
export DIESELFS_STORE=file://$work/store DIESELFS_INDEX=lmdb://$work/index
# What the commands keep for a user (snapshots, logs of mounts) belongs to the demo as well.
export XDG_CONFIG_HOME=$work/config XDG_DATA_HOME=$work/data
export XDG_CACHE_HOME=$work/cache XDG_STATE_HOME=$work/state

# --- nothing stays behind ------------------------------------------------------------------------

running=
set -m  # what `run` runs is a process group of its own, ended with all its workers

clean_up() {
    set +e
    trap '' INT TERM HUP
    if [[ $running ]]; then
        kill -TERM -- "-$running" 2>/dev/null
        wait "$running" 2>/dev/null
    fi
    if mountpoint -q "$mountpoint"; then
        dlcmd umount "$mountpoint" >/dev/null || fusermount3 -u -z "$mountpoint"
    fi
    rm -rf "$work"
    rm -f /var/log/dieselfs/*"${work##*/}"*.log  # where a mount made by root logs
    rmdir --ignore-fail-on-non-empty /var/log/dieselfs 2>/dev/null
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

show() { printf '\n\033[1m$ %s\033[0m\n' "${*//"$work"/\$TMP}"; }

run() {  # so that a signal is answered at once, not when the command is over
    "$@" </dev/null &
    running=$!
    wait "$running"
    running=
}

step() { show "$@"; run "$@"; }

die() { echo "demo: $*" >&2; exit 1; }

# --- the images ----------------------------------------------------------------------------------

# The theme sorts its icons as <size>/<category>/<icon>.png; a class is a category. Links lead to the
# sizes, within the theme many icons are links too, and `dlcmd put` follows both.
fetch_icons() {
    command -v apt-get >/dev/null || die "no apt-get for Debian's icons; set DEMO_IMAGES=FOLDER"
    echo "downloading Debian's oxygen-icon-theme (32 MB) into $cache"
    local unpacked=$work/icons
    mkdir -p "$cache" "$unpacked/classes"
    (
        cd "$unpacked"
        download=(apt-get download -qq -o APT::Sandbox::User=root oxygen-icon-theme)
        "${download[@]}" 2>/dev/null || {
            ((EUID == 0)) || sudo=sudo  # no package lists yet, or old ones
            ${sudo-} apt-get update -qq
            "${download[@]}"
        }
        dpkg-deb -x oxygen-icon-theme_*.deb .
        rm oxygen-icon-theme_*.deb
        for folder in usr/share/icons/oxygen/base/*/*/; do
            IFS=/ read -r size category <<<"${folder#usr/share/icons/oxygen/base/}"
            mkdir -p "classes/${category%/}"
            ln -s "../../$folder" "classes/${category%/}/$size"
        done
    )
    mv "$unpacked" "$cache/oxygen"  # complete or not there
}

images=${DEMO_IMAGES:-$cache/oxygen/classes}
if [[ ! ${DEMO_IMAGES:-} && ! -d $images ]]; then
    fetch_icons
fi
[[ -d $images ]] || die "no folder $images"

# --- the job -------------------------------------------------------------------------------------

step dlcmd put "$images/" dl://icons

step dlcmd ls -l dl://icons
show 'dlcmd ls -r -l dl://icons | tail -n 5'
run dlcmd ls -r -l dl://icons >"$work/listing"
tail -n 5 "$work/listing"

step dlcmd snapshot create icons

mkdir "$mountpoint"
show dlcmd mount dl://icons "$mountpoint"
dlcmd mount dl://icons "$mountpoint"  # without `run`: over at once, and not to be left half done

comparison=(rsync -rLtpc --delete --dry-run --itemize-changes --exclude=/.dieselfs
    "$images/" "$mountpoint/")
show "${comparison[@]}"
run "${comparison[@]}" >"$work/differences"
sed -i '/ \.\/$/d' "$work/differences"  # the mount's own directory is its owner's alone
if [[ -s $work/differences ]]; then
    head -n 20 "$work/differences"
    die "the mount differs from the source"
fi
echo "no difference in names, bytes, modes and times"

# Pillow warns about each of the theme's icons whose palette has a transparent colour.
export PYTHONWARNINGS=ignore::UserWarning:PIL.Image
step python examples/train_imagefolder.py "$mountpoint" --epochs 2 --workers 2 --group 4

step dlcmd dataset info icons
step dlcmd umount "$mountpoint"
