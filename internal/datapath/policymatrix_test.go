// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/policies"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/policy"
	"mustang/internal/policy/manifest"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestPolicyMatrix lets nine pods in three namespaces and their node connect, each to each, under policies, and compares with
// policy.Explain. A connection that is denied is one that the programs tell of; one that is allowed has an answer.
//
// In the short form each mode has a part of the recipes, so that all modes together have each several times.
func TestPolicyMatrix(t *testing.T) {
	for i, name := range []string{
		"veth", "bridge", "macvlan", "ipvlan-l2", "ipvlan-l3", "ipvlan-l3s", "netkit", "netkit-l2", "ovs-veth", "ovs-internal",
	} {
		t.Run(name, func(t *testing.T) { testMatrix(t, name, i) })
	}
}

func testMatrix(t *testing.T, name string, part int) {
	const parts = 3
	m := newMatrix(t, name)
	for i, recipe := range policyRecipes() {
		if i%parts != part%parts && testkit.Repeats(0, 1) == 0 {
			continue
		}
		set, err := manifest.Read(strings.NewReader("---\n" + recipe))
		if err != nil {
			t.Fatalf("recipe %d: %v", i, err)
		}
		m.try(t, fmt.Sprintf("recipe %d", i), set.Snapshot.Policies)
	}
	for seed := range uint64(testkit.Repeats(1, 88)) {
		g := policyGenerator{rand.New(rand.NewPCG(seed, 15))}
		m.try(t, fmt.Sprintf("seed %d", seed), g.policies())
	}
}

// matrix is nine pods, the node, and their sockets.
type matrix struct {
	network
	*Datapath
	members   []member // the node is the last one
	protocols []service.Protocol
	services  map[netip.AddrPort]netip.AddrPort // backends by frontend

	port int // of the last call

	mutex  sync.Mutex
	denied map[call]bool
	events int // since the last pause
}

// member is a pod or the node.
type member struct {
	ns        *netns.Namespace
	addresses [2]netip.Addr
	listening []server
}

type server struct {
	fd       int
	protocol service.Protocol
}

// call is the first packet of a connection.
type call struct {
	from, to netip.AddrPort
	protocol service.Protocol
}

// outgoing is a call and what became of it.
type outgoing struct {
	call
	fd      int
	backend netip.AddrPort
	member  int
}

var matrixPorts = []uint16{80, 8080}

func newMatrix(t *testing.T, name string) *matrix {
	mode := usable(t, name)
	n := newNetwork(t)
	n.uplink(t)
	if mode.Traits().Needs == podlink.NeedsOpenVSwitch {
		n.startOpenVSwitch(t, mode)
	}
	on := n.subnet(t, mode, gateway4+"/24", gateway6+"/64")
	d := openSized(t, Options{Root: testkit.BPFFS(t) + "/root", Sizes: objects.Sizes{Services: 128, Backends: 256, Connections: 1 << 16, Endpoints: 64}})
	m := &matrix{network: n, Datapath: d, services: map[netip.AddrPort]netip.AddrPort{}, denied: map[call]bool{}}
	m.protocols = []service.Protocol{service.TCP, service.UDP}
	if hasSCTP() {
		m.protocols = append(m.protocols, service.SCTP)
	}
	for i := range 9 {
		m.addPod(t, mode, on, i)
	}
	m.members = append(m.members, member{ns: n.host, addresses: [2]netip.Addr{netip.MustParseAddr(gateway4), netip.MustParseAddr(gateway6)}})
	for i := range m.members {
		m.listen(t, &m.members[i])
	}
	m.addServices(t)
	m.watch(t)
	testkit.Eventually(t, 60*time.Second, func() error { // neighbours are found
		for _, a := range m.callAll(t) {
			if a.fd != answered {
				return fmt.Errorf("without policies: %s %s to %s: no answer", a.protocol, a.from, a.to)
			}
		}
		return nil
	})
	return m
}

// addPod makes pod i of namespace i/3, with labels and a port that differ among the pods of a namespace.
func (m *matrix) addPod(t *testing.T, mode podlink.Mode, on podlink.Network, i int) {
	t.Helper()
	ns := testkit.Namespace(t, fmt.Sprintf("p%d", i))
	addresses := [2]netip.Addr{netip.MustParseAddr(fmt.Sprintf("192.168.10.%d", 20+i)), netip.MustParseAddr(fmt.Sprintf("fd00:10::%d", 20+i))}
	pod := podlink.Pod{Namespace: ns, IfName: "eth0", HostIfName: fmt.Sprintf("v%d", i), Addresses: addresses[:]}
	must(mode.Create(on, pod))(t)
	spec := EndpointSpec{Namespace: ns, IfName: "eth0", Host: m.host, Segment: m.segment, Pod: &policy.Pod{
		Namespace: fmt.Sprintf("n%d", i/3), Name: fmt.Sprintf("p%d", i),
		Labels: map[string]string{"app": string(rune('a' + i%3)), "tier": string(rune('x' + i%2))},
		Ports:  []policy.NamedPort{{Name: "web", Protocol: service.TCP, Port: matrixPorts[i%2]}},
	}}
	must2(m.Endpoints().Put(t.Context(), spec))(t)
	m.members = append(m.members, member{ns: ns, addresses: addresses})
}

// listen opens sockets for both families on all ports.
func (m *matrix) listen(t *testing.T, on *member) {
	t.Helper()
	err := on.ns.Do(func() error {
		for _, p := range m.protocols {
			for _, port := range matrixPorts {
				fd, err := openSocket(unix.AF_INET6, p)
				if err != nil {
					return err
				}
				on.listening = append(on.listening, server{fd, p})
				err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0),
					unix.Bind(fd, &unix.SockaddrInet6{Port: int(port)}))
				if err == nil && p != service.UDP {
					err = unix.Listen(fd, 1024)
				}
				if err != nil {
					return err
				}
			}
		}
		return nil
	})
	t.Cleanup(func() {
		for _, s := range on.listening {
			_ = unix.Close(s.fd)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

func openSocket(family int, p service.Protocol) (int, error) {
	kind := unix.SOCK_STREAM
	if p == service.UDP {
		kind = unix.SOCK_DGRAM
	}
	return unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(p))
}

// addServices gives each pod a service of its own, for TCP and UDP.
func (m *matrix) addServices(t *testing.T) {
	t.Helper()
	var all []service.Service
	for i, p := range m.members[:9] {
		for family, format := range []string{"10.96.0.%d", "fd00:96::%d"} {
			frontend := netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf(format, 20+i)), 5000)
			backend := netip.AddrPortFrom(p.addresses[family], matrixPorts[i%2])
			m.services[frontend] = backend
			all = append(all, service.Service{Frontend: frontend, Backends: service.Backends(backend)})
		}
	}
	must(m.Services().Apply(t.Context(), service.CLI, all))(t)
}

// watch notes what the programs deny.
func (m *matrix) watch(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := m.Policies().Watch(ctx, func(e policies.Denied) error {
			m.mutex.Lock()
			defer m.mutex.Unlock()
			m.denied[call{e.Source, e.Destination, e.Protocol}] = true
			m.events++
			return nil
		}, func(n uint64) error {
			return fmt.Errorf("%d events were left out: lower the number of calls at once", n)
		}); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	testkit.Eventually(t, 10*time.Second, func() error {
		if !m.watched() {
			return errors.New("nobody watches")
		}
		return nil
	})
}

// watched reports whether the programs tell of what they deny.
func (m *matrix) watched() bool {
	var row filterRow
	zero := uint32(0)
	return m.objects.Filter.Map.Lookup(&zero, &row) == nil && row.Watched != 0
}

// filterRow is a row of the map filter as far as the test needs it.
type filterRow struct {
	Words                   [1 << 14]uint64
	Rows, Policies, Watched uint64
	_                       [5 + 64]uint64
}

// try applies policies, makes all calls, and compares.
func (m *matrix) try(t *testing.T, name string, all []policy.Policy) {
	t.Helper()
	if _, err := m.Policies().Apply(t.Context(), service.CLI, policies.Set{Snapshot: policy.Snapshot{
		Policies: all, Namespaces: []policy.Namespace{{Name: "n1", Labels: map[string]string{"team": "one"}}},
	}}); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	s := must(m.Policies().Snapshot())(t)
	m.pace()
	wrong, before := 0, counts(t, m.Datapath)
	for _, a := range m.callAll(t) {
		f := policy.Flow{Source: a.from.Addr(), Destination: a.backend.Addr(), Protocol: a.protocol, Port: a.backend.Port()}
		egress, ingress := must2(policy.Explain(s, f))(t)
		if want := egress.Allow && ingress.Allow; want != (a.fd == answered) {
			t.Errorf("%s: %s %s to %s (%s): %s; egress %s, ingress %s", name, a.protocol, a.from, a.to, a.backend,
				map[int]string{answered: "answered", unanswered: "neither answered nor denied", refusedByPolicy: "denied"}[a.fd], egress.Origin, ingress.Origin)
			t.Logf("counted %v", delta(t, m.Datapath, before))
			if wrong++; wrong > 10 {
				t.Fatal("and more")
			}
		}
	}
}

// pace begins another set. Programs tell of 2,048 events in 1.07 seconds (EVENTS_A_WINDOW), and a set has up to 1,400.
func (m *matrix) pace() {
	m.mutex.Lock()
	events := m.events
	m.mutex.Unlock()
	if events > 600 {
		time.Sleep(1100 * time.Millisecond)
	}
	m.mutex.Lock()
	defer m.mutex.Unlock()
	clear(m.denied)
	if events > 600 {
		m.events = 0
	}
}

// What became of an outgoing, in place of its socket.
const (
	answered        = -1
	refusedByPolicy = -2
	unanswered      = -3
)
