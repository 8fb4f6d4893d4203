# SPDX-License-Identifier: Apache-2.0
#
# make GROUP NODE makes a control group, and one for a node's pods in it, in each hierarchy of both versions.
# remove GROUP kills what is in the group, and removes it.
roots=$(awk '/ - cgroup/ && $5 ~ "^/sys/fs/cgroup" { print $5 }' /proc/self/mountinfo)
[ -n "$roots" ] || { echo 'no control groups below /sys/fs/cgroup' >&2; exit 1; }

# Children of a group of version 2 have the controllers that the kubelet uses.
delegate() {
	for controller in cpu cpuset memory hugetlb pids; do
		! grep -qw $controller cgroup.controllers || echo +$controller >cgroup.subtree_control
	done
}

for root in $roots; do
	cd $root
	case $1 in
	make)
		for group in "$2" "$3"; do
			[ ! -e cgroup.controllers ] || delegate
			mkdir -p "$group"
			for file in cpuset.cpus cpuset.mems; do # a group of version 1 has no processors by itself
				[ -e cgroup.controllers ] || [ ! -e $file ] || cat $file >"$group/$file"
			done
			cd "$group"
		done
		[ ! -e cgroup.controllers ] || delegate
		;;
	remove)
		for _ in {1..500}; do # processes take a moment to end
			[ -e "$2" ] || break
			find "$2" -name cgroup.procs -exec cat {} + | xargs -r kill -KILL || true
			find "$2" -depth -type d -exec rmdir {} + && break
			sleep 0.02
		done 2>/dev/null
		[ ! -e "$2" ] || { echo "$root/$2 has processes that do not end" >&2; exit 1; }
		;;
	esac
done
