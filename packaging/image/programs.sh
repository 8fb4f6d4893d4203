#!/bin/sh
# programs.sh ARCH DIR: makes DIR with iptables, nft and the libraries that they load, of Debian's packages for ARCH. The lab
# writes kube-proxy's rules with them. Without apt-get DIR stays empty.
set -eu
arch=$1 dir=$2
rm -rf "$dir" "$dir.apt"
trap 'rm -rf "$dir.apt"' EXIT
mkdir -p "$dir" "$dir.apt/archives/partial" "$dir.apt/lists/partial"
if ! command -v apt-get >/dev/null; then
  echo "apt-get is missing: the image lacks iptables and nft" >&2
  exit 0
fi
apt() { apt-get -qq -y -o Dir::State::status=/dev/null -o APT::Sandbox::User=root -o Dir::Cache::archives="$dir.apt/archives" "$@"; }
if [ "$arch" = "$(dpkg --print-architecture)" ]; then
  download() { apt --no-install-recommends --download-only install iptables nftables; }
  download 2>/dev/null || { apt update; download; }
else
  foreign="-o APT::Architecture=$arch -o APT::Architectures=$arch -o Dir::State::lists=$dir.apt/lists"
  # shellcheck disable=SC2086
  apt $foreign update
  # shellcheck disable=SC2086
  apt $foreign --no-install-recommends --download-only install iptables nftables
fi
for package in "$dir.apt"/archives/*.deb; do
  dpkg-deb -x "$package" "$dir"
done
rm -rf "$dir.apt" "$dir"/usr/share/man "$dir"/usr/share/lintian "$dir"/usr/share/bug "$dir"/usr/lib/*/gconv "$dir"/lib/*/gconv "$dir"/etc/ld.so.conf*
find "$dir/usr/share/doc" -type f ! -name copyright -delete
for name in iptables iptables-restore iptables-save ip6tables ip6tables-restore ip6tables-save; do
  ln -s xtables-nft-multi "$dir/usr/sbin/$name" # an alternative of Debian, which only installing the package makes
done
