// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/testkit"
)

// badInput is command lines that are refused, with the exit code and a word of the message; | stands for a blank in a
// word.
var badInput = []struct {
	args    string
	code    int
	culprit string
}{
	{"svc add --service=10.96.0.100:0 --backend=192.168.10.10:5201", 2, "port 0"},
	{"svc add --service=10.96.0.100:1 --backend=[fd00::1]:5201", 2, "fd00::1"},
	{"svc add --service=10.96.0.100:1", 2, "--backend"},
	{"svc add --backend=192.168.10.10:1", 2, "--service"},
	{"svc add extra", 2, "extra"},
	{"svc add --service=10.96.0.100:1 --backend=192.168.10.10:1 --no-backends", 2, "exclude each other"},
	{"svc add --service=10.96.0.100:1 --backend=192.168.10.10:1 --choice=best", 2, `"best"`},
	{"svc add --service=10.96.0.100:1 --backend=192.168.10.10:1 --source-range=all", 2, `"all"`},
	{"svc apply", 2, "--file is missing"},
	{"svc apply -f /nonexistent", 1, "/nonexistent"},
	{"svc apply -f -", 1, "standard input: it is empty"},
	{"svc apply -f /etc/hostname", 1, "/etc/hostname: document 1: want an object"},
	{"svc diff", 2, "--file is missing"},
	{"svc export -o table", 2, "table"},
	{"explain pod-links loopback --svg=", 2, `--svg "": not the path of a file`},
	{"svc restore --saved /nonexistent", 1, "/nonexistent"},
	{"svc rm", 2, "--service"},
	{"bench --out=", 2, `--out "": want a directory`},
	{"links --netns=a --netns=b", 2, "--netns is given twice, and takes one value"},
	{"ep add --label a=b --label c=d --netns=x --netns=x", 2, "--netns is given twice"},
	{"svc rm --service=10.96.0.100:1", 1, "10.96.0.100:1"},
	{"svc ls -o yaml", 2, "yaml"},
	{"svc frob", 2, `unknown command "frob" for "mustang svc": want add, apply, diff, export, health, ls, restore, rm`},
	{"svc ls frob", 2, `unexpected argument "frob"`},
	{"ep add", 2, "--netns"},
	{"ep add --host-ifname=tap0", 2, "a VM takes --host-ifname, --address and --mac"},
	{"ep add --netns=/var/run/netns/nobody", 1, "/var/run/netns/nobody"},
	{"ep add --netns=nobody", 1, "/run/netns/nobody"},
	{"ep add --netns=/proc/self/ns/net --ifname=nope0", 1, "nope0"},
	{"ep add --netns=/proc/self/ns/net --ifname=lo", 1, "lo"},
	{"ep rm", 2, "--netns"},
	{"ep rm 7", 1, "endpoint"},
	{"ep rm pod-a", 2, "pod-a"},
	{"uplink add", 2, "DEVICE is missing"},
	{"uplink add nope0", 1, `device "nope0" in network namespace "this one": no such device`},
	{"uplink add lo", 1, "MAC address"},
	{"uplink add eth0 --netns=nobody", 1, "/run/netns/nobody"},
	{"uplink rm", 2, "DEVICE is missing"},
	{"status frob", 2, "frob"},
	{"status -o yaml", 2, "yaml"},
	{"datapath unload frob", 2, "frob"},
	{"datapath upgrade", 1, "nothing to upgrade"},
	{"counters --watch 1s", 2, `unexpected argument "1s": want --watch=1s`},
	{"report /nonexis\x1b[31mtent", 1, "/nonexis?[31mtent"},
	{"svc ls --wait=-1s", 2, "--wait -1s"},
	{"lab up", 2, "TOPOLOGY is missing"},
	{"lab up pod-links two-hosts", 2, `unexpected argument "two-hosts"`},
	{"lab up ring", 2, "ring"},
	{"lab up pod-links -f /dev/null", 2, "pod-links and -f /dev/null: want a topology or a file"},
	{"lab up -f /dev/null --link veth", 2, "--link and -f /dev/null: the file describes all"},
	{"lab up -f /dev/null", 2, "/dev/null: it is empty"},
	{"lab up -f /proc", 2, "mustang: /proc: is a directory"},
	{"lab up pod-links --service-port x", 2, `--service-port "x": want whole numbers from 0`},
	{"monitor --port x", 2, `--port "x": want whole numbers from 0`},
	{"monitor --pod a/b/c", 2, `pod "a/b/c": want NAMESPACE/NAME, or NAME`},
	{"monitor --pod=", 2, "--pod is empty"},
	{"help nosuch", 2, `unknown command "nosuch" for "mustang": want agent, bench, `},
	{"help lab upp", 2, `unknown command "upp" for "mustang lab": want down, exec, ls, up; did you mean up?`},
	{"completion tcsh", 2, `unknown command "tcsh" for "mustang completion": want bash, fish, powershell, zsh`},
	{"lab up -f /nonexistent", 1, "/nonexistent"},
	{"lab up pod-links --link token-ring", 2, "token-ring"},
	{"lab up pod-links --datapath kernel --via ebpf-tc", 2, "ebpf-tc"},
	{"lab up pod-links --link tap --big-tcp", 2, "--big-tcp"},
	{"lab exec", 2, "COMMAND"},
	{"lab exec pod-a -- true", 1, "no lab"},
	{"lab down", 1, "no lab"},
	{"cni install --link veth --subnet 0.0.0.0/0", 2, `subnet "0.0.0.0/0": pods cannot`},
	{"cni install --link veth --mtu 5", 2, "--mtu 5: want 0 (parent's MTU) or 68 to 65535; IPv6 needs 1280"},
	{"cni install --link veth --mtu 1000 --subnet fd00:1::/64", 2,
		"--mtu 1000: want 0 (parent's MTU) or 68 to 65535; IPv6 needs 1280"},
	{"cni install --link veth --bridge br0", 2, `bridge "br0": link veth has none`},
	{"bench ring", 2, `unknown suite "ring": want interfaces, `},
	{"bench swiching", 2, "; or the command cluster; did you mean switching?"},
	{"bench clutser", 2, "; did you mean cluster?"},
	{"bench latency cluster", 2, "not a suite: cluster is a command: mustang bench cluster"},
	{"bench --rounds 0", 2, "--rounds 0: want 1"},
	{"bench --duration 0", 2, "--duration 0s: want"},
	{"bench --duration 1ms", 2, "--duration 1ms: want 10ms to 1h"},
	{"bench --slice 0", 2, "--slice 0s: want"},
	{"bench --time 0", 2, "--time 0s: want more than 0"},
	{"bench --until 5", 2, `--until "5": want a percentage`},
	{"bench --until 1% --rounds 3", 2, "--rounds and --until exclude"},
	{"bench --seed 9007199254740992", 2, "--seed 9007199254740992: want less than 2^53"},
	{"bench --wire-rate 1gbit --only loopback", 2, "--wire-rate, --wire-delay: no selected row"},
	{"bench --engine x", 2, `--engine: unknown engine "x": want one of native`},
	{"bench --workload x", 2, `--workload "x": want tcp_stream, `},
	{"bench --workload tcp_sream", 2, "; did you mean tcp_stream?"},
	{"bench --direction up", 2, `--direction "up": want forward, reverse or both`},
	{"bench --request-size 0", 2, "--request-size 0: want 1"},
	{"bench --response-size 9999999", 2, "--response-size: invalid size 9999999"},
	{"bench cni --workload tcp_rr", 2, "suite cni carries no traffic"},
	{"bench --list --only [", 2, `--only "[": syntax error in pattern`},
	{"bench --only token-ring", 2, `--only "token-ring": no such row in pod-links (see mustang bench --list pod-links)`},
	{"bench -P 0", 2, "-P, --flows 0: want 1"},
	{"bench -P 65", 2, "-P, --flows 65: want 1 to 64"},
	{"bench --rate 0 --latency-under-load", 2, "--rate 0: want 1"},
	{"bench --rate 100", 2, "--rate needs --latency-under-load"},
	{"bench --cpus 0,999", 2, "--cpus: CPU 999 is not available"},
	{"bench --cpus 0,x", 2, `--cpus "0,x": want CLIENT,SERVER`},
	{"report", 2, "RESULTS is missing"},
	{"report /nonexistent", 1, "/nonexistent"},
	{"report /nonexistent -o xml", 2, "xml"},
	{"compare", 2, "OLD is missing"},
	{"compare a", 2, "NEW is missing"},
	{"compare /nonexistent /proc", 1, "/nonexistent"},
	{"compare a b -o html", 2, "html"},
	{"links --netns nobody", 1, "/run/netns/nobody"},
	{"links --netns /proc/self/ns/uts", 1, "/proc/self/ns/uts"},
	{"links --netns x --all", 2, "--all"},
	{"links --lab x --netns y", 2, "--lab"},
	{"links --lab nothing", 1, "nothing"},
	{"probe -o tree", 2, `--output: "tree": want table, wide or json`},
	{"bench --rounds 1x", 2, `--rounds "1x": want a whole number`},
	{"bench --slice 1", 2, `--slice "1": want a duration such as 10ms or 2m`},
	{"bench --quick=maybe", 2, `--quick "maybe": want true or false`},
	{"agent --vxlan-port 1e5", 2, `--vxlan-port "1e5": want a whole number from 0 to 65535`},
	{"agent --routing straight", 2, `--routing: routing "straight": want auto, native, vxlan or off`},
	{"conntrack flush", 2, "or else --all"},
	{"conntrack flush --all --client=10.0.0.1", 2, "or else --all"},
	{"conntrack flush --client=x", 2, `--client "x": want an address`},
	{"conntrack ls --backend=:80", 2, `--backend ":80"`},
	{"conntrack ls --state=open", 2, "open"},
	{"conntrack ls --protocol=icmp", 2, "icmp"},
	{"conntrack timeouts", 1, "no service or endpoint was added yet"},
	{"lab up two-hosts --wire-rate 1kbit", 2, `--wire-rate: invalid rate "1kbit"`},
	{"compare a b --threshold 5", 2, `--threshold "5": want a percentage, such as 5%`},
	{"compare a b --threshold nan%", 2, "nan%"},
	{"agent --node=n --link=foo", 2, `--link: unknown link mode "foo" (known: auto, veth, `},
	{"agent --node=n --services=foo", 2, `--services: want one of socket, tc, both, off, got "foo"`},
	{"agent --node=n --cni-version=2", 2, `--cni-version: want one of 1.1.0, `},
	{"agent --node=n --kubeconfig=/nonexistent --healthz-address=10256", 2,
		`--healthz-address "10256": want an address and port like`},
	{"agent --node=n --kubeconfig=/nonexistent --metrics-address=127.0.0.1:http", 2,
		`--metrics-address "127.0.0.1:http": want`},
	{"agent --node=n --masquerade-exclude=x", 2, `--masquerade-exclude "x": want a prefix`},
	{"agent --node=n --kubeconfig=/etc/hostname", 1, "/etc/hostname is not a kubeconfig\n"},
	{"agent --node=n --kubeconfig=/dev/zero", 1, "--kubeconfig /dev/zero: want a regular file\n"},
	{"agent --node=n --link=macvlan --services=off", 2, "--allow-services-off"},
	{"agent --node=n --link=macvlan --services=off --allow-services-off --kubeconfig=/nonexistent", 1,
		"--kubeconfig /nonexistent: no such file\n"},
	{"tun extra", 2, "extra"},
	{"tun --ifname a/b", 2, "a/b"},
	{"tun --ifname left@", 2, "left@"},
	{"tun --ifname sixteen-letters-", 2, "sixteen-letters-"},
	{"tun --ifname a --ifname b", 2, "--ifname b"},
	{"tun --ifname a --address 10.9.0.1", 2, "10.9.0.1"},
	{"tun --ifname a --address 10.9.0.1/24@b", 2, "no --ifname b"},
	{"tun --ifname a --address 224.0.0.1/4", 2, "224.0.0.1/4"},
	{"tun --ifname a --address fd00::1/64 --mtu 1000", 2, "fd00::1/64"},
	{"tun --ifname a --mtu 0", 2, "--mtu 0"},
	{"tun --ifname a --tap --echo", 2, "--tap and --echo"},
	{"tun --ifname a --tap --offload", 2, "--tap and --offload"},
	{"tun --switch --ifname a", 2, "--switch"},
	{"tun --switch --ifname a --ifname a", 2, "twice"},
	{"tun --switch --echo --ifname a --ifname b", 2, "--echo"},
	{"tun --switch --ifname a --ifname b --address 10.9.0.1/24", 2, "10.9.0.1/24@IFNAME"},
	{"tun --switch --ifname a --ifname a@elsewhere --address 10.9.0.1/24@a", 2, "10.9.0.1/24@IFNAME@NETNS"},
	{"tun --ifname a@nobody", 1, "/run/netns/nobody"},
	{"tun --ifname a@/etc/passwd", 1, "/etc/passwd"},
	{"agent --node=n --cgroup=/nosuch", 1, "--cgroup: open cgroup: open /nosuch: no such file or directory"},
	{"agent --node=n --cgroup=/proc", 1, `--cgroup: "/proc" is not a cgroup: `},
	{"agent --node=n --vxlan-port=0", 2, "--vxlan-port: 0 is not a port: want one from 1 to 65535"},
	{"agent --node=n --nodeport-addresses=eth0", 2, `--nodeport-addresses "eth0": want a prefix`},
	{"agent --node=n --masquerade-exclude=10.1.0.0/8", 2, `"10.1.0.0/8": it has host bits: want 10.0.0.0/8`},
	{"agent --node=n --namespace-quota=0", 2, "--namespace-quota 0: want 1 to 1024"},
	{"agent --node=n --uplink=", 2, "--uplink: empty: want a device, or none"},
	{"agent --node=n --cni-bin-dir=bin", 2, `--cni-bin-dir "bin": want an absolute path`},
	{"bench cluster --nodes a,b,c", 2, "--nodes: want one node or two"},
	{"bench cluster --nodes a,a", 2, "--nodes: a twice"},
	{"bench cluster --only veth", 2, "no such row in cluster"},
	{"bench cluster --workload ping", 2, "ping"},
	{"bench cluster --time 0s", 2, "--time 0s: want"},
	{"bench cluster pod-links", 2, "unexpected argument"},
	{"bench cluster --kubeconfig /no/such/file", 1, "/no/such/file"},
	{"bench cluster --kubeconfig /dev/zero", 1, "--kubeconfig /dev/zero: want a regular file"},
	{"bench latency --peer ssh|'root@10.0.0.1", 2, "unclosed quote '"},
	{"bench latency --peer=", 2, "--peer is empty"},
	{"bench latency --peer 10.0.0.1", 2, "want a command such as 'ssh root@10.0.0.1'"},
	{"bench latency --peer env|mustang", 2, "--peer-address is missing"},
	{"bench latency --peer-address 10.0.0.1", 2, "needs --peer"},
	{"bench latency --peer env --peer-address host", 2, `"host"`},
	{"bench latency --peer env --peer-address 224.0.0.1", 2, "unicast"},
	{"bench latency --peer env --peer-program $(reboot)", 2, "--peer-program"},
	{"bench latency --uplink-addresses 10.0.0.50/24,10.0.0.51/24", 2, "need --peer"},
	{"bench latency --peer env --peer-address 10.0.0.1 --uplink eth0", 2, "--uplink-addresses"},
	{"bnech", 2, "did you mean bench?"},
	{"agent stat", 2, `unknown command "stat" for "mustang agent": want cleanup, status; did you mean status?`},
	{"agent --node=n clenup", 2, "did you mean cleanup?"},
	{"bench --quik", 2, "unknown flag: --quik; did you mean --quick?"},
	{"bench --only veth/pod-pi", 2, "did you mean veth/pod-ip?"},
	{"bench --engine iperf", 2, "did you mean iperf3?"},
	{"explain veth/pod-pi", 2, "did you mean veth/pod-ip?"},
	{"lab up pod-lnk", 2, "did you mean pod-links?"},
	{"lab up pod-links --link vet", 2, "did you mean veth?"},
	{"cni install --link ipvlan-l4", 2, "did you mean ipvlan-l2 or ipvlan-l3?"},
	{"svc ls -o jsn", 2, "did you mean json?"},
	{"cni install --link token-ring", 2, `--link: unknown link mode "token-ring"`},
	{"cni install --link veth --name ../x", 2, `--name: invalid network name "../x"`},
	{"cni install --link veth --mtu 70000", 2, "--mtu 70000: want 0 (parent's MTU) or 68 to 65535"},
	{"cni install --link veth --services all", 2, "--services: want"},
	{"cni install --link macvlan --parent a/b", 2, `--parent: invalid device name "a/b"`},
	{"cni install --link bridge --bridge a-name-that-is-too-long", 2,
		`--bridge: invalid device name "a-name-that-is-too-long"`},
	{"cni install --link veth --subnet 10.1.0.0", 2, `--subnet "10.1.0.0"`},
	{"cni install --link veth --subnet 10.1.2.3/16", 2,
		"--subnet: range 10.1.2.3/16: the subnet 10.1.2.3/16 has host bits set; want 10.1.0.0/16"},
	{"cni install --link veth --subnet 10.1.0.0/16 --subnet 10.2.0.0/16", 2,
		"--subnet: 10.2.0.0/16 is the second set of its family"},
	{"cni install --link macvlan --gateway 10.77.0.x", 2, `--gateway "10.77.0.x"`},
	{"cni install --link veth --gateway 10.78.0.1", 2, "--gateway: 10.78.0.1 is not an address of 10.77.0.0/16"},
	{"cni install --link macvlan --host-address 10.77.0.2/16", 2, `--host-address "10.77.0.2/16"`},
	{"cni install --link macvlan --host-address 10.77.0.1", 2, "--host-address: 10.77.0.1"},
	{"cni install --link veth --host-address 10.77.0.2", 2, "--host-address: not supported with link veth"},
	{"cni install --link macvlan --masquerade --host-address 10.77.0.2", 2,
		"--masquerade: not supported with --host-address"},
	{"cni install --link veth --cni-version 3.0", 2, "--cni-version: want"},
	{"cni install --link veth --conf-name x.conf", 2, "--conf-name: configuration name"},
	{"cni install --link veth --conf-dir x", 2, `--conf-dir "x": want an absolute path`},
	{"cni install --link veth --bin-dir=", 2, `--bin-dir "": want an absolute path`},
	{"cni install --link veth --conf-name ../x.conflist", 2, "../x.conflist"},
	{"cni install --link veth --plugin /nonexistent/plugin", 1, "/nonexistent/plugin"},
	{"frob", 2, `unknown command "frob" for "mustang": want agent, bench, cni, `},
}

// TestBadInput gives each command input that it must refuse: with one line that
// names the culprit, the right exit code, and nothing changed.
func TestBadInput(t *testing.T) {
	testkit.RequireRoot(t)
	bpffs := testkit.BPFFS(t)
	plain := t.TempDir()
	for _, test := range badInput {
		t.Run(test.args, func(t *testing.T) {
			state := filepath.Join(plain, "state")
			env := map[string]string{cli.EnvBPFRoot: filepath.Join(bpffs, "mustang"), envStateDir: state}
			words := strings.Fields(test.args)
			for i := range words {
				words[i] = strings.ReplaceAll(words[i], "|", " ")
			}
			code, stdout, stderr := command(t, env, words...)
			if code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			if strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, test.culprit) {
				t.Errorf("stderr %q, want one line with %q", stderr, test.culprit)
			}
			if stdout != "" {
				t.Errorf("stdout %q, want nothing", stdout)
			}
			if test.code == exitMisuse {
				if entries, err := os.ReadDir(bpffs); err != nil || len(entries) > 0 {
					t.Errorf("pinned: %v, %v", entries, err)
				}
			}
			if _, services, _ := command(t, env, "svc", "ls"); strings.Count(services, "\n") != 1 {
				t.Errorf("services afterwards: %s", services)
			}
			if _, endpoints, _ := command(t, env, "ep", "ls"); strings.Count(endpoints, "\n") != 1 {
				t.Errorf("endpoints afterwards: %s", endpoints)
			}
		})
	}
}
