// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"strings"
	"testing"
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
				command(t, f.host, "ip link add br0 type bridge")
			}
			command(t, f.host, "ip link set "+c.device+" up")
			command(t, f.host, "ip addr add "+c.address+" dev "+c.device)
			command(t, f.host, "ip addr add "+c.address6+" dev "+c.device)
			before := network("net", c.link, c.more)
			p := f.added("a", before)
			for i := range 2 {
				f.reach(p.Namespace, f.host, gateway(p, i))
			}
			f.must(f.del(p))
			f.must(f.del(f.added("b", moved(before, "113", "114"))))
			text := command(t, f.host, "ip -o addr show dev "+c.device)
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

// TestAddressBesideTheGateway adds an address of the host in a network's subnet, which the kernel counts as the second one there. It stays when the network goes.
func TestAddressBesideTheGateway(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	before := network("net", "bridge", "")
	f.must(f.del(f.added("a", before)))
	command(t, f.host, "ip addr add 10.113.0.5/24 dev mst0")
	f.must(f.del(f.added("b", moved(before, "113", "114"))))
	text := command(t, f.host, "ip -o addr show dev mst0")
	if !strings.Contains(text, " 10.113.0.5/24 ") || strings.Contains(text, " 10.113.0.1/24 ") {
		t.Errorf("want 10.113.0.5/24 alone: %s", text)
	}
}
