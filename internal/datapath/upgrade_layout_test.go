// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"mustang/internal/datapath/guard"
	"mustang/internal/datapath/objects"
	"mustang/internal/datapath/rows"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// upgradeVariable makes TestUpgradeLayout upgrade the root that it names, until it is killed.
const upgradeVariable = "MUSTANG_DATAPATH_UPGRADE"

// Rows of layout 6 that differ from those of today.
type (
	oldService struct {
		ID, Revision, Count, Flags, Total, Local, AffinityTimeout uint32

		Owner    uint8
		Reserved [11]uint8
	}
	oldConnection struct {
		To                                               objects.Tuple
		AddrDiff, PortDiff, Service, Revision, FlagsWord uint32
		Path                                             [20]byte
	}
)

// TestUpgradeLayout upgrades a datapath of layout 6 with an open connection, after attempts that were killed, with a link of
// each family. The connection's backend is none of the service's any more.
func TestUpgradeLayout(t *testing.T) {
	if root := os.Getenv(upgradeVariable); root != "" {
		_, _ = Upgrade(t.Context(), Options{Root: root})
		return
	}
	for _, link := range []struct {
		name string
		make func(testing.TB) network
	}{
		{"veth", routed}, {"bridge", bridged}, {"macvlan", slaves},
		{"ipvlan-l2", plugged("ipvlan-l2")}, {"netkit", plugged("netkit")}, {"tun", plugged("tun")},
	} {
		t.Run(link.name, func(t *testing.T) { testUpgradeLayout(t, link.make(t), openTest(t)) })
	}
}

func testUpgradeLayout(t *testing.T, n network, d *Datapath) {
	n.attachBoth(t, d)
	backend, other := testkit.Echo(t, n.pods[0], "tcp", podA4+":8080"), testkit.Echo(t, n.pods[0], "tcp", podA4+":8081")
	testkit.Echo(t, n.pods[0], "udp", podA4+":8081")
	want := service.Service{Frontend: netip.MustParseAddrPort(service4 + ":80"), Protocol: service.Any, Backends: service.Backends(backend)}
	if _, _, err := d.Services().Put(t.Context(), service.CLI, want); err != nil {
		t.Fatal(err)
	}
	conn, err := testkit.Dial(n.pods[1], "tcp", service4+":80")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	exchange(t, conn)
	want.Backends = service.Backends(other)
	if _, _, err := d.Services().Put(t.Context(), service.CLI, want); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(testkit.BPFFS(t), "old")
	makeLayout6(t, n, d, root)
	if err := objects.Remove(t.Context(), d.objects.Root()); err != nil {
		t.Fatal(err)
	}
	var layout *objects.LayoutError
	if _, err := Open(t.Context(), Options{Root: root}); !errors.As(err, &layout) || !strings.Contains(err.Error(), "mustang datapath upgrade") {
		t.Fatalf("Open: %v", err)
	}
	for _, ms := range []int{15, 30, 50, 80, 120} {
		killUpgrade(t, root, time.Duration(ms)*time.Millisecond)
	}
	if _, err := Upgrade(t.Context(), Options{Root: root}); err != nil {
		t.Fatal(err)
	}
	exchange(t, conn)
	for _, network := range []string{"tcp", "udp"} {
		if _, err := testkit.RoundTrip(t, n.pods[1], network, service4+":80", []byte("new")); err != nil {
			t.Errorf("new %s connection: %v", network, err)
		}
	}
	up := checkUpgraded(t, root, want, 4)
	for i := range n.pods {
		at, err := findTarget(n.attachment(i))
		if err != nil {
			t.Fatal(err)
		}
		if missing, err := guard.Missing(up.objects, at.Device); err != nil || len(missing) > 0 {
			t.Errorf("pod %d: %v, %v", i, missing, err)
		}
		at.Close()
	}
}

// killUpgrade kills an upgrade after a while, if it is not done before.
func killUpgrade(t *testing.T, root string, after time.Duration) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestUpgradeLayout$")
	cmd.Env = append(os.Environ(), upgradeVariable+"="+root)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(after)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// checkUpgraded checks what there is after an upgrade, and returns the datapath.
func checkUpgraded(t *testing.T, root string, want service.Service, attached int) *Datapath {
	t.Helper()
	d, err := Open(t.Context(), Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(d.Close(), objects.Remove(t.Context(), root)) })
	all, err := d.Services().List(t.Context())
	if err != nil || len(all) != 1 || all[0].Protocol != want.Protocol || len(all[0].Backends) != 1 || all[0].Backends[0].Addr != want.Backends[0].Addr {
		t.Errorf("services %v, %v", all, err)
	}
	endpoints, err := d.Endpoints().List(t.Context())
	if err != nil || len(endpoints) != 4 {
		t.Errorf("endpoints %v, %v", endpoints, err)
	}
	if counts(t, d)["sock_destroy"] != 6 {
		t.Error("counters are lost")
	}
	if entries, err := os.ReadDir(root); err != nil || len(entries) != 1 {
		t.Errorf("%q holds %v, %v", root, entries, err)
	}
	links, err := d.objects.Links()
	// Only devices of the host tell which namespace is the host: of pods, of uplinks, parents.
	known := slices.ContainsFunc(links, func(k objects.Link) bool { return k.Hook.Point != objects.AttachPod })
	links = slices.DeleteFunc(links, guard.IsOuter)
	if err != nil || len(links) != attached {
		t.Errorf("links %v, %v", links, err)
	}
	for _, addr := range []string{gateway4, gateway6} {
		if _, ok, err := d.objects.NodeAddresses.Get(rows.EncodeAddr(netip.MustParseAddr(addr))); err != nil || ok != known {
			t.Errorf("address %s of the node: %v, want %v; %v", addr, ok, known, err)
		}
	}
	if change, err := Upgrade(t.Context(), Options{Root: root}); err != nil || change != Unchanged {
		t.Errorf("second upgrade: %v, %v", change, err)
	}
	if err := os.Mkdir(filepath.Join(root, "v99"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Upgrade(t.Context(), Options{Root: root}); err == nil || !strings.Contains(err.Error(), "older") {
		t.Errorf("a newer layout: %v", err)
	}
	if err := os.Remove(filepath.Join(root, "v99")); err != nil {
		t.Fatal(err)
	}
	return d
}

// exchange sends on a connection to an echo server.
func exchange(t *testing.T, conn net.Conn) {
	t.Helper()
	buffer := make([]byte, 128)
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	for got := ""; !strings.HasSuffix(got, "ping"); {
		count, err := conn.Read(buffer)
		if err != nil {
			t.Fatalf("the connection broke: %v", err)
		}
		got += string(buffer[:count])
	}
}

// makeLayout6 pins maps of layout 6 with the rows of d, and on the pods' devices programs that let all packets pass.
func makeLayout6(t *testing.T, n network, d *Datapath, root string) {
	t.Helper()
	for _, dir := range []string{"maps", "progs", "links"} {
		if err := os.MkdirAll(filepath.Join(root, "v6", dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	pin := func(name string, like *ebpf.Map, change func(*ebpf.MapSpec)) *ebpf.Map {
		spec := &ebpf.MapSpec{Name: name, Type: like.Type(), KeySize: like.KeySize(), ValueSize: like.ValueSize(), MaxEntries: like.MaxEntries(), Flags: like.Flags()}
		change(spec)
		m, err := ebpf.NewMap(spec)
		if err == nil {
			err = m.Pin(filepath.Join(root, "v6", "maps", name))
		}
		if err != nil {
			t.Fatalf("map %s: %v", name, err)
		}
		t.Cleanup(func() { _ = m.Close() })
		return m
	}
	same := func(*ebpf.MapSpec) {}
	o := d.objects
	for _, name := range []string{"namespaces", "sockets", "sk_revnat"} { // which have not changed
		pinAgain(t, pins(d, "maps", name), filepath.Join(root, "v6", "maps", name))
	}
	copyRows(t, o.Backends, pin("backends", o.Backends.Map, same))
	copyRows(t, o.Endpoints, pin("endpoints", o.Endpoints.Map, same))
	state, err := o.State.Map.LookupBytes(uint32(0))
	put(t, pin("state", o.State.Map, func(s *ebpf.MapSpec) { s.ValueSize = 16 }), uint32(0), must(t, state, err)[:16])
	metrics, _, err := o.Metrics.Get(0)
	metrics[0].Count[20] = 6 // of which no program counts any here
	put(t, pin("metrics", o.Metrics.Map, same), uint32(0), must(t, metrics, err))
	words, err := o.Filter.Map.LookupBytes(uint32(0))
	put(t, pin("filter", o.Filter.Map, func(s *ebpf.MapSpec) { s.ValueSize = 1<<17 + 64 }), uint32(0), must(t, words, err)[:1<<17+64])
	services := pin("services", o.Services.Map, func(s *ebpf.MapSpec) { s.ValueSize = 40 })
	for row, err := range o.Services.All() {
		must(t, row, err)
		for _, proto := range []uint8{6, 17} {
			row.Key.Proto = proto
			v := row.Value
			put(t, services, row.Key, oldService{ID: v.Id, Revision: v.Revision, Count: uint32(v.Count), Total: uint32(v.Total), Owner: v.Owner})
		}
	}
	connections := pin("connections", o.Connections.Map, func(s *ebpf.MapSpec) { s.Type, s.ValueSize, s.Flags = ebpf.LRUHash, 80, 0 })
	for row, err := range o.Connections.All() {
		must(t, row, err)
		// Revision 1 is the one that had the connection's backend.
		put(t, connections, row.Key, oldConnection{To: row.Value.To, AddrDiff: row.Value.AddrDiff, PortDiff: row.Value.PortDiff,
			Service: 1, Revision: 1, FlagsWord: row.Value.Flags})
	}
	attachOld(t, n, d, root)
}

// pinAgain pins a map in another place too, if there is one.
func pinAgain(t *testing.T, from, to string) {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(from, nil)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	if err == nil {
		var again *ebpf.Map
		if again, err = m.Clone(); err == nil { // which Pin does not move
			err = errors.Join(again.Pin(to), again.Close())
		}
		err = errors.Join(err, m.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func put[K, V any](t *testing.T, m *ebpf.Map, key K, value V) {
	t.Helper()
	if err := m.Put(key, value); err != nil {
		t.Fatalf("%s: %v", m, err)
	}
}

// must returns a row that was read.
func must[V any](t *testing.T, value V, err error) V {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func copyRows[K, V any](t *testing.T, from *objects.Table[K, V], to *ebpf.Map) {
	t.Helper()
	for row, err := range from.All() {
		put(t, to, must(t, row, err).Key, row.Value)
	}
}

// attachOld attaches programs that let all packets pass where d has its own, and moves the links of control groups: their
// programs do what those of layout 6 did.
func attachOld(t *testing.T, n network, d *Datapath, root string) {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	links, err := d.objects.Links()
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range links {
		if guard.IsOuter(k) {
			continue // layout 6 had none
		}
		if k.Hook.Point == objects.AttachCgroup {
			l, err := link.LoadPinnedLink(pins(d, "links", k.String()), nil)
			if err == nil {
				err = errors.Join(l.Pin(filepath.Join(root, "v6", "links", k.String())), l.Close())
			}
			if err != nil {
				t.Fatal(err)
			}
			continue
		}
		ns, place := n.host, k
		if k.Hook.Point == objects.AttachPod {
			ns = n.pods[k.ID-1]
		}
		if k.Hook.InPeer() {
			place.Hook.Program = "to_pod" // which is at the device itself
		}
		on, err := d.objects.Attached(place)
		if err == nil {
			err = ns.Do(func() error {
				l, err := attachAt(k.Hook, p, int(on))
				if err != nil {
					return err
				}
				return errors.Join(l.Pin(filepath.Join(root, "v6", "links", k.String())), l.Close())
			})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// attachAt attaches a program to a device, behind others.
func attachAt(h objects.Hook, p *ebpf.Program, device int) (link.Link, error) {
	if h.Point == objects.AttachNetkit {
		return link.AttachNetkit(link.NetkitOptions{Interface: device, Program: p, Attach: h.AttachType()})
	}
	return link.AttachTCX(link.TCXOptions{Interface: device, Program: p, Attach: h.AttachType()})
}
