// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/datapath"
	"mustang/internal/datapath/flows"
	"mustang/internal/datapath/kept"
	"mustang/internal/datapath/policies"
	"mustang/internal/netns"
	"mustang/internal/policy"
	"mustang/internal/policy/manifest"
	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

func TestMain(m *testing.M) {
	os.Exit(kept.Main(m, testkit.CheckLeaks))
}

// lab is a host with pods shop/a and shop/b behind veths, and a client outside.
type lab struct {
	t                 testing.TB
	host, a, b, outer *netns.Namespace
	d                 *datapath.Datapath
	root              string
	out               output
}

// The addresses. The client outside is behind device outer.
const (
	podA, podB, podA6, podB6 = "192.168.10.10", "192.168.10.11", "fd00:10::a", "fd00:10::b"
	podGate                  = "192.168.10.1"
	client, gate             = "172.16.2.2", "172.16.2.1"
)

// newLab makes a lab whose datapath is at a root, such as one of [kept.Root].
func newLab(t testing.TB, root func(testing.TB) string) *lab {
	testkit.RequireRoot(t)
	testkit.RequireKernel(t, 6, 6)
	testkit.RequireTool(t, "ip")
	l := &lab{
		t: t, host: testkit.Namespace(t, "host"), a: testkit.Namespace(t, "a"), b: testkit.Namespace(t, "b"),
		outer: testkit.Namespace(t, "outer"), root: root(t),
	}
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		testkit.Succeed(t, rtnl.In(l.host).SetSysctl(key, "1"))
	}
	l.run(`-n HOST link set lo up
		-n HOST addr add ` + podGate + `/32 dev lo`)
	for _, pod := range [][4]string{{"va", "PODA", podA, podA6}, {"vb", "PODB", podB, podB6}} {
		l.run(`-n HOST link add ` + pod[0] + ` type veth peer name eth0 netns ` + pod[1] + `
			-n ` + pod[1] + ` addr add ` + pod[2] + `/24 dev eth0
			-n ` + pod[1] + ` addr add ` + pod[3] + `/64 dev eth0 nodad
			-n ` + pod[1] + ` link set eth0 up
			-n HOST link set ` + pod[0] + ` up
			-n HOST route add ` + pod[2] + ` dev ` + pod[0] + `
			-n HOST route add ` + pod[3] + ` dev ` + pod[0] + `
			-n ` + pod[1] + ` route add default via ` + podGate)
		testkit.Succeed(t, rtnl.In(l.host).SetSysctl("net/ipv4/conf/"+pod[0]+"/proxy_arp", "1"))
	}
	l.run(`-n HOST link add outer type veth peer name outer netns OUTER
		-n OUTER link set outer up
		-n HOST addr add ` + gate + `/24 dev outer
		-n HOST link set outer up`)
	l.d = testkit.Must(datapath.Open(t.Context(), datapath.Options{Root: l.root}))(t)
	t.Cleanup(func() { _ = l.d.Close() })
	for name, ns := range map[string]*netns.Namespace{"a": l.a, "b": l.b} {
		pod := &policy.Pod{Namespace: "shop", Name: name, Labels: map[string]string{"app": name}}
		spec := datapath.EndpointSpec{Namespace: ns, IfName: "eth0", Host: l.host, Pod: pod}
		_, _, err := l.d.Endpoints().Put(t.Context(), spec)
		testkit.Succeed(t, err)
	}
	testkit.Must(l.d.Uplinks().Put(t.Context(), l.host, "outer"))(t)
	return l
}

func (l *lab) run(script string) {
	l.t.Helper()
	names := strings.NewReplacer("HOST", l.host.Name(), "PODA", l.a.Name(), "PODB", l.b.Name(), "OUTER", l.outer.Name())
	for line := range strings.Lines(names.Replace(script)) {
		out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput()
		testkit.Require(l.t, err == nil, "ip %s: %v: %s", line, err, out)
	}
}

func (l *lab) serve(s service.Service, frontend string, backends ...string) {
	l.t.Helper()
	s.Frontend = netip.MustParseAddrPort(frontend)
	for _, b := range backends {
		s.Backends = append(s.Backends, service.Backend{Addr: netip.MustParseAddrPort(b)})
	}
	_, _, err := l.d.Services().Put(l.t.Context(), service.CLI, s)
	testkit.Require(l.t, err == nil, "%v", err)
}

// policies replaces all policies of the command line with a document; empty: none.
func (l *lab) policies(document string) {
	l.t.Helper()
	set := manifest.Set{}
	var err error
	if document != "" {
		set, err = manifest.Read(strings.NewReader("---\n" + document))
	}
	testkit.Succeed(l.t, err)
	testkit.Must(l.d.Policies().Apply(l.t.Context(), service.CLI, policies.Set{Snapshot: set.Snapshot}))(l.t)
}

func (l *lab) flush() {
	l.t.Helper()
	testkit.Must(l.d.ConnectionTable().Flush(l.t.Context(), flows.Filter{}))(l.t)
}

// monitor runs mustang monitor until the test ends.
func (l *lab) monitor() {
	ctx, cancel := context.WithCancel(context.Background())
	config := &cli.Config{Environment: cli.Environment{Stdout: &l.out, Stderr: io.Discard}, BPFRoot: l.root}
	ended := make(chan error, 1)
	go func() {
		cmd := monitorCommand(config)
		cmd.SetArgs([]string{"-o", "json"})
		ended <- cmd.ExecuteContext(ctx)
	}()
	l.t.Cleanup(func() {
		cancel()
		err := <-ended
		testkit.Check(l.t, err == nil, "%v", err)
	})
}

// output is the output of the monitor.
type output struct {
	mutex sync.Mutex
	bytes bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.bytes.Write(p)
}

func (o *output) lines(t testing.TB) (all []line) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	for decoder := json.NewDecoder(&o.bytes); ; {
		var l line
		if err := decoder.Decode(&l); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if l.Verdict != "" { // lines without a verdict count left-out events
			all = append(all, l)
		}
	}
}

// udp returns a datagram of IPv4 without payload, behind its EtherType. Nothing here looks at checksums.
func udp(from, to string) []byte {
	source, destination := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)
	ip := []byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
	ip = append(append(ip, source.Addr().AsSlice()...), destination.Addr().AsSlice()...)
	ip = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(ip, source.Port()), destination.Port())
	return typed(unix.ETH_P_IP, append(ip, 0, 8, 0, 0))
}

// typed puts an EtherType before a packet.
func typed(kind uint16, payload []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, kind), payload...)
}

// frame sends a frame out of a device to the host, from its own MAC address if it is given no other.
func (l *lab) frame(ns *netns.Namespace, device string, from net.HardwareAddr, packet []byte) {
	l.t.Helper()
	own := testkit.Must(rtnl.In(ns).Device(device))(l.t)
	peer := testkit.Must(rtnl.In(l.host).Device(map[string]string{"eth0": "va", "outer": "outer"}[device]))(l.t)
	if from == nil {
		from = own.MAC
	}
	frame := slices.Concat(peer.MAC, from, packet)
	testkit.Succeed(l.t, ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: own.Index,
			Protocol: uint16(packet[0]) | uint16(packet[1])<<8})
	}))
}
