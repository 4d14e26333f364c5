#!/bin/sh
# Installs pocketd with its systemd units. Running it again is an update: the configuration stays.
#
#   deploy/install.sh [--prefix DIR] [--root DIR] [--binary FILE]
#
# --prefix  where programs go: DIR/bin and DIR/share (default /usr)
# --root    install below this folder, for packages and images; then nothing of this machine is touched
#           but that folder
# --binary  the program (default target/release/pocketd of this tree)
set -eu

here=$(cd "$(dirname "$0")" && pwd)
prefix=/usr
root=
binary=$here/../target/release/pocketd

usage() {
    sed -n '2,9s/^# \{0,1\}//p' "$0"
}

while [ $# -gt 0 ]; do
    case $1 in
        --prefix | --root | --binary)
            [ $# -ge 2 ] || { echo "install.sh: $1 needs a value" >&2; exit 2; }
            case $1 in
                --prefix) prefix=$2 ;;
                --root) root=$2 ;;
                --binary) binary=$2 ;;
            esac
            shift 2
            ;;
        -h | --help) usage; exit 0 ;;
        *) echo "install.sh: $1 is not an option; see --help" >&2; exit 2 ;;
    esac
done

case $prefix in
    /*) ;;
    *) echo "install.sh: --prefix $prefix is not an absolute path" >&2; exit 2 ;;
esac
[ -f "$binary" ] || {
    echo "install.sh: there is no $binary; build it (cargo build --release) or name it by --binary" >&2
    exit 2
}
if [ -z "$root" ] && [ "$(id -u)" -ne 0 ]; then
    echo "install.sh: only root can install into this machine; --root DIR needs nobody" >&2
    exit 1
fi

# Puts a file in place in one step: a running daemon keeps the old one. Unit files go where the system
# looks for them, whatever the prefix.
put() {
    mode=$1 from=$2 to=$root$3
    mkdir -p "$(dirname "$to")"
    cp "$from" "$to.new"
    chmod "$mode" "$to.new"
    mv -f "$to.new" "$to"
}

units=/usr/lib/systemd/system
put 755 "$binary" "$prefix/bin/pocketd"
staged=$(mktemp)
trap 'rm -f "$staged"' EXIT
sed "s|^ExecStart=/usr/bin/|ExecStart=$prefix/bin/|; s|file:///usr/share/|file://$prefix/share/|" \
    "$here/systemd/pocketd.service" >"$staged"
put 644 "$staged" "$units/pocketd.service"
put 644 "$here/systemd/pocketd.socket" "$units/pocketd.socket"
put 644 "$here/systemd/pocketd-control.socket" "$units/pocketd-control.socket"
put 644 "$here/systemd/sysusers.d/pocketd.conf" /usr/lib/sysusers.d/pocketd.conf
put 644 "$here/systemd/tmpfiles.d/pocketd.conf" /usr/lib/tmpfiles.d/pocketd.conf
for page in "$here"/../docs/src/*.md; do
    put 644 "$page" "$prefix/share/doc/pocketd/$(basename "$page")"
done

# The list of settings is always the new one; the operator's file is never touched.
put 644 "$here/systemd/pocketd.env" "$prefix/share/doc/pocketd/pocketd.env"
if [ ! -e "$root/etc/pocketd/pocketd.env" ]; then
    put 640 "$here/systemd/pocketd.env" /etc/pocketd/pocketd.env
fi

if [ -z "$root" ]; then
    systemd-sysusers /usr/lib/sysusers.d/pocketd.conf
    systemd-tmpfiles --create /usr/lib/tmpfiles.d/pocketd.conf
    chgrp pocketd /etc/pocketd/pocketd.env
    # Not where systemd is installed and does not run, such as in an image that is being built.
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
        echo "installed; now: systemctl enable --now pocketd.socket pocketd-control.socket pocketd"
    fi
fi
