#!/bin/bash
# Installs what tools/s3/up.sh needs from Debian's own packages: a Ceph RGW of one node (about 61 MB). Run as root.
# Does nothing where all of it is there already.
set -eu

missing=()
command -v radosgw >/dev/null || missing+=(radosgw)
command -v ceph-mon >/dev/null || missing+=(ceph-mon)
command -v ceph-osd >/dev/null || missing+=(ceph-osd)
command -v ceph >/dev/null && command -v ceph-authtool >/dev/null || missing+=(ceph-common)
command -v curl >/dev/null || missing+=(curl)
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
    echo "install.sh: this system has no apt-get; install ${missing[*]} with its own package manager." >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "install.sh: installing ${missing[*]} needs root; run: sudo $0" >&2
    exit 1
fi

export DEBIAN_FRONTEND=noninteractive
apt-get update -q
# The packages' own services would bring up an unwanted cluster where systemd runs; without it they start nothing.
apt-get install -q -y --no-install-recommends "${missing[@]}"
