// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/netns"
	"mustang/internal/testkit"
)

// oneThreadVariable keeps the program on its first thread: strace counts the system calls of each thread.
const oneThreadVariable = "MUSTANG_ONE_THREAD"

// Addresses of killNetwork.
const (
	killFrontend = "10.96.0.100:5201"
	killPodA     = "192.168.10.10"
	killPodB     = "192.168.10.11"
	killPodC     = "192.168.20.10"
)

// killCase is a command that is killed. HOST, PODA, PODB, PODC, CGROUP and BACKEND stand for objects of killNetwork.
type killCase struct {
	name    string
	setup   []string // commands that run before it
	args    string
	again   string // runs after the killed one; the same command if empty
	other   string // a command of another kind, which changes nothing and finds the remains of the killed one
	reaches bool   // whether the service answers after it
}

const (
	addPods    = "ep add --netns=PODA --host-netns=HOST|ep add --netns=PODB --host-netns=HOST"
	addService = "svc add --service=" + killFrontend + " --backend=BACKEND"
	addTCP     = addService + " --protocol=tcp"
	// applyServices deletes a service, changes one and adds one.
	applyServices = "svc apply --file=SERVICES --saved=SAVED/services.json"
	addUDP        = addService + " --protocol=udp"
	addRanged     = addService + " --source-range=192.168.10.0/24"
	otherSvc      = "svc rm --service=10.96.0.9:9"
	otherEp       = "ep rm 192.168.99.99"

	addOnParent = "ep add --netns=PODC --host-netns=HOST"

	// addLabelled makes pods of two applications. POLICIES let b reach a.
	addLabelled = "ep add --netns=PODA --host-netns=HOST --label=app=a|ep add --netns=PODB --host-netns=HOST --label=app=b"
	applyOther  = "policy apply --file=OTHER"
	applyPolicy = "policy apply --file=POLICIES"
)

func killCases() []killCase {
	const twoBackends, maglev, reset = addService + " --backend=192.168.10.99:1", " --choice=maglev", " --on-remove=reset"
	return []killCase{
		{"svc add, first command", nil, addService, "", otherEp, false},
		{"svc add any", []string{addPods}, addService, "", otherEp, true},
		{"svc add tcp", []string{addPods}, addTCP, "", otherEp, true},
		{"svc add udp beside tcp", []string{addPods, addTCP}, addUDP, "", otherEp, true},
		{"svc add with other backends", []string{addPods, twoBackends}, addService, "", otherEp, true},
		{"svc add with other tables", []string{addPods, twoBackends + maglev}, addService + maglev, "", otherEp, true},
		{
			"svc add with source ranges", []string{addPods, addRanged + " --source-range=10.0.0.0/8"},
			addRanged + " --source-range=192.168.0.0/17 --source-range=172.16.0.0/12", "", otherEp, true,
		},
		{"svc rm with source ranges", []string{addPods, addRanged}, "svc rm --service=" + killFrontend, "", otherEp, false},
		{"svc add that resets", []string{addPods, twoBackends + reset}, addService + reset, "", otherEp, true},
		{"svc rm of one that resets", []string{addPods, addTCP + reset}, "svc rm --service=" + killFrontend, "",
			otherEp, false},
		{"svc apply", []string{addPods, twoBackends, "svc add --service=10.96.0.9:9 --backend=192.168.10.99:1"},
			applyServices, "", otherEp, true},
		{"svc add node port", []string{addPods, addService},
			"svc add --service=0.0.0.0:30080 --node-port --backend=192.168.10.99:1", "", otherEp, true},
		{"svc rm any", []string{addPods, addService}, "svc rm --service=" + killFrontend, "", otherEp, false},
		{"svc rm of two", []string{addPods, addTCP, addUDP}, "svc rm --service=" + killFrontend, "", otherEp, false},
		{"ep add, first command", nil, "ep add --netns=PODA --host-netns=HOST", "", otherSvc, false},
		{"ep add", []string{addService, "ep add --netns=PODB --host-netns=HOST"}, "ep add --netns=PODA --host-netns=HOST", "",
			otherSvc, true},
		{"ep rm IP", []string{addPods, addService}, "ep rm " + killPodB, "", otherSvc, false},
		{"ep rm netns", []string{addPods, addService}, "ep rm --netns=PODB --host-netns=HOST", "", otherSvc, false},
		{"ep add on a parent", []string{addPods, addService}, addOnParent, "", otherSvc, true},
		{"ep rm of the last on a parent", []string{addPods, addService, addOnParent}, "ep rm " + killPodC, "",
			otherSvc, true},
		{"uplink add", []string{addPods, addService}, "uplink add wire --netns=HOST", "", otherSvc, true},
		{"uplink rm", []string{addPods, addService, "uplink add wire --netns=HOST"}, "uplink rm wire --netns=HOST", "",
			otherSvc, true},
		{"socket attach, first command", nil, "socket attach --cgroup=CGROUP --netns=HOST", "", otherSvc, false},
		{"socket attach", []string{addPods, addService}, "socket attach --cgroup=CGROUP --netns=HOST", "", otherSvc, true},
		{
			"socket detach", []string{addPods, addService, "socket attach --cgroup=CGROUP --netns=HOST"},
			"socket detach --cgroup=CGROUP --netns=HOST", "", otherSvc, true,
		},
		{"policy apply", []string{addLabelled, addService}, applyPolicy, "", otherSvc, true},
		{"policy apply of others", []string{addLabelled, addService, applyOther}, applyPolicy, "", otherSvc, true},
		{"policy apply of another port", []string{addLabelled, addService, applyPolicy}, "policy apply --file=PORTS", "",
			otherSvc, true},
		{"policy delete", []string{addLabelled, addService, applyPolicy}, "policy delete default/b-to-a", "",
			otherSvc, false},
		{
			"ep add with policies", []string{addService, applyPolicy, "ep add --netns=PODA --host-netns=HOST --label=app=a"},
			"ep add --netns=PODB --host-netns=HOST --label=app=b", "", otherSvc, true,
		},
		{"ep rm with policies", []string{addLabelled, addService, applyPolicy}, "ep rm " + killPodB, "", otherSvc, false},
		{"datapath unload", []string{addPods, addService, "uplink add wire --netns=HOST"}, "datapath unload", "",
			otherEp, false},
		{"svc rm, then svc add", []string{addPods, addService}, "svc rm --service=" + killFrontend, addService,
			otherEp, true},
		{"ep rm, then ep add", []string{addPods, addService}, "ep rm " + killPodB, "ep add --netns=PODB --host-netns=HOST",
			otherSvc, true},
		{
			"uplink rm, then uplink add", []string{addPods, addService, "uplink add wire --netns=HOST"},
			"uplink rm wire --netns=HOST",
			"uplink add wire --netns=HOST", otherSvc, true,
		},
	}
}

// Policies that commands apply.
const (
	killPolicies = `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "deny"}, ` +
		`"spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}
{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "b-to-a"}, "spec": {"podSelector": {"matchLabels": {"app": "a"}},
  "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "b"}}}], "ports": [{"port": 1, "endPort": 65535}]}]}}`
	killOthers = `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "deny"}, ` +
		`"spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"],
  "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": 1, "endPort": 9}]}]}}`
)

// killNetwork is a host with two pods on a bridge and one on a parent, a wire, a control group, and an empty root.
type killNetwork struct {
	t     *testing.T
	root  string
	kept  bool // whether the root had another test's programs
	host  *netns.Namespace
	pods  [2]*netns.Namespace
	names *strings.Replacer
	nets  *strings.Replacer // of names of network namespaces, for ip
	saved string            // the directory of the services that svc apply saves
}

func newKillNetwork(t *testing.T) *killNetwork {
	t.Helper()
	testkit.RequireRoot(t)
	testkit.RequireKernel(t, 6, 6)
	testkit.RequireTool(t, "ip")
	host, a, b, c := testkit.Namespace(t, "host"), testkit.Namespace(t, "a"), testkit.Namespace(t, "b"),
		testkit.Namespace(t, "c")
	names := strings.NewReplacer("HOST", host.Name(), "PODA", a.Name(), "PODB", b.Name(), "PODC", c.Name())
	n := &killNetwork{t: t, nets: names, host: host, pods: [2]*netns.Namespace{a, b}}
	n.ip(`-n HOST link add br0 type bridge forward_delay 0
		-n HOST addr add 192.168.10.1/24 dev br0
		-n HOST link set br0 up
		-n HOST link add wire type veth peer name far
		-n HOST link add parent type veth peer name beyond
		-n HOST link set parent up
		-n HOST link add own link parent type macvlan mode bridge
		-n HOST link add eth0 link parent netns PODC type macvlan mode bridge
		-n PODC addr add ` + killPodC + `/24 dev eth0
		-n PODC link set eth0 up
		-n HOST link add va master br0 type veth peer name eth0 netns PODA
		-n HOST link add vb master br0 type veth peer name eth0 netns PODB
		-n PODA addr add ` + killPodA + `/24 dev eth0
		-n PODB addr add ` + killPodB + `/24 dev eth0
		-n PODA link set eth0 up
		-n PODB link set eth0 up
		-n HOST link set va up
		-n HOST link set vb up
		-n PODB route add default via 192.168.10.1`)
	backend := testkit.Echo(t, a, "tcp", killPodA+":0")
	file, saved := filepath.Join(t.TempDir(), "services.yaml"), filepath.Join(t.TempDir(), "saved")
	services := fmt.Sprintf(
		`{"schema": 1, "services": [{"service": %q, "backends": [%q]}, {"service": "10.96.0.8:8", "backends": `+
			`["192.168.10.99:1"]}]}`,
		killFrontend, backend)
	testkit.Succeed(t, os.WriteFile(file, []byte(services), 0o600))
	rules, others := filepath.Join(filepath.Dir(file), "policies.yaml"), filepath.Join(filepath.Dir(file), "others.yaml")
	ports := filepath.Join(filepath.Dir(file), "ports.yaml")
	for path, text := range map[string]string{rules: killPolicies, others: killOthers, ports: strings.Replace(killPolicies,
		"65535", "65000", 1)} {
		testkit.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
	}
	n.root, n.saved = testkit.BPFFS(t)+"/root", saved
	n.names = strings.NewReplacer(
		"=SERVICES", "="+file, "=POLICIES", "="+rules, "=OTHER", "="+others, "=PORTS", "="+ports, "=SAVED", "="+
			saved, "=HOST", "="+host.Name(),
		"=PODA", "="+a.Name(), "=PODB", "="+b.Name(), "=PODC", "="+c.Name(), "=CGROUP", "="+testkit.Cgroup(t), "=BACKEND",
		"="+backend.String())
	return n
}

func (n *killNetwork) ip(lines string) {
	n.t.Helper()
	for line := range strings.Lines(n.nets.Replace(lines)) {
		out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput()
		testkit.Require(n.t, err == nil, "ip %s: %v: %s", line, err, out)
	}
}

func (n *killNetwork) args(line string) []string { return strings.Fields(n.names.Replace(line)) }

// run runs a command to its end. Objects that a killed one has removed may be missing.
func (n *killNetwork) run(line string) {
	n.t.Helper()
	code, _, stderr := command(n.t, map[string]string{cli.EnvBPFRoot: n.root}, n.args(line)...)
	gone := regexp.MustCompile("does not exist|attached to nothing|there are no endpoints")
	testkit.Require(n.t, code == exitDone || gone.MatchString(stderr), "%q: exit code %d: %s", line, code, stderr)
}

func (n *killNetwork) runAll(commands []string) {
	n.t.Helper()
	for _, lines := range commands {
		for _, line := range strings.Split(lines, "|") {
			n.run(line)
		}
	}
}

// onlyRoot runs a program in a mount namespace without BPF file systems other than the root's: cilium/ebpf opens each
// mounted one for a token, and other tests mount and unmount theirs. One may disappear before it is unmounted here.
const onlyRoot = `for at in $(findmnt -rno TARGET -t bpf); do case $` + cli.EnvBPFRoot +
	` in $at/*) ;; *) umount -l $at 2>/dev/null || ! mountpoint -q $at || exit ;; esac; done; exec "$0" "$@"`

// traced is a case's command below strace, which writes the calls of steps to a file.
func (n *killNetwork) traced(c killCase, path string, options ...string) *exec.Cmd {
	program := []string{"unshare", "--mount", "sh", "-c", onlyRoot, "strace", "-f", "-qq", "-o", path, "-e",
		"trace=bpf,unlinkat,renameat,linkat"}
	return n.process(c, append(program, options...)...)
}

// process is a case's command as a process, below another program.
func (n *killNetwork) process(c killCase, program ...string) *exec.Cmd {
	args := append(append(program, "mustang"), n.args(c.args)...)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), cli.EnvBPFRoot+"="+n.root, oneThreadVariable+"=1")
	return cmd
}

// check compares the state with the state after an unbroken run, and calls the service.
func (n *killNetwork) check(c killCase, want, how string) {
	n.t.Helper()
	got := n.state()
	testkit.Require(n.t, got == want, "%s, run again, leaves\n%s\nwant\n%s", how, got, want)
	if c.reaches {
		testkit.Eventually(n.t, time.Second, func() error {
			_, err := testkit.RoundTrip(n.t, n.pods[1], "tcp", killFrontend, []byte("after a kill"))
			return err
		})
	}
}

// writes matches the bpf calls that change something, and removals of pins and new names of files, in a trace.
var writes = regexp.MustCompile(
	`^[0-9]+ +(bpf\(BPF_(MAP_(CREATE|UPDATE|DELETE)|PROG_LOAD|LINK_(CREATE|UPDATE|DETACH)|OBJ_PIN|ITER_CREATE)|(bpf|` +
		`unlinkat|renameat|linkat)\()`)

// killPoint is the call before which a command is killed: call number n of its name.
type killPoint struct {
	call   string
	number int
}

func (p killPoint) String() string { return fmt.Sprintf("%s:signal=SIGKILL:when=%d", p.call, p.number) }

// steps runs the command unbroken, and returns the calls before which it is to be killed: each that changes something.
func (n *killNetwork) steps(c killCase) (points []killPoint) {
	n.t.Helper()
	path := filepath.Join(n.t.TempDir(), "trace")
	out, err := n.traced(c, path, "-e", "signal=none").CombinedOutput()
	testkit.Require(n.t, err == nil, "%s: %v: %s", c.args, err, out)
	main, count := "", map[string]int{}
	for line := range strings.Lines(readText(n.t, path)) {
		m := writes.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		pid, rest, _ := strings.Cut(line, " ")
		if main == "" {
			main = pid
		}
		testkit.Require(n.t, pid == main, "%s: a call of another thread: %s", c.args, line)
		name, _, _ := strings.Cut(strings.TrimSpace(rest), "(")
		count[name]++
		if m[2] != "" || name != "bpf" {
			points = append(points, killPoint{name, count[name]})
		}
	}
	return points
}

// chosen returns the points to kill at. The short form has two: the middle bpf call, which parts the rows and links of
// an object, and the last call that publishes a file or, if none does, the middle removal of a pin.
func chosen(points []killPoint) (some []killPoint) {
	if !short() {
		return points
	}
	calls := map[string][]killPoint{}
	for _, p := range points {
		calls[p.call] = append(calls[p.call], p)
	}
	if bpf := calls["bpf"]; len(bpf) > 0 {
		some = append(some, bpf[len(bpf)/2])
	}
	for _, call := range []string{"renameat", "linkat"} {
		if published := calls[call]; len(published) > 0 {
			return append(some, published[len(published)-1])
		}
	}
	if removed := calls["unlinkat"]; len(removed) > 0 {
		some = append(some, removed[len(removed)/2])
	}
	return some
}

// sameCalls are cases that make the calls of other cases, with other values. Only the long form has them.
var sameCalls = map[string]string{
	"svc add tcp": "svc add any", "svc add node port": "svc add any", "svc rm any": "svc rm of two",
	"svc rm of one that resets": "svc rm of two", "ep rm netns": "ep rm IP",
	"policy delete":                "policy apply of others",
	"socket attach, first command": "socket attach", // after the calls of "svc add, first command"
}

// killAt runs the command and kills it at a call. It reports false if the command ended before. A run may make fewer
// calls than the counted run, for example if the kernel interrupted a program load there.
func (n *killNetwork) killAt(c killCase, at killPoint) bool {
	n.t.Helper()
	path := filepath.Join(n.t.TempDir(), "trace")
	cmd := n.traced(c, path, "-e", "inject="+at.String())
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() == -1 {
		return true
	}
	testkit.Require(n.t, err == nil && strings.Count(readText(n.t, path), " "+at.call+"(") < at.number,
		"%q, killed at %s: it survived: %v: %s", c.args, at, err, out)
	return false
}

// TestKilledAtEachStep kills each command that writes before each system call that changes something. The same command
// again leaves what an unbroken one leaves, and a command of another kind finds what belongs to nothing. The short form
// kills each command at most twice, see [chosen], and has no cases of [sameCalls].
func TestKilledAtEachStep(t *testing.T) {
	t.Parallel()
	testkit.RequireTool(t, "strace")
	n := newKillNetwork(t)
	if short() { // the root that the cases use one after the other gets all programs
		n.begun(t, killCase{setup: append([]string{addOnParent}, everything...)}, "programs", func(*killNetwork) {})
	}
	for _, c := range killCases() {
		if short() && sameCalls[c.name] != "" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			testkit.Check(t, n.killed(t, c) != 0, "no run was killed: the test shows nothing")
		})
	}
}

// killed runs a case unbroken, kills it at the points that are chosen, and returns how often.
func (n *killNetwork) killed(t *testing.T, c killCase) (kills int) {
	var points []killPoint
	var want string
	n.begun(t, c, "unbroken", func(n *killNetwork) {
		points = n.steps(c)
		n.run(cmp.Or(c.again, c.args))
		want = n.state()
		n.check(c, want, "unbroken")
	})
	kill := func(at killPoint) {
		n.begun(t, c, at.String(), func(n *killNetwork) {
			if !n.killAt(c, at) {
				return
			}
			kills++
			how := fmt.Sprintf("%q, killed at %s", c.args, at)
			if c.again == "" {
				n.checkOrphans(c, how)
			}
			n.run(cmp.Or(c.again, c.args))
			n.check(c, want, how)
		})
	}
	for _, at := range chosen(points) {
		kill(at)
	}
	if kills == 0 { // each of these runs made fewer calls than the counted one: the kernel interrupted program loads there
		kill(points[0])
	}
	return kills
}
