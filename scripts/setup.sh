#!/usr/bin/env bash
# Prepares a checkout: system packages (Debian and Ubuntu), then .venv with DieselFS in it.
#
#   scripts/setup.sh          what `dlcmd` needs
#   scripts/setup.sh torch    the same, and PyTorch with what else checks, tests, benchmarks and the demo need
#   scripts/setup.sh docs     what `dlcmd` needs, and what builds the site of docs/
#   scripts/setup.sh dist     what `dlcmd` needs, and what builds the packages of dist/
#
# Safe to run again: it installs only what is missing, and returns at once when nothing is.
# PYTHON=... chooses another interpreter than the `python3` on PATH.
set -euo pipefail
script=$(realpath "$0")
cd "$(dirname "$script")/.."

PYTHON=${PYTHON:-python3}
VENV=$PWD/.venv
PATH=$PATH:/usr/sbin:/sbin  # of ip, tc and nft

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null; }
have_header() { have cc && echo "#include <$1>" | cc -E -xc - >/dev/null 2>&1; }

# --- system packages -----------------------------------------------------------------------------
# A need is tested by what it does, not by a package's name: other distributions have other names,
# and a compiler or a Redis of one's own is as good. The Debian package that meets it is printed.

missing_to_run() {
    have fusermount3 || echo fuse3
    have redis-server && have redis-cli || echo redis-server
    have rsync || echo rsync
}

missing_to_test() {  # nodes are network namespaces; memcached is what the peer cache is compared with
    have ip && have tc || echo iproute2
    have nft || echo nftables
    have memcached || echo memcached
    have fsck.erofs || echo erofs-utils
    have g++ || echo g++
    is_done .stamp-torch || missing_to_build_pylibmc
}

missing_to_build_pylibmc() {
    have cc || printf '%s\n' gcc libc6-dev
    have_header libmemcached/memcached.h || echo libmemcached-dev
    have_header zlib.h || echo zlib1g-dev
}

missing_to_build() {  # the C extension is compiled on the spot
    have cc || printf '%s\n' gcc libc6-dev
    have "$PYTHON" || { printf '%s\n' python3 python3-dev python3-venv; return; }
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
    "$PYTHON" -c '
import pathlib, sysconfig
assert pathlib.Path(sysconfig.get_path("include"), "Python.h").exists()' 2>/dev/null || echo python3-dev
}

# The compiler's part is looked at only when something is to be compiled.
missing() {
    missing_to_run
    is_done .stamp || missing_to_build
    [[ $stamp != .stamp-torch ]] || missing_to_test
}

install_missing() {
    local packages
    mapfile -t packages < <(missing)
    ((${#packages[@]})) || return 0
    "$script" --as-root "${packages[@]}"
    hash -r
    mapfile -t packages < <(missing)
    ((${#packages[@]} == 0)) || die "still missing after the installation: ${packages[*]}"
}

install_as_root() {  # install_as_root <Debian packages>; a user who is not root becomes it by sudo
    have apt-get || die "missing, please install what your distribution calls them: $*"
    if ((EUID != 0)); then
        have sudo || die "no root, no sudo; please have installed: $*"
        exec sudo "$script" --as-root "$@"
    fi
    say "installing $*"
    export DEBIAN_FRONTEND=noninteractive
    # Debian starts a service as soon as it is installed. The tests start servers of their own, so
    # this policy refuses every start while packages are installed, and then goes away.
    local policy=/usr/sbin/policy-rc.d
    if [[ ! -e $policy ]]; then
        trap "rm -f $policy" EXIT
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod 755 $policy
    fi
    apt-get update -qq || say "apt-get update failed; trying with the package lists at hand"
    apt-get install -qq -y --no-install-recommends "$@" </dev/null >/dev/null
    local server
    for server in redis-server memcached; do
        if [[ " $* " == *" $server "* ]] && have systemctl; then
            systemctl --quiet disable "$server.service" || true  # nor at the next boot
        fi
    done
}

# --- the virtual environment ---------------------------------------------------------------------

# Scripts in a virtual environment name it by its full path, so a moved checkout is a new one.
stamp_of() {
    { printf '%s\n' "$VENV" "$@"; cat pyproject.toml setup.py "$script" scripts/*.py; } | sha256sum
}

is_done() {  # is_done <stamp's name>
    [[ -x $VENV/bin/python && -f $VENV/$1 && $(<"$VENV/$1") == "$(stamp_of "$1")" ]]
}

pip_install() {
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

create_venv() {
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        die "$("$PYTHON" --version) is too old: DieselFS needs 3.11 (or set PYTHON=/path/to/python3)"
    if [[ ! -x $VENV/bin/python || $(cat "$VENV/.home" 2>/dev/null) != "$VENV" ]]; then
        say "creating .venv with $("$PYTHON" --version)"
        "$PYTHON" -m venv --clear "$VENV"
        echo "$VENV" >"$VENV/.home"
    fi
    say "installing DieselFS into .venv"
    pip_install --editable .
    "$VENV/bin/python" -c 'import sys; from dieselfs.__main__ import conflicts; sys.exit("\n".join(conflicts()) or 0)'
    stamp_of .stamp >"$VENV/.stamp"
}

# What an extra of the installed DieselFS adds. pip looks for no other DieselFS.
install_extra() {  # install_extra <name> [other packages]
    pip_install "dieselfs[$1]" "${@:2}"
}

# The C extensions, in place: pip builds it first, this follows changes of its sources.
is_built() {  # is_built <module's path, without its suffix> <folder of its sources>
    local built=("$1".*.so)
    [[ -f ${built[0]} && ! $(find "$2" -newer "${built[0]}") ]]
}

extension_is_built() {
    local name
    for name in path_lookup crash_report mapped_file; do
        is_built "metadata/_$name" metadata/extension || return
    done
}

build_extension() {
    say "building the C extensions"
    pip_install 'setuptools>=77'  # a new environment of Debian has an older one, or none
    # All of them, or those whose own source did not change would stay older than the others' sources.
    "$VENV/bin/python" setup.py --quiet build_ext --inplace --force
    extension_is_built || die "the extensions were not built; look-ups would work, but slowly"
}

let_torchvision_load() {
    local packages module=torchvision_without_cuda
    packages=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    cp scripts/$module.py "$packages/"
    echo "import $module" >"$packages/$module.pth"
    "$VENV/bin/python" -c 'import torchvision' || die "torchvision does not load"
}

install_for_tests() {
    # A pinned pair: the newest torch may bring gigabytes of CUDA libraries, and torchvision's own
    # pin of torch may bring another build of it.
    say "installing PyTorch and the development tools into .venv"
    install_extra dev 'torch==2.13.0' pillow 'pylibmc>=1.6.3'
    pip_install --no-deps 'torchvision==0.28.0'
    "$VENV/bin/python" -c 'import torchvision' 2>/dev/null || let_torchvision_load
    # The frameworks that tests train with: 210 MB beside torch's, 127 of them transformers'.
    pip_install 'accelerate>=1.15' 'lightning>=2.6' 'torchdata>=0.11' 'transformers>=5.23'
    stamp_of .stamp-torch >"$VENV/.stamp-torch"
}

install_for_docs() {
    say "installing mkdocs into .venv"
    install_extra docs
    stamp_of .stamp-docs >"$VENV/.stamp-docs"
}

install_for_dist() {
    say "installing what builds packages into .venv"
    install_extra dist
    stamp_of .stamp-dist >"$VENV/.stamp-dist"
}

# -------------------------------------------------------------------------------------------------

case ${1:-} in
--as-root) shift; install_as_root "$@"; exit ;;
'') stamp=.stamp ;;
torch) stamp=.stamp-torch ;;
docs) stamp=.stamp-docs ;;
dist) stamp=.stamp-dist ;;
*) die "usage: scripts/setup.sh [torch|docs|dist]" ;;
esac

if [[ ! $(missing) ]] && is_done .stamp && is_done $stamp && extension_is_built; then
    exit
fi
exec 9<"$script"
flock 9  # one set-up at a time in a checkout; whoever waited finds it done
install_missing
is_done .stamp || create_venv
extension_is_built || build_extension
if ! is_done $stamp; then
    case $stamp in
    .stamp-torch) install_for_tests ;;
    .stamp-docs) install_for_docs ;;
    .stamp-dist) install_for_dist ;;
    esac
fi
