// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

// advertise sends a router advertisement (RFC 4861, 4.2) from outside to the host: a default route for some seconds,
// and options.
func (f *fixture) advertise(lifetime uint16, options ...byte) {
	f.t.Helper()
	f.must(f.outside.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		device, err := rtnl.In(f.outside).Device("far")
		if err != nil {
			return err
		}
		to := &unix.SockaddrInet6{Addr: [16]byte{0: 0xff, 1: 2, 15: 1}, ZoneId: uint32(device.Index)}
		message := append([]byte{134, 0, 0, 0, 64, 0, byte(lifetime >> 8), byte(lifetime), 15: 0}, options...)
		return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255),
			unix.Sendto(fd, message, 0, to))
	}))
}

// learned reports whether the host has a default route of a router advertisement.
func (f *fixture) learned() bool {
	f.t.Helper()
	return strings.Contains(testkit.Command(f.t, f.host, "ip -6 route show default proto ra"), "via fe80:")
}

// settings returns the host's forwarding of IPv4 and IPv6, and its acceptance of router advertisements.
func (f *fixture) settings() string {
	f.t.Helper()
	var values []string
	for _, key := range []string{podlink.IPv4Forwarding, podlink.IPv6Forwarding, "net/ipv6/conf/uplink/accept_ra"} {
		values = append(values, testkit.Must(rtnl.In(f.host).Sysctl(key))(f.t))
	}
	return strings.Join(values, " ")
}

// TestForwarding has a host that learns its default route from a router. It forwards in the families of its pods, keeps
// the route and learns it anew, and goes on to forward after the last DEL.
func TestForwarding(t *testing.T) {
	t.Parallel()
	eachName(t, crashModes, newFixture, func(t *testing.T, f *fixture, mode string) {
		v4 := []byte(strings.Replace(string(network("four", mode, `,"services":"off"`)),
			`,[{"subnet":"fd00:106::/64"}]`, "", 1))
		both := network("net", mode, `,"services":"off","masquerade":true`)
		f.must(rtnl.In(f.host).SetSysctl(podlink.IPv4Forwarding, "0"))
		learn := func() {
			t.Helper()
			testkit.Eventually(t, 10*time.Second, func() error {
				f.advertise(1800)
				if !f.learned() {
					return errors.New("the host has no advertised route")
				}
				return nil
			})
		}
		want := func(settings, when string) {
			t.Helper()
			got := f.settings()
			testkit.Check(t, got == settings, "%s: the settings are %s, want %s", when, got, settings)
			testkit.Check(t, f.learned(), "%s: the advertised route is gone", when)
		}
		learn()
		want("0 0 1", "before")
		one := f.added("a", v4)
		want("1 0 1", "ADD of IPv4")
		two := f.added("b", both)
		want("1 1 2", "ADD of both")
		testkit.Command(t, f.host, "ip -6 route del default proto ra")
		learn()
		f.must(f.check(two))
		f.reach(f.host, two.Namespace, two.ips()[1])
		f.must(f.del(one))
		want("1 1 2", "DEL of IPv4")
		f.must(f.del(two))
		want("1 1 2", "the last DEL")
	})
}

// TestForwardingKeepsAddresses has a host with an advertised address, and no route: it goes on to take advertisements.
func TestForwardingKeepsAddresses(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	testkit.Eventually(t, 10*time.Second, func() error {
		// An address for an hour (RFC 4862), and no route.
		f.advertise(0, []byte{3, 4, 64, 0xc0, 0, 0, 14, 16, 0, 0, 14, 16, 0, 0, 0, 0, 0xfd, 0, 0, 5, 31: 0}...)
		if !strings.Contains(testkit.Command(t, f.host, "ip -6 addr show dev uplink"), "fd00:5:") {
			return errors.New("the host has no advertised address")
		}
		return nil
	})
	pod := f.added("a", network("net", "veth", `,"services":"off"`))
	got := f.settings()
	testkit.Check(t, got == "1 1 2", "the settings are %s: the advertised address will expire", got)
	f.must(f.del(pod))
}

// TestBigTCP adds pods by each value of the key. With auto, packets of BIG TCP depend on the uplink, which stays as it
// is.
func TestBigTCP(t *testing.T) {
	eachName(t, []string{"veth", "bridge", "macvlan"}, newFixture, func(t *testing.T, f *fixture, link string) {
		requireLink(t, link)
		for i, test := range []struct {
			more   string
			uplink int // its limits
			want   uint32
		}{
			{"", rtnl.PacketBytes, rtnl.PacketBytes},
			{`,"bigTCP":"auto"`, rtnl.BigTCPBytes, rtnl.BigTCPBytes},
			{`,"bigTCP":"off"`, rtnl.BigTCPBytes, rtnl.PacketBytes},
			{`,"bigTCP":"on"`, rtnl.PacketBytes, rtnl.BigTCPBytes},
		} {
			f.limit(test.uplink)
			id := fmt.Sprint("pod", i)
			p := f.added(id, network("net"+id, link, test.more))
			f.wantPackets(p.Namespace, "eth0", test.want)
			f.wantPackets(f.host, "uplink", uint32(test.uplink))
			f.checkAndDelete(p)
		}
	})
}

func (f *fixture) limit(bytes int) {
	f.t.Helper()
	handle := testkit.Must(rtnl.In(f.host).Handle())(f.t)
	defer handle.Close()
	link := testkit.Must(handle.LinkByName("uplink"))(f.t)
	f.must(rtnl.SetUpWithPackets(handle, link, uint32(bytes), rtnl.TakesBigIPv6()))
}

func (f *fixture) wantPackets(ns *netns.Namespace, device string, want uint32) {
	f.t.Helper()
	handle := testkit.Must(rtnl.In(ns).Handle())(f.t)
	defer handle.Close()
	link := testkit.Must(handle.LinkByName(device))(f.t)
	have := link.Attrs().GSOIPv4MaxSize
	testkit.Check(f.t, have == want, "device %q in %q takes packets of %d bytes, not %d", device, ns.Name(), have, want)
	if !rtnl.TakesBigIPv6() {
		want = rtnl.PacketBytes
	}
	have = link.Attrs().GSOMaxSize
	testkit.Check(f.t, have == want, "device %q in %q takes IPv6 packets of %d bytes, not %d", device,
		ns.Name(), have, want)
}

// TestBigTCPAutoIsStable adds pods before the host has a default route, and before and after the limits of its card
// have changed. ADD repairs the network in between: what auto decided first holds.
func TestBigTCPAutoIsStable(t *testing.T) {
	t.Parallel()
	config := func(name string) []byte {
		return bytes.Replace(network(name, "bridge", ""), []byte(`"parent":"uplink",`), nil, 1)
	}
	for name, test := range map[string]struct {
		route  bool
		limits []int // of the card, at each ADD
		want   uint32
	}{
		"late": {false, []int{rtnl.BigTCPBytes}, rtnl.PacketBytes},
		"on":   {true, []int{rtnl.BigTCPBytes, rtnl.PacketBytes}, rtnl.BigTCPBytes},
		"off":  {true, []int{rtnl.PacketBytes, rtnl.BigTCPBytes}, rtnl.PacketBytes},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			if !test.route {
				f.must(rtnl.In(f.host).SetUp("uplink", false)) // which removes the routes
			}
			for i, limit := range test.limits {
				if test.route {
					f.limit(limit)
				}
				p := f.added(fmt.Sprint("pod", i), config("net"))
				f.wantPackets(p.Namespace, "eth0", test.want)
				f.wantPackets(f.host, podlink.DefaultBridge, test.want)
				f.must(rtnl.In(f.host).SetSysctl("net/ipv4/conf/all/forwarding", "0")) // the next ADD repairs it
			}
		})
	}
}

// TestParentMTUChanges changes the MTU of the parent. New pods get the new MTU, and CHECK accepts older pods with the
// old one.
func TestParentMTUChanges(t *testing.T) {
	eachMode(t, func(t *testing.T, f *fixture, mode podlink.Mode) {
		config := network("net", mode.Name(), "")
		var pods []*pod
		for i, mtu := range []int{1400, 9000, 1500, 1300} {
			testkit.Command(t, f.host, fmt.Sprint("ip link set uplink mtu ", mtu))
			p := f.added(fmt.Sprint("p", i), config)
			device, err := rtnl.In(p.Namespace).Device("eth0")
			if want := min(1500, mtu); err != nil || device.MTU != want {
				t.Errorf("the parent has MTU %d, the pod %d, want %d, %v", mtu, device.MTU, want, err)
			}
			if i > 0 { // the kernel raises no MTU
				pods = append(pods, p)
			}
			for _, p := range pods {
				f.must(f.check(p))
			}
			f.reach(p.Namespace, f.host, gateway(p, 0))
		}
		for _, p := range pods {
			f.must(f.del(p))
		}
	})
}

// TestLoopback calls the plugin by the name loopback, by that type, and the reference plugin: results and devices are
// the same.
func TestLoopback(t *testing.T) {
	testkit.RequireRoot(t)
	f := newFixtureOver(t, "/nowhere")
	f.requirePlugin("loopback")
	ours := testkit.Must(program())(f.t)
	named := filepath.Join(t.TempDir(), "loopback")
	f.must(os.Symlink(ours, named))
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0"} {
		var want string
		for _, plugin := range []string{filepath.Join(debianPlugins, "loopback"), named, ours} {
			config := fmt.Appendf(nil, `{"cniVersion":%q,"name":"cni-loopback","type":"loopback"}`, version)
			p := f.pod("lo", config)
			p.request.IfName = "other" // some runtimes pass another one
			conn := rtnl.In(p.Namespace)
			f.must(conn.SetUp("lo", false))
			call := func(verb string, config []byte) answer {
				return f.run(call{program: plugin, verb: verb, env: p.environment(), config: config})
			}
			stdout := f.worked(call("ADD", config)).stdout
			got := loopbackResult(t, stdout, p.request.Netns)
			if want == "" {
				want = got
			}
			testkit.Check(t, got == want, "%s of %s: result %v, want %v", version, plugin, got, want)
			lo, err := conn.Device("lo")
			testkit.Check(t, err == nil && lo.Up, "%s of %s: the device is %+v, %v", version, plugin, lo, err)
			again := loopbackResult(t, f.worked(call("ADD", withPrevious(config, stdout))).stdout, p.request.Netns)
			testkit.Check(t, again == want, "%s of %s: with a previous result %s, want %s", version, plugin, again, want)
			if version != "0.3.1" { // which lacks CHECK
				f.worked(call("CHECK", withPrevious(config, stdout)))
				f.must(conn.SetUp("lo", false))
				a := call("CHECK", withPrevious(config, stdout))
				testkit.Check(t, a.exit != 0, "%s of %s: CHECK of a device that is down worked", version, plugin)
				f.must(conn.SetUp("lo", true))
			}
			f.worked(call("DEL", config))
			lo, err = conn.Device("lo")
			testkit.Check(t, err == nil && !lo.Up, "%s of %s: after DEL the device is %+v, %v", version, plugin, lo, err)
			p.request.Netns = "/run/netns/gone"
			f.worked(call("DEL", config))
			p.request.Netns = ""
			f.worked(call("DEL", config))
		}
	}
	// Not the host's own.
	p := f.pod("host", []byte(`{"cniVersion":"1.0.0","name":"cni-loopback","type":"loopback"}`))
	p.request.Netns = f.host.Path()
	for _, verb := range []string{"ADD", "DEL"} {
		a := f.run(call{program: named, verb: verb, env: p.environment(), config: p.request.Config})
		testkit.Check(t, a.exit != 0, "%s of the host's device worked", verb)
	}
	lo, err := rtnl.In(f.host).Device("lo")
	testkit.Check(t, err == nil && lo.Up, "the host's device is %+v, %v", lo, err)
}

// loopbackResult returns the parts of a result that runtimes read: the reference plugin, of an older library, returns
// the same with other empty keys.
func loopbackResult(t *testing.T, stdout, netns string) string {
	t.Helper()
	var result struct {
		CNIVersion string
		Interfaces []struct{ Name, MAC, Sandbox string }
		IPs        []struct {
			Interface int
			Address   string
		}
	}
	testkit.Succeed(t, json.Unmarshal([]byte(strings.ReplaceAll(stdout, netns, "NETNS")), &result))
	return fmt.Sprintf("%+v", result)
}
