// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"mustang/internal/datapath/objects"
	"mustang/internal/policy"
	"mustang/internal/rtnl"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// TestKeeps puts an endpoint once more, after root of the pod has changed its device: it keeps each part that is not
// given. An allowed address is not an endpoint.
func TestKeeps(t *testing.T) {
	onEachLink(t, func(t *testing.T, n network, d *Datapath) {
		allowed := []netip.Prefix{netip.PrefixFrom(vip4, 32), netip.MustParsePrefix("fd00:200::/64")}
		n.run(t, "-n PODA addr add "+vip4.String()+"/32 dev eth0")
		pod := policy.Pod{Namespace: "shop", Name: "web", Labels: map[string]string{"app": "web"}}
		first := n.attachment(0)
		first.Allowed, first.Pod, first.DHCP = allowed, &pod, true
		must2(d.Endpoints().Put(t.Context(), first))(t)
		was, guard := wantEndpoints(t, d, podA4, podA6), onlySender(t, d)
		n.run(t, "-n PODA addr add 8.8.8.8/32 dev eth0")
		n.run(t, "-n PODA addr add fe80::1/64 dev eth0 nodad")
		dev := must(rtnl.In(n.pods[0]).Device("eth0"))(t)
		if len(dev.MAC) > 0 && dev.Kind != "ipvlan" && dev.Kind != "netkit" && dev.Kind != "tun" {
			n.run(t, "-n PODA link set eth0 address 02:00:00:00:00:66")
		}
		put := func(given Given, edit func(*EndpointSpec), want Change) {
			t.Helper()
			spec := n.attachment(0)
			spec.Given, spec.Pod = &given, &policy.Pod{Namespace: "default"}
			edit(&spec)
			wantPut(t, d, spec, want)
		}
		put(Given{}, func(*EndpointSpec) {}, Unchanged)
		if now := wantEndpoints(t, d, podA4, podA6); !reflect.DeepEqual(now, was) || onlySender(t, d) != guard {
			row := onlySender(t, d)
			t.Errorf("endpoints %+v, want %+v; MAC %x, link-local %x, %d prefixes, flags %d", now, was, row.Mac,
				row.LinkLocal.Bytes, row.Prefixes, row.Flags)
		}
		labels := map[string]string{"app": "db"}
		put(Given{Labels: true}, func(s *EndpointSpec) { s.Pod.Labels = labels }, Updated)
		s, err := d.Policies().Snapshot()
		// the same pods
		s.Pods = slices.DeleteFunc(s.Pods, func(p policy.Pod) bool { return p.Addresses[0].IsLinkLocalUnicast() })
		testkit.Require(t, err == nil && len(s.Pods) == 1, "%v, %v", s.Pods, err)
		p := s.Pods[0]
		failIf(t, p.Namespace != "shop" || p.Name != "web" || !reflect.DeepEqual(p.Labels, labels), "policies know of %+v", p)
		put(Given{Guard: true}, func(s *EndpointSpec) { s.Unguarded = true }, Updated)
		put(Given{Allowed: true}, func(*EndpointSpec) {}, Updated)
		row := onlySender(t, d)
		failIf(t, row.Prefixes != 0 || row.Flags&objects.SenderUnguarded == 0, "%+v; want no prefixes, unguarded", row)
		put(Given{Addresses: true}, func(s *EndpointSpec) {
			s.Addresses = []netip.Addr{netip.MustParseAddr(podA4), netip.MustParseAddr("192.168.10.77")}
		}, Updated)
		wantEndpoints(t, d, podA4, "192.168.10.77")
	})
}

// onlySender returns the row of the only device in the source guard.
func onlySender(t *testing.T, d *Datapath) (sender objects.Sender) {
	t.Helper()
	for row, err := range d.objects.Senders.All() {
		succeed(t, err)
		if row.Key.Ifindex != 0 {
			sender = row.Value
		}
	}
	return sender
}

// openAgain opens the datapath once more, as another process would.
func openAgain(t *testing.T, d *Datapath) *Datapath {
	t.Helper()
	return openSized(t, Options{Root: d.objects.Root()})
}

// TestServicesWhileAttaching stops calls that attach or detach programs at their first one. Services and hosts change
// meanwhile, and lists are read.
func TestServicesWhileAttaching(t *testing.T) {
	n, d, cgroup := routed(t), openTest(t), testCgroup(t)
	n.wire(t)
	other := openAgain(t, d)
	uplink := must(FindUplink(n.host, "wire"))(t)
	for _, c := range []struct {
		name string
		call func() error
	}{
		{"put endpoint", func() error { _, _, err := d.Endpoints().Put(t.Context(), n.attachment(0)); return err }},
		{"delete endpoint", func() error { return d.Endpoints().DeleteDevice(t.Context(), n.attachment(0)) }},
		{"put uplink", func() error { _, err := d.Uplinks().Put(t.Context(), n.host, "wire"); return err }},
		{"delete uplink", func() error { return d.Uplinks().Delete(t.Context(), uplink) }},
		{"attach to cgroup", func() error { _, err := d.Sockets().Attach(t.Context(), cgroup); return err }},
		{"detach from cgroup", func() error { return d.Sockets().Detach(t.Context(), cgroup) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			stopped, resume, ended := make(chan struct{}, 1), make(chan struct{}), make(chan error, 1)
			d.objects.BeforeLink = func() {
				select {
				case stopped <- struct{}{}:
				default:
				}
				<-resume
			}
			go func() { ended <- c.call() }()
			select {
			case <-stopped:
			case err := <-ended:
				t.Fatalf("it attached and detached nothing: %v", err)
			}
			noError(t, changeServices(t, n, other))
			close(resume)
			noError(t, <-ended)
		})
	}
}

// changeServices fails if a lock is not free.
func changeServices(t *testing.T, n network, d *Datapath) error {
	ctx := t.Context()
	s := newService(service.TCP, "10.96.0.7:80", "192.168.10.10:8080")
	_, _, err := d.Services().Put(ctx, service.CLI, s)
	_, hostErr := d.Sockets().Put(ctx, service.CLI, n.host, HostScope)
	_, listErr := d.Uplinks().List(ctx)
	_, cgroupErr := d.Sockets().Cgroups(ctx)
	return errors.Join(err, hostErr, listErr, cgroupErr, d.Services().Delete(ctx, service.CLI, s.Key()),
		d.Sockets().Delete(ctx, service.CLI, cookieOf(t, n.host)))
}

// wantWhole fails the test unless the first pod is an endpoint with two programs and socket translation, or has
// nothing.
func wantWhole(t *testing.T, n network, d *Datapath, there bool) {
	t.Helper()
	var want []string
	if there {
		want = []string{podA4, podA6}
	}
	made := wantEndpoints(t, d, want...)
	wantLinks(t, d, len(want))
	if there && len(made) > 0 {
		wantLen(t, must(filepath.Glob(pins(d, "links", fmt.Sprintf("%d-host-*", made[0].ID))))(t), 2, "links")
		noError(t, d.Endpoints().Check(t.Context(), n.attachment(0)))
	}
	row, _ := must2(d.objects.Namespaces.Get(cookieOf(t, n.pods[0])))(t)
	equal(t, row.Flags != 0, there, "the network namespace has flags")
}

// TestPutAgainstDelete puts and deletes one endpoint from two handles at once.
func TestPutAgainstDelete(t *testing.T) {
	n, d := routed(t), openTest(t)
	other := openAgain(t, d)
	for range testkit.Repeats(20, 200) {
		var group errgroup.Group
		group.Go(func() error { _, _, err := d.Endpoints().Put(t.Context(), n.attachment(0)); return err })
		group.Go(func() error { _, _, err := other.Endpoints().Put(t.Context(), n.attachment(0)); return err })
		group.Go(func() error {
			if err := other.Endpoints().DeleteDevice(t.Context(), n.attachment(0)); !errors.Is(err, os.ErrNotExist) {
				return err
			}
			return nil
		})
		succeed(t, group.Wait())
		wantWhole(t, n, d, len(must(d.Endpoints().List(t.Context()))(t)) > 0)
	}
}

// TestPodAgainstService gives a pod an address that a service gets too, while both wait for the rows: one of them is
// refused.
func TestPodAgainstService(t *testing.T) {
	n, d := routed(t), openTest(t)
	other := openAgain(t, d)
	for i := range testkit.Repeats(20, 200) {
		addr := netip.AddrFrom4([4]byte{192, 168, 10, byte(20 + i)})
		spec := n.attachment(0)
		spec.Addresses = []netip.Addr{addr}
		want := newService(service.TCP, netip.AddrPortFrom(addr, 80).String(), "192.0.2.1:80")
		var group sync.WaitGroup
		var errs [2]error
		lock := must(d.objects.Lock(t.Context()))(t)
		group.Go(func() { _, _, errs[0] = d.Endpoints().Put(t.Context(), spec) })
		group.Go(func() { _, _, errs[1] = other.Services().Put(t.Context(), service.CLI, want) })
		time.Sleep(10 * time.Millisecond) // most have looked at each other's rows by now
		lock.Unlock()
		group.Wait()
		testkit.Require(t, (errs[0] == nil) != (errs[1] == nil),
			"%v: pod: %v, service: %v; want one error", addr, errs[0], errs[1])
		wantConflict(t, cmp.Or(errs[0], errs[1]), addr.String())
	}
}

// TestUndoneBesideAnother adds a second device of a pod, which goes before it has its programs.
func TestUndoneBesideAnother(t *testing.T) {
	n, d := routed(t), openTest(t)
	must2(d.Endpoints().Put(t.Context(), n.attachment(0)))(t)
	n.run(t, `
		-n HOST link add vc type veth peer name eth1 netns PODA
		-n PODA addr add 192.168.11.10/32 dev eth1`)
	d.objects.BeforeLink = func() {
		d.objects.BeforeLink = nil
		n.run(t, "-n HOST link del vc")
	}
	second := n.attachment(0)
	second.IfName = "eth1"
	testkit.Check(t, errOf2(d.Endpoints().Put(t.Context(), second)) != nil, "no error although the device went")
	wantWhole(t, n, d, true)
}

// TestBadEndpoints names devices that can be no endpoints.
func TestBadEndpoints(t *testing.T) {
	n, d := routed(t), openTest(t)
	n.run(t, "-n PODB link add lone type veth peer name other\n-n PODB addr add 192.168.10.50/32 dev lone")
	n.run(t, "-n PODB link add br9 type bridge\n-n PODB addr add 192.168.10.51/32 dev br9")
	n.run(t, "-n PODA addr flush dev eth0 scope global")
	n.run(t, `
		-n PODB tuntap add tap9 mode tap
		-n PODB tuntap add tun9 mode tun
		-n HOST tuntap add tap9 mode tap`)
	at := func(pod int, name, host string) EndpointSpec {
		return EndpointSpec{Namespace: n.pods[pod], IfName: name, Host: n.host, HostIfName: host}
	}
	in := func(segment string, a EndpointSpec) EndpointSpec {
		a.Segment = segment
		return a
	}
	vm := []netip.Addr{netip.MustParseAddr("192.168.10.60")}
	for _, c := range []struct {
		name, want string
		attach     EndpointSpec
		notExist   bool
	}{
		{"no such device", "eth7", at(0, "eth7", ""), true},
		{"no namespace", "no network namespace", EndpointSpec{IfName: "eth0", Host: n.host}, false},
		{"no address", "no address", n.attachment(0), false},
		{"loopback", `"loopback"`, at(0, "lo", ""), false},
		{"bridge", `"bridge"`, at(1, "br9", ""), false},
		{"peer elsewhere", "other end is not in", at(1, "lone", ""), false},
		{"no other end", "must be given", at(1, "tap9", ""), false},
		{"host's device missing", "vc", at(1, "tap9", "vc"), true},
		{"host's device of another kind", `"veth"`, at(1, "tap9", "va"), false},
		{"TUN in the pod only", "MAC address of 0 bytes", at(1, "tun9", "tap9"), false},
		{"a VM without a MAC", "MAC address of 0 bytes", EndpointSpec{Host: n.host, HostIfName: "tap9",
			Addresses: vm}, false},
		{"a VM without an address", "no address", EndpointSpec{Host: n.host, HostIfName: "tap9", MAC: mac("02")}, false},
		{"segment missing", "br7", in("br7", at(1, "eth0", "")), true},
		{"loopback in a segment", `"loopback"`, in("va", at(0, "lo", "")), false},
		{"TUN in a segment", "no MAC address", in("va", at(1, "tun9", "")), false},
		{"in no host", "other end is not in", EndpointSpec{Namespace: n.pods[1], IfName: "eth0", Host: n.pods[0]}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := d.Endpoints().Put(t.Context(), c.attach)
			testkit.Check(t, err != nil && strings.Contains(err.Error(), c.want) && !strings.Contains(err.Error(), "\n"),
				"error %v, want one line with %q", err, c.want)
			testkit.Check(t, errors.Is(err, os.ErrNotExist) == c.notExist,
				"error %v: os.ErrNotExist matches %v", err, !c.notExist)
			wantEndpoints(t, d)
			wantLinks(t, d, 0)
		})
	}
}
