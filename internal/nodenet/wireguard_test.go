// SPDX-License-Identifier: Apache-2.0

package nodenet

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath/policies"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/policy/manifest"
	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// setKey makes a new key for a node.
func (n *node) setKey(t testing.TB) {
	t.Helper()
	key := testkit.Must(LoadKey(t.TempDir()))(t)
	n.network.Encryption, n.Key = Encryption{Key: key, Port: WireGuardPort}, key.Public()
}

// secret is in what pods send.
var secret = bytes.Repeat([]byte("plain text! "), 8)

// wiretap counts packets of WireGuard on a node's uplink, and finds packets between pods in plain text.
type wiretap struct {
	mu     sync.Mutex
	sealed int
	plain  []string
}

func (c *cluster) wiretap(n *node) *wiretap {
	c.t.Helper()
	w := &wiretap{}
	uplink := testkit.Must(rtnl.In(n.ns).Device("eth0"))(c.t)
	var ranges []netip.Prefix
	for _, n := range c.nodes {
		ranges = append(ranges, n.Ranges...)
	}
	testkit.WatchPackets(c.t, n.ns, uplink.Index, func(packet []byte) {
		w.mu.Lock()
		defer w.mu.Unlock()
		from, to, port := ends(packet)
		if port == WireGuardPort {
			w.sealed++
		}
		in := func(a netip.Addr) bool {
			return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
		}
		if in(from) || in(to) || bytes.Contains(packet, secret[:12]) {
			w.plain = append(w.plain, from.String()+" to "+to.String())
		}
	})
	return w
}

func (w *wiretap) check(t testing.TB, what string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	testkit.Check(t, w.sealed > 0 && w.plain == nil, "%s: %d packets of WireGuard, and in plain text %v", what, w.sealed,
		w.plain)
}

// ends returns the addresses of an Ethernet frame with IP, and its destination port if it is UDP.
func ends(frame []byte) (from, to netip.Addr, port uint16) {
	size, proto, l4 := 0, byte(0), 0
	switch kind := binary.BigEndian.Uint16(frame[12:]); {
	case kind == unix.ETH_P_IP && len(frame) >= 42:
		size, proto, l4 = 4, frame[23], 14+int(frame[14]&15)*4
		from, to = netip.AddrFrom4([4]byte(frame[26:])), netip.AddrFrom4([4]byte(frame[30:]))
	case kind == unix.ETH_P_IPV6 && len(frame) >= 62:
		size, proto, l4 = 16, frame[20], 54
		from, to = netip.AddrFrom16([16]byte(frame[22:])), netip.AddrFrom16([16]byte(frame[38:]))
	}
	if size > 0 && proto == unix.IPPROTO_UDP && len(frame) >= l4+4 {
		port = binary.BigEndian.Uint16(frame[l4+2:])
	}
	return from, to, port
}

// TestWireGuard joins nodes by WireGuard, over IPv4 on a segment and over IPv6 through a router. Pods reach each other
// in both families with the largest packets, and nothing between pods is on the wire in plain text. Applied again,
// nothing changes.
func TestWireGuard(t *testing.T) {
	t.Parallel()
	for name, k := range map[string]kind{
		"over IPv4": {nodes: 3, routing: WireGuard}, "over IPv6": {nodes: 2, routing: WireGuard, routed: true, outer6: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, k)
			var taps []*wiretap
			for _, n := range c.nodes {
				taps = append(taps, c.wiretap(n))
			}
			c.apply()
			c.reach("joined")
			for i, n := range c.nodes {
				taps[i].check(t, n.Name)
				c.state(n) // waits for addresses and routes that come by themselves
				stop := c.changes(n)
				c.must(n.network.Apply(n.Node, c.others(n)))
				changes := stop()
				testkit.Check(t, changes == nil, "%s: applied again, %s", n.Name, changes)
				ways, refused, err := n.network.Inspect(n.Node, c.others(n))
				testkit.Check(t, err == nil && refused == nil && len(ways) == 2*(k.nodes-1), "%v, %v, %v", ways, refused, err)
				for _, w := range ways {
					testkit.Check(t, w.There, "%v", w)
				}
				late := testkit.Must(n.network.WithoutHandshake())(t)
				testkit.Check(t, late == nil, "without a handshake: %v", late)
			}
		})
	}
}

// TestWireGuardPolicies has policies deny and allow a pod of another node by its address, and a client outside reach a
// pod of another node at a node port: the packets come by a device without programs.
func TestWireGuardPolicies(t *testing.T) {
	o := newOverlay(t, way{routing: WireGuard})
	ways := testkit.Must(o.datapaths[0].Remotes().List())(t)
	testkit.Check(t, len(ways) == 0, "programs have ways past WireGuard: %v", ways)
	taps := []*wiretap{o.wiretap(o.nodes[0]), o.wiretap(o.nodes[1])}
	o.reach("without a policy")
	from, to := o.nodes[0], o.nodes[1]
	apply := func(cidr netip.Prefix) {
		set := testkit.Must(manifest.Read(strings.NewReader("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, " +
			"metadata: {name: some}, spec: {podSelector: {}, policyTypes: [Ingress], ingress: [{from: [{ipBlock: {cidr: '" +
			cidr.String() + "'}}]}]}}")))(t)
		testkit.Must(o.datapaths[1].Policies().Apply(t.Context(), service.CLI, policies.Set{Snapshot: set.Snapshot}))(t)
	}
	for f, addr := range to.pods {
		server := testkit.Echo(t, to.pod, "udp", netip.AddrPortFrom(addr, 0).String()).String()
		apply(single(from.pods[f].Next()))
		_, err := testkit.RoundTrip(t, from.pod, "udp", server, []byte("x"))
		testkit.Check(t, errors.Is(err, os.ErrDeadlineExceeded), "a policy that allows another address: %v", err)
		apply(single(from.pods[f]))
		_, err = o.roundTrip(from.pod, "udp", server, []byte("x"))
		testkit.Check(t, err == nil, "a policy that allows the address: %v", err)
	}
	testkit.Must(o.datapaths[1].Policies().Apply(t.Context(), service.CLI, policies.Set{}))(t)

	client := o.client(t, "client")
	for f, addr := range to.pods {
		s := service.Service{Frontend: netip.AddrPortFrom(from.Addresses[f], 30080), Protocol: service.TCP, External: true}
		s.Backends = []service.Backend{{Addr: testkit.Echo(t, to.pod, "tcp", netip.AddrPortFrom(addr, 0).String())}}
		testkit.Must(o.datapaths[0].Services().Apply(t.Context(), service.CLI, []service.Service{s}))(t)
		var seen netip.AddrPort
		testkit.Eventually(t, time.Minute, func() (err error) {
			seen, err = testkit.RoundTrip(t, client, "tcp", s.Frontend.String(), make([]byte, 1<<16))
			return err
		})
		testkit.Check(t, seen.Addr() == from.Ranges[f].Addr(), "the pod sees the client outside as %v", seen)
	}
	for i, n := range o.nodes {
		taps[i].check(t, n.Name)
	}
}

// TestWireGuardFailsClosed takes away the key, the device or the peer of a node, lets another node claim its key, and
// gives it a new one. Pods reach it by WireGuard, or not at all, though a default route leads there.
func TestWireGuardFailsClosed(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kind{nodes: 3, routing: WireGuard})
	a, b, thief := c.nodes[0], c.nodes[1], c.nodes[2]
	c.must(rtnl.In(a.ns).AddDefaultRoutes("eth0", b.Addresses))
	taps := []*wiretap{c.wiretap(a), c.wiretap(b)}
	c.apply()
	c.reach("joined")
	server := testkit.Echo(t, b.pod, "tcp", netip.AddrPortFrom(b.pods[0], 0).String()).String()
	refused := func(what string) {
		t.Helper()
		_, err := testkit.Dial(a.ns, "tcp", server)
		testkit.Check(t, errors.Is(err, unix.EHOSTUNREACH), "%s: the node: %v", what, err)
		_, err = testkit.Dial(a.pod, "tcp", server) // the kernel limits the rate of its answers to pods
		testkit.Check(t, err != nil, "%s: the pod has connected", what)
	}
	left := func(what, text string) {
		t.Helper()
		err := a.network.Apply(a.Node, c.others(a))
		testkit.Check(t, err != nil && strings.HasPrefix(err.Error(), text), "%s: %v", what, err)
	}
	c.ip(a.ns, "link del "+WireGuardName)
	refused("no device")
	c.must(a.network.Apply(a.Node, c.others(a)))
	c.reach("another device")

	key := b.Key
	b.Key = ""
	left("no key", "node node-2: its agent has not published a WireGuard key")
	refused("no key")
	b.Key = "secret"
	left("a damaged key", `node node-2: its WireGuard key "secret" is not 32 bytes in base64`)
	refused("a damaged key")
	b.Key, thief.Key = key, key
	b.Created, thief.Created = time.Unix(1, 0), time.Unix(2, 0)
	left("a stolen key", "node node-3: its WireGuard key is the key of node node-2")
	thief.Key += "\n" // the same key
	left("a stolen key", "node node-3: its WireGuard key is the key of node node-2")
	_, err := testkit.RoundTrip(t, a.pod, "tcp", server, secret)
	testkit.Check(t, err == nil, "the owner of the key: %v", err)

	thief.setKey(t)
	b.setKey(t)
	c.apply()
	c.reach("new keys")
	late := testkit.Must(a.network.WithoutHandshake())(t)
	testkit.Check(t, late == nil, "without a handshake: %v", late)
	addresses := thief.Addresses
	thief.Addresses, thief.Created = []netip.Addr{b.pods[0].Next()}, time.Time{}
	left("a claimed range", "node node-2: its range 10.1.2.0/24 contains the address")
	rest := netip.AddrPortFrom(b.pods[0].Next().Next(), 9).String()
	c.drops(a, "ip daddr @far4", testkit.Must(testkit.Dial(a.pod, "udp", rest))(t))
	thief.Addresses = addresses
	c.ip(b.ns, "link set "+WireGuardName+" down")
	thief.setKey(t) // it does not use this one
	thief.network.Encryption.Key = b.network.Encryption.Key
	c.must(a.network.Apply(a.Node, c.others(a)))
	late = testkit.Must(a.network.WithoutHandshake())(t)
	testkit.Check(t, late == nil, "without a handshake at once: %v", late)
	for key, k := range *a.network.known.Load() {
		(*a.network.known.Load())[key] = known{k.node, k.since.Add(-2 * LateHandshake)}
	}
	late = testkit.Must(a.network.WithoutHandshake())(t)
	testkit.Check(t, slices.Equal(late, []string{"node-3"}), "without a handshake: %v", late)
	for i, n := range c.nodes[:2] {
		taps[i].check(t, n.Name)
	}
}

// TestWireGuardSwitched joins nodes with WireGuard that were joined without, and the reverse. A node with WireGuard
// takes no packet in plain text. After Remove nothing is left.
func TestWireGuardSwitched(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kind{nodes: 2, routing: WireGuard})
	a, b := c.nodes[0], c.nodes[1]
	for _, r := range []Routing{VXLAN, WireGuard, Native, WireGuard} {
		a.network.Routing, b.network.Routing = r, r
		c.apply()
		c.reach(string(r))
	}
	b.network.Routing = Native
	c.must(b.network.Apply(b.Node, c.others(b)))
	server := testkit.Echo(t, a.pod, "udp", netip.AddrPortFrom(a.pods[0], 0).String()).String()
	conn := testkit.Must(testkit.Dial(b.pod, "udp", server))(t)
	defer conn.Close()
	testkit.Eventually(t, time.Minute, func() error {
		_, err := conn.Write(secret)
		return errors.Join(err, c.dropped(a, "saddr @far4"))
	})
	b.network.Routing = WireGuard
	c.apply()
	conn, err := netns.Get(a.ns, func() (net.Conn, error) { // with a source that is not in the node's range
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: a.Addresses[0].AsSlice()}}
		return d.Dial("tcp", testkit.Echo(t, b.pod, "tcp", netip.AddrPortFrom(b.pods[0], 0).String()).String())
	})
	c.must(err)
	defer conn.Close()
	line, err := bufio.NewReader(conn).ReadString('\n')
	testkit.Check(t, err == nil && strings.HasPrefix(line, a.Ranges[0].Addr().String()+":"), "seen as %s, %v", line, err)
	for _, n := range c.nodes {
		c.must(n.network.Remove())
		testkit.Check(t, c.owned(n) == "", "after Remove there is %s", c.owned(n))
	}
}

// dropped returns an error while no rule with this text has dropped a packet.
func (c *cluster) dropped(n *node, text string) error {
	rules := c.run(n.ns, "nft list table inet mustang-agent")
	for line := range strings.Lines(rules) {
		if strings.Contains(line, text) && !strings.Contains(line, "packets 0") {
			return nil
		}
	}
	return errors.New(rules)
}

// TestWireGuardForged has a machine on the segment send as a pod of a node, by that node, to a pod of another one.
func TestWireGuardForged(t *testing.T) {
	t.Parallel()
	c := newCluster(t, kind{nodes: 2, routing: WireGuard})
	a, b := c.nodes[0], c.nodes[1]
	c.apply()
	c.reach("joined")
	stranger := c.client(t, "stranger")
	var forged atomic.Int64
	device := testkit.Must(rtnl.In(b.pod).Devices())(t)
	for _, d := range device {
		testkit.WatchPackets(t, b.pod, d.Index, func(packet []byte) {
			if bytes.Contains(packet, []byte("forged")) {
				forged.Add(1)
			}
		})
	}
	for f, from := range a.pods {
		c.ip(stranger, fmt.Sprintf("addr add %v dev lo", single(from)))
		c.ip(stranger, fmt.Sprintf("route add %v via %v", b.Ranges[f], a.Addresses[f]))
		conn := testkit.Must(netns.Get(stranger, func() (net.Conn, error) {
			d := net.Dialer{LocalAddr: &net.UDPAddr{IP: from.AsSlice()}}
			return d.Dial("udp", netip.AddrPortFrom(b.pods[f], 9).String())
		}))(t)
		defer conn.Close()
		testkit.Eventually(t, time.Minute, func() error {
			_, err := conn.Write([]byte("forged"))
			return errors.Join(err, c.dropped(a, []string{"ip saddr", "ip6 saddr"}[f]+" "+a.Ranges[f].String()+" fib"))
		})
	}
	c.reach("forged packets dropped")
	testkit.Check(t, forged.Load() == 0, "the pod has got %d forged packets", forged.Load())
}

// client attaches a machine to the segment.
func (c *cluster) client(t *testing.T, name string) *netns.Namespace {
	t.Helper()
	client := testkit.Namespace(t, name)
	c.must(rtnl.AddVeth(rtnl.VethEnd{Namespace: client, Name: "eth0"}, rtnl.VethEnd{Namespace: c.wire, Name: "client"},
		podlink.DefaultMTU))
	c.ip(c.wire, "link set client master br0 up")
	addresses := []netip.Prefix{prefix("192.0.2.%d/24", 9), prefix("2001:db8::%d/64", 9)}
	c.must(rtnl.In(client).Configure("eth0", rtnl.DeviceConfig{Addresses: addresses, Up: true}))
	return client
}

// owned returns what Apply has made on a node.
func (c *cluster) owned(n *node) string {
	c.t.Helper()
	h := testkit.Must(n.network.open())(c.t)
	defer h.Close()
	routes := testkit.Must(h.routes())(c.t)
	var out strings.Builder
	for r := range routes {
		fmt.Fprintln(&out, r)
	}
	for _, name := range []string{WireGuardName, DeviceName} {
		if has, _ := rtnl.In(n.ns).HasDevice(name); has {
			fmt.Fprintln(&out, name)
		}
	}
	return out.String()
}

// TestKey makes a key once, prints it nowhere, and refuses a file that others can read or that has no key.
func TestKey(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, KeyFile)
	key := testkit.Must(LoadKey(dir))(t)
	again := testkit.Must(LoadKey(dir))(t)
	info := testkit.Must(os.Stat(path))(t)
	text := string(testkit.Must(os.ReadFile(path))(t))
	testkit.Check(t, again.Public() == key.Public() && info.Mode() == 0o600, "another key, or mode %v", info.Mode())
	options := Options{Encryption: Encryption{Key: key}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d"} {
		printed := fmt.Sprintf(verb+verb, key, options)
		testkit.Check(t, strings.HasPrefix(printed, "(private)") && !strings.Contains(printed[9:], "wgtypes") &&
			!strings.Contains(printed, fmt.Sprintf(verb, key.key)), "%s: %s", verb, printed)
	}
	files := testkit.Must(os.ReadDir(dir))(t)
	testkit.Check(t, len(files) == 1, "%v", files)
	testkit.Succeed(t, os.Chmod(path, 0o644))
	_, err := LoadKey(dir)
	testkit.Fails(t, err, path, "its owner alone")
	testkit.Succeed(t, os.Chmod(path, 0o600))
	testkit.Succeed(t, os.WriteFile(path, []byte(text[:20]), 0o600))
	_, err = LoadKey(dir)
	testkit.Fails(t, err, path, "is not a WireGuard key")
	testkit.Check(t, !strings.Contains(err.Error(), text[:20]), "the error has the key")
	unclamped := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{0xff}, 32)) // the kernel would change it
	testkit.Succeed(t, os.WriteFile(path, []byte(unclamped), 0o600))
	_, err = LoadKey(dir)
	testkit.Fails(t, err, path, "is not a WireGuard key")
}
