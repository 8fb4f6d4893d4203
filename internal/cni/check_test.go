// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"mustang/internal/datapath"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// tampering is a change of an attachment behind the back of the plugin.
type tampering struct {
	name  string
	modes string // the modes in which it can happen; empty for all
	// pod and host are commands there, do is anything else.
	pod, host string
	do        func(*fixture, *pod)
	shared    bool // set for host objects that all pods need: the next ADD repairs them
	want      []string
}

// tamperings are the faults that CHECK reports. podlink.TestCheck has more of devices and routes.
func tamperings() []tampering {
	return []tampering{
		{name: "device deleted", pod: "ip link del eth0", want: []string{`device "eth0" is missing`}},
		{name: "IPv4 address removed", pod: "ip addr flush dev eth0 to {4}", want: []string{`"eth0"`, "lacks address {4}"}},
		{name: "MAC changed", pod: "ip link set eth0 address 02:00:00:00:00:99",
			want: []string{"MAC address 02:00:00:00:00:99, want"}},
		{name: "host's device deleted", modes: "veth bridge", host: "ip link del {device}",
			want: []string{`device "eth0" is missing`}},
		{name: "IPv6 gateway removed", modes: "bridge macvlan", host: "ip -6 addr flush dev {gateways} to {g6}",
			shared: true, want: []string{"{gateways}", "lacks address {g6}"}},
		{name: "gateway removed", modes: "veth", host: "ip addr del {g4}/32 dev lo", shared: true,
			want: []string{`"lo"`, "lacks address {g4}"}},
		{name: "IPv6 forwarding off", host: "sysctl -qw net.ipv6.conf.all.forwarding=0",
			shared: true, want: []string{"net/ipv6/conf/all/forwarding"}},
		{name: "lease removed", do: dropLeases, want: []string{"{4}", "not reserved"}},
		{name: "endpoint removed", do: dropEndpoint, want: []string{"not found"}},
		{name: "program detached", do: dropPrograms, want: []string{"is not attached"}},
		{name: "masquerade table gone", host: "nft delete table inet mustang-cni-net", shared: true,
			want: []string{"mustang-cni-net", "0 rules"}},
		{name: "masquerade rules gone", host: "nft flush table inet mustang-cni-net", shared: true,
			want: []string{"mustang-cni-net", "0 rules"}},
		{name: "host port's service gone", do: (*fixture).dropPorts, want: []string{"host port", "does not lead to"}},
		{name: "host port leads elsewhere", do: (*fixture).redirectPorts, want: []string{"host port", "does not lead to"}},
		{name: "host unknown", do: dropHost, shared: true, want: []string{"sockets of host", "network namespace is not registered"}},
		{name: "socket programs detached", do: dropSockets, shared: true, want: []string{"lacks the socket programs",
			"connect4"}},
		{name: "a socket program detached, its link pinned", do: detach("cgroup-*connect4"), shared: true,
			want: []string{"lacks the socket programs connect4"}},
		{name: "uplink gone", do: dropUplinks, shared: true, want: []string{`uplink "uplink"`, "from_uplink", "to_uplink"}},
		{name: "an uplink's program detached, its link pinned", do: detach("uplink-*-from_uplink"), shared: true,
			want: []string{`uplink "uplink": program from_uplink is not attached`}},
		{name: "limit of what the pod sends gone", pod: "tc qdisc del dev eth0 root", want: []string{`"eth0"`, "limit"}},
		{name: "limit of what the pod receives gone", modes: "veth bridge", host: "tc qdisc del dev {device} root",
			want: []string{"{device}", "limit"}},
		{name: "record gone", host: "rm -r {run}/net/attachments", want: []string{"not attached"}},
		{name: "shared record gone", host: "rm {run}/net/network.json", want: []string{"the record of the shared state"}},
	}
}

// tampered is a network whose ADD runs all steps of the link mode.
func tampered(mode string) []byte {
	bandwidth := `{"ingressRate":80000000,"ingressBurst":800000,"egressRate":80000000,"egressBurst":800000}`
	if mode == "macvlan" { // lacks a device for packets to the pod
		bandwidth = `{"egressRate":80000000,"egressBurst":800000}`
	}
	return network("net", mode,
		`,"masquerade":true,"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80}],"bandwidth":`+
			bandwidth+`}`)
}

// TestCheck tampers with an attachment in each way, one at a time: CHECK names the fault, and DEL removes the rest.
func TestCheck(t *testing.T) {
	eachName(t, crashModes, newSocketFixture, func(t *testing.T, f *fixture, mode string) {
		f.must(f.del(f.added("first", tampered(mode))))
		before := f.left()
		for _, row := range tamperings() {
			if row.modes != "" && !slices.Contains(strings.Fields(row.modes), mode) {
				continue
			}
			t.Run(row.name, func(t *testing.T) { f.in(t).tamper(row, mode, before) })
		}
	})
}

func (f *fixture) tamper(row tampering, mode string, before []string) {
	p := f.added("a", tampered(mode))
	f.must(f.check(p))
	fill := func(text string) string {
		return strings.ReplaceAll(f.fill(p, mode, text), "{run}", f.plugin.RunDir)
	}
	if row.pod != "" {
		testkit.Command(f.t, p.Namespace, fill(row.pod))
	}
	if row.host != "" {
		testkit.Command(f.t, f.host, fill(row.host))
	}
	if row.do != nil {
		row.do(f, p)
	}
	var want []string
	for _, words := range row.want {
		want = append(want, fill(words))
	}
	f.oneLine(f.check(p), want...)
	if row.shared {
		next := f.added("b", []byte(strings.Replace(string(tampered(mode)), "8080", "8081", 1)))
		f.must(f.check(next))
		if row.do != nil { // of the datapath, where nothing of the pod's own goes with it
			f.must(f.check(p))
		}
		f.must(f.del(next))
	}
	f.must(f.del(p))
	if row.name == "host port leads elsewhere" {
		f.dropServices() // they are not the pod's any more
	}
	after := f.left()
	slices.Sort(before) // files come and go
	if slices.Sort(after); !slices.Equal(before, after) && row.name != "shared record gone" {
		f.t.Errorf("before %q\nafter  %q", before, after)
	}
}

func dropLeases(f *fixture, p *pod) {
	f.must(f.plugin.addresses("net").Release(p.request.owner()))
}

// TestCheckTold runs CHECK with results that differ from the result of ADD.
func TestCheckTold(t *testing.T) {
	f := newFixture(t)
	p := f.added("a", network("net", "veth", ""))
	told := text(t, p.result)
	for _, row := range []struct{ name, old, put, want string }{
		{"another address", p.ips()[0].String() + "/", "10.99.0.9/", "lacks address 10.99.0.9/"},
		{"another MAC", p.result.Interfaces[1].Mac, "02:00:00:00:00:99", "want 02:00:00:00:00:99"},
		{"another name", `"name":"eth0"`, `"name":"eth7"`, `no interface "eth0"`},
		{"no interfaces", `"interfaces"`, `"interfaceless"`, `no interface "eth0"`},
		{"of no version", `"cniVersion":"1.1.0"`, `"cniVersion":"9.9.9"`, "prevResult"},
	} {
		t.Run(row.name, func(t *testing.T) {
			testkit.Require(t, strings.Contains(told, row.old), "%s lacks %s", told, row.old)
			f.in(t).oneLine(f.checkWith(p, strings.ReplaceAll(told, row.old, row.put)), row.want)
		})
	}
	missing := f.host.Do(func() error { return f.plugin.Check(t.Context(), p.request) })
	f.oneLine(missing, "prevResult: missing")
	f.must(f.check(p))
	other := f.pod("other", p.request.Config)
	other.result, other.request.ContainerID = p.result, p.request.ContainerID
	f.oneLine(f.check(other), `"eth0"`)
	other.request.ContainerID = "other"
	f.oneLine(f.check(other), "container other", "not attached")
	f.must(f.del(p))
}

func (f *fixture) checkWith(p *pod, prevResult string) error {
	request := p.request
	request.Config = withPrevious(request.Config, prevResult)
	return f.host.Do(func() error { return f.plugin.Check(f.t.Context(), request) })
}

func (f *fixture) tables(fn func(*datapath.Datapath) error) {
	f.t.Helper()
	d := testkit.Must(datapath.OpenExisting(f.plugin.datapathOptions()))(f.t)
	defer d.Close()
	f.must(fn(d))
}

func dropEndpoint(f *fixture, p *pod) {
	f.tables(func(d *datapath.Datapath) error { return d.Endpoints().DeleteIP(f.t.Context(), p.ips()[0]) })
}

// dropPrograms removes the pins that keep the pod's programs attached.
func dropPrograms(f *fixture, _ *pod) {
	pins := testkit.Must(filepath.Glob(filepath.Join(f.plugin.BPFRoot, "v*/links/[0-9]*")))(f.t)
	testkit.Require(f.t, len(pins) != 0, "no program is attached")
	for _, pin := range pins {
		f.must(os.Remove(pin))
	}
}

func dropHost(f *fixture, _ *pod) {
	f.tables(func(d *datapath.Datapath) error {
		cookie := testkit.Must(f.host.Cookie())(f.t)
		return d.Sockets().Delete(f.t.Context(), service.CNI, cookie)
	})
}

func dropSockets(f *fixture, _ *pod) {
	f.tables(func(d *datapath.Datapath) error { return d.Sockets().Detach(f.t.Context(), f.plugin.Cgroup) })
}

func dropUplinks(f *fixture, _ *pod) {
	f.tables(func(d *datapath.Datapath) error {
		all, err := d.Uplinks().List(f.t.Context())
		if err == nil && len(all) != 1 {
			err = fmt.Errorf("uplinks are %v", all)
		}
		if err != nil {
			return err
		}
		return d.Uplinks().Delete(f.t.Context(), all[0])
	})
}

func (f *fixture) dropPorts(*pod) { f.dropServices() }

func (f *fixture) redirectPorts(*pod) {
	f.tables(func(d *datapath.Datapath) error {
		services, err := d.Services().List(f.t.Context())
		if err != nil {
			return err
		}
		for _, s := range services {
			elsewhere := outsideAddresses[0].Addr()
			if s.Frontend.Addr().Is6() {
				elsewhere = outsideAddresses[1].Addr()
			}
			s.Backends = service.Backends(netip.AddrPortFrom(elsewhere, 9))
			if _, _, err := d.Services().Put(f.t.Context(), s.Owner, s); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestCheckSockets removes parts of the socket translation: the next ADD repairs the shared ones.
func TestCheckSockets(t *testing.T) {
	f := newSocketFixture(t)
	config := network("net", "veth", `,"services":"socket"`)
	p := f.added("a", config)
	dropSockets(f, p)
	f.oneLine(f.check(p), "lacks the socket programs")
	f.must(f.del(f.added("next", config)))
	f.must(f.check(p))
	cookie := testkit.Must(p.Cookie())(t)
	f.tables(func(d *datapath.Datapath) error { return d.Sockets().Delete(t.Context(), service.CNI, cookie) })
	f.oneLine(f.check(p), "sockets are not enabled")
	f.must(f.del(p))
	p = f.added("b", config)
	f.must(os.Rename(f.plugin.BPFRoot, f.plugin.BPFRoot+"-moved"))
	f.oneLine(f.check(p), "no longer exists", f.plugin.BPFRoot)
	f.must(f.del(p))
	f.checkAndDelete(f.added("c", config)) // creates the datapath again
}

// detach detaches the program of a link that stays pinned, as `bpftool link detach` does.
func detach(pattern string) func(*fixture, *pod) {
	return func(f *fixture, _ *pod) {
		f.t.Helper()
		pins := testkit.Must(filepath.Glob(filepath.Join(f.plugin.BPFRoot, "v*/links", pattern)))(f.t)
		testkit.Require(f.t, len(pins) == 1, "pinned are %q", pins)
		path := testkit.Must(unix.BytePtrFromString(pins[0]))(f.t)
		var pin runtime.Pinner
		defer pin.Unpin()
		pin.Pin(path)
		get := struct { // union bpf_attr, <linux/bpf.h>
			path      uint64
			fd, flags uint32
		}{path: uint64(uintptr(unsafe.Pointer(path)))}
		fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_OBJ_GET, uintptr(unsafe.Pointer(&get)), unsafe.Sizeof(get))
		testkit.Require(f.t, errno == 0, "%v", errno)
		defer unix.Close(int(fd))
		link := uint32(fd)
		_, _, errno = unix.Syscall(unix.SYS_BPF, unix.BPF_LINK_DETACH, uintptr(unsafe.Pointer(&link)), unsafe.Sizeof(link))
		testkit.Require(f.t, errno == 0, "%v", errno)
	}
}
