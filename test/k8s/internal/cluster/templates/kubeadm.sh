# SPDX-License-Identifier: Apache-2.0
#
# Makes a node, whose files are in a directory, look like a machine to kubeadm. Its mounts are shared within the node alone.
dir=$1
bind() {
	mkdir -p "$2"
	mount -n --bind --make-private "$dir/$1" "$2"
	mount -n --make-shared "$2"
}
bind kubernetes /etc/kubernetes
bind kubelet /var/lib/kubelet
mkdir -p /var/lib/etcd
mount -n -t tmpfs tmpfs /var/lib/etcd # etcd waits for each write to its disk
mount -n --bind "$dir/resolv.conf" /etc/resolv.conf
echo 1 >/proc/sys/net/ipv4/ip_forward # kubeadm refuses a node without it
chmod 755 "$dir/bin/systemctl"
