// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

// TestAddressesOfTheHost has a network leave a subnet in which the host had addresses before: those stay. What the network has added goes.
func TestAddressesOfTheHost(t *testing.T) {
	for _, c := range []struct{ name, link, device, more, address, gateway, address6, gateway6 string }{
		{"lo", "veth", "lo", "", "10.113.0.1/32", "", "fd00:113::1/128", ""},
		{"bridge", "bridge", "br0", `,"bridge":"br0"`, "10.113.0.1/24", "", "fd00:113::1/64", ""},
		{"another address", "bridge", "br0", `,"bridge":"br0"`, "10.113.0.5/24", "10.113.0.1/24", "fd00:113::5/64", "fd00:113::1/64"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			if c.device != "lo" {
				testkit.Command(t, f.host, "ip link add br0 type bridge")
			}
			testkit.Command(t, f.host, "ip link set "+c.device+" up")
			testkit.Command(t, f.host, "ip addr add "+c.address+" dev "+c.device)
			testkit.Command(t, f.host, "ip addr add "+c.address6+" dev "+c.device)
			before := network("net", c.link, c.more)
			p := f.added("a", before)
			for i := range 2 {
				f.reach(p.Namespace, f.host, gateway(p, i))
			}
			f.must(f.del(p))
			f.must(f.del(f.added("b", moved(before, "113", "114"))))
			text := testkit.Command(t, f.host, "ip -o addr show dev "+c.device)
			for _, address := range []string{c.address, c.address6} {
				if !strings.Contains(text, " "+address+" ") {
					t.Errorf("%s of the host is gone: %s", address, text)
				}
			}
			for _, address := range []string{c.gateway, c.gateway6} {
				if address != "" && strings.Contains(text, " "+address+" ") {
					t.Errorf("%s is there still: %s", address, text)
				}
			}
		})
	}
}

// TestRemoveNetworks removes networks at bridges: those that the plugin has created go, those of the host stay with what they had.
func TestRemoveNetworks(t *testing.T) {
	for _, c := range []struct {
		name, bridge string
		before       string // of the bridge; empty if there is none
		after        func(t *testing.T, f *fixture)
		stays        bool
	}{
		{name: "of the plugin", bridge: "br0"},
		{name: "of the plugin, with its name", bridge: "mst0"},
		{name: "of the host", bridge: "br0", before: "10.113.0.5/24", stays: true},
		{name: "of the host, with the plugin's name", bridge: "mst0", before: "10.113.0.5/24", stays: true},
		{name: "of the host, by whom it was created anew", bridge: "br0", stays: true, after: func(t *testing.T, f *fixture) {
			testkit.Command(t, f.host, "ip link del br0")
			testkit.Command(t, f.host, "ip link add br0 type bridge")
			f.must(f.del(f.added("c", network("net", "bridge", `,"bridge":"br0"`))))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			if c.before != "" {
				testkit.Command(t, f.host, "ip link add "+c.bridge+" type bridge")
				testkit.Command(t, f.host, "ip link set "+c.bridge+" up")
				testkit.Command(t, f.host, "ip addr add "+c.before+" dev "+c.bridge)
			}
			config := network("net", "bridge", `,"bridge":"`+c.bridge+`"`)
			f.must(f.del(f.added("a", config)))
			f.must(f.del(f.added("b", bytes.ReplaceAll(config, []byte(`"net"`), []byte(`"one"`))))) // it shares the bridge
			if c.after != nil {
				c.after(t, f)
			}
			f.must(f.plugin.RemoveNetworks(f.host))
			text := testkit.Command(t, f.host, "ip -o addr show")
			if strings.Contains(testkit.Command(t, f.host, "ip -o link"), ": "+c.bridge+":") != c.stays {
				t.Errorf("the bridge is there %t, want %t", !c.stays, c.stays)
			}
			if c.before != "" && !strings.Contains(text, " "+c.before+" ") {
				t.Errorf("%s of the host is gone: %s", c.before, text)
			}
			if c.before != "" && strings.Contains(text, " 10.113.0.1/24 ") {
				t.Errorf("the gateway is there still: %s", text)
			}
		})
	}
}

// TestLinkChanges gives a network another link mode or bridge: while it has pods, that is refused, and they keep their gateways. Without pods the gateways
// leave the device of before.
func TestLinkChanges(t *testing.T) {
	devices := map[string]string{"veth": "lo", "bridge": "mst0", "bridge br-b": "br-b", "macvlan": "mst-host"}
	for _, links := range [][2]string{
		{"veth", "bridge"}, {"bridge", "veth"}, {"macvlan", "veth"}, {"veth", "macvlan"}, {"bridge", "macvlan"}, {"bridge", "bridge br-b"},
	} {
		t.Run(links[0]+" to "+links[1], func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			in := func(link string) []byte {
				link, bridge, _ := strings.Cut(link, " ")
				requireLink(t, link)
				if bridge != "" {
					bridge = `,"bridge":"` + bridge + `"`
				}
				return network("net", link, bridge)
			}
			has := func(when string, before, after bool) {
				t.Helper()
				text := testkit.Command(t, f.host, "ip -o addr show")
				for link, want := range map[string]bool{links[0]: before, links[1]: after} {
					for _, gateway := range []string{`10\.113\.0\.1/`, "fd00:113::1/"} {
						if regexp.MustCompile(devices[link]+" .*"+gateway).MatchString(text) != want {
							t.Errorf("%s: want %s at %s %t: %s", when, gateway, devices[link], want, text)
						}
					}
				}
			}
			before, after := in(links[0]), in(links[1])
			p := f.added("a", before)
			f.oneLine(f.add(f.pod("b", after)), "delete first")
			has("with a pod of before", true, false)
			f.reachGateways(p)
			f.checkAndDelete(p)
			q := f.added("c", after)
			has("without pods of before", false, true)
			f.reachGateways(q)
			f.checkAndDelete(q)
			f.checkAndDelete(f.added("d", before))
			has("back again", true, false)
		})
	}
}

// TestCheckAfterLinkChange gives a network another link mode for which the host routes too, while it has a pod: CHECK finds that pod as it was added, by its
// configuration and by the one of now, and misses what it has lost.
func TestCheckAfterLinkChange(t *testing.T) {
	t.Parallel()
	requireLink(t, "netkit")
	before, after := network("net", "veth", ""), network("net", "netkit", "")
	f := newFixture(t)
	p, q := f.added("a", before), f.added("b", after)
	f.reachGateways(p, q)
	f.must(f.check(p))
	f.must(f.check(q))
	p.request.Config = after
	f.must(f.check(p))
	testkit.Command(t, p.Namespace, "ip route del default")
	if f.check(p) == nil {
		t.Error("CHECK of a pod without its default route succeeds")
	}
	f.must(f.del(p))
	f.checkAndDelete(q)
}
