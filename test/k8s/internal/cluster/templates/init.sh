# SPDX-License-Identifier: Apache-2.0
#
# The life of a node's PID 1, whose files are in a directory: mounts what daemons of a node take for theirs alone, and reaps until its
# input ends. Nothing mounts the BPF file system, as in nodes that are containers.
dir=$1
mount() { command mount -n "$@"; } # keeps no table of its own in /run
basename "$dir" >/proc/sys/kernel/hostname
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mount -t proc proc /proc
# /sys of this network namespace, with the machine's control groups.
mount --rbind /sys/fs/cgroup "$dir/cgroup"
mount -t sysfs sysfs /sys
mount --rbind "$dir/cgroup" /sys/fs/cgroup
bind() {
	mkdir -p "$2"
	mount --rbind "$dir/$1" "$2"
}
bind cni-bin /opt/cni/bin
bind cni-conf /etc/cni/net.d
bind cni-state /var/lib/cni
bind log /var/log
# The socket of device plugins, which another kubelet would bind too.
mkdir -p /var/lib/kubelet
mount -t tmpfs tmpfs /var/lib/kubelet
# The kubelet sets these, for the whole machine: here it finds files that say that they are set.
for setting in vm/overcommit_memory=1 kernel/panic=10 kernel/panic_on_oops=1 kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
	name=${setting%=*}
	echo "${setting#*=}" >"$dir/sysctl/${name//\//.}"
	mount --bind "$dir/sysctl/${name//\//.}" "/proc/sys/$name"
done
mkdir -p /run/netns /run/lock
mount --make-rshared / # within the node: the kubelet's mounts are the runtime's
echo ready
read -r || true # by the shell itself: a process of its own could be stopped, and would reap nothing
