// SPDX-License-Identifier: Apache-2.0

package labfile_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"mustang/internal/lab/labfile"
	"mustang/internal/testkit"
)

const good = `name: two-racks
hosts:
  host-a:
    datapath: ebpf
    pods:
      web: {link: veth}
      db:
  host-b:
    pods:
      client: {link: bridge, address: 10.2.0.7/24}
wires:
  - endpoints: [host-a, host-b]
services:
  - name: web
    address: 10.96.0.100:80
    backends: [web:8080]
`

func read(text string) (*labfile.Lab, error) {
	return labfile.Read(strings.NewReader(text), "lab.yaml")
}

// badFiles are changes of the good file, and their errors; "" means no error.
var badFiles = []struct{ from, to, want string }{
	{"name: two-racks\n", "", "lab.yaml:1: name: it is missing"},
	{"two-racks", "Two_Racks", `lab.yaml:1: name: name "Two_Racks": want 1 to 40`},
	{"two-racks", "17", "lab.yaml:1: name: want a string, got a number"},
	{"hosts:\n", "hots:\n", "lab.yaml:2: hots: unknown field"},
	{"datapath: ebpf", "datapat: ebpf", "lab.yaml:4: hosts.host-a.datapat: unknown field"},
	{"datapath: ebpf", "datapath: bpf", `lab.yaml:4: hosts.host-a.datapath: "bpf": want kernel or ebpf`},
	{"datapath: ebpf", "datapath: [ebpf]", "lab.yaml:4: hosts.host-a.datapath: want a string, got a list"},
	{"datapath: ebpf", "via: iptables", ""},
	{"datapath: ebpf", "via: ebpf-tc",
		`lab.yaml:4: hosts.host-a.via: "ebpf-tc": datapath kernel takes iptables, nftables, ipvs`},
	{"datapath: ebpf", "datapath: ebpf\n    via: ebpf-socket",
		`lab.yaml:5: hosts.host-a.via: "ebpf-socket": datapath ebpf takes ebpf-tc`},
	{"datapath: ebpf", "datapath: kernel",
		"lab.yaml:14: services[0]: no host has an implementation of services: want datapath ebpf, or via iptables, " +
			"nftables, ipvs"},
	{"link: veth", "link: vteh", `lab.yaml:6: hosts.host-a.pods.web.link: unknown link mode "vteh" (known: veth, `},
	{"link: veth", "link: ovs-tap", "lab.yaml:6: hosts.host-a.pods.web.link: link ovs-tap: only for guests"},
	{"link: veth", "link: ipvlan-l3",
		"lab.yaml:6: hosts.host-a.pods.web.link: link ipvlan-l3: its pods reach only each other"},
	{"      db:\n", "      web:\n", `lab.yaml:7: "web" is there already, in line 6`},
	{"  host-b:\n", "  host-a:\n", `lab.yaml:8: "host-a" is there already, in line 3`},
	{"client:", "web:", `lab.yaml:10: hosts.host-b.pods.web: there is a "web" already, in line 6`},
	{"client:", "host-a:", `lab.yaml:10: hosts.host-b.pods.host-a: there is a "host-a" already, in line 3`},
	{"client:", "outside:", `lab.yaml:10: hosts.host-b.pods.outside: "outside" is not a name for a place`},
	{"client:", "localhost:", `"localhost" is not a name`},
	{"client:", "../x:", `name "../x": want 1 to 40`},
	{"10.2.0.7/24", "10.2.0.300", `lab.yaml:10: hosts.host-b.pods.client.address: "10.2.0.300": want an IP address`},
	{"10.2.0.7/24", "10.2.0.7/33", `"10.2.0.7/33": want an IP address`},
	{"10.2.0.7/24", "10.2.0.7/31", "want a prefix of 8 to 30 bits"},
	{"10.2.0.7/24", "127.0.0.1", `"127.0.0.1": no pod can have that address`},
	{"10.2.0.7/24", `"fe80::1"`, "no pod can have that address"},
	{"10.2.0.7/24", "10.2.0.1", "10.2.0.1 is the address of the host"},
	{"10.2.0.7/24", "10.2.0.255", "10.2.0.255 is the address of all of 10.2.0.0/24"},
	{"10.2.0.7/24", "192.168.0.7",
		"192.168.0.7 is not in 10.2.0.0/24, the network of link bridge on host-b: name another by 192.168.0.7/BITS"},
	{"10.2.0.7/24", "[10.2.0.7, 10.2.0.8]", `"10.2.0.8" is the second address of its family`},
	{"10.2.0.7/24", "{v4: 10.2.0.7}", "hosts.host-b.pods.client.address: want a string or a list of strings"},
	{"10.2.0.7/24", "10.1.0.7/24",
		"lab.yaml:10: hosts.host-b.pods.client.address: 10.1.0.0/24 of link bridge on host-b overlaps 10.1.0.0/24 of link " +
			"veth on host-a"},
	{"10.2.0.7/24", "10.1.0.7/8",
		"lab.yaml:10: hosts.host-b.pods.client.address: 10.0.0.0/8 of link bridge on host-b overlaps 10.0.1.0/24 of wire1"},
	{"10.2.0.7/24}", "10.2.0.7/24}\n      b: {link: bridge, address: 10.2.0.7}",
		"lab.yaml:11: hosts.host-b.pods.b.address: 10.2.0.7 is the address of client"},
	{"10.2.0.7/24}", "10.2.0.7/24}\n      b: {link: bridge, address: 10.2.1.7/24}",
		"lab.yaml:11: hosts.host-b.pods.b.address: 10.2.1.7: the pods of link bridge on host-b are in 10.2.0.0/24"},
	{"10.2.0.7/24}", "10.2.0.2/30}\n      b: {link: bridge}",
		"lab.yaml:11: hosts.host-b.pods.b: no address is free in 10.2.0.0/30"},
	{"[host-a, host-b]", "[host-a, host-x]",
		`lab.yaml:12: wires[0].endpoints[1]: unknown host "host-x" (hosts: host-a, host-b)`},
	{"[host-a, host-b]", "[host-a, web]", `wires[0].endpoints[1]: unknown host "web"`},
	{"[host-a, host-b]", "[host-a, host-a]", "lab.yaml:12: wires[0].endpoints: both ends are at host-a"},
	{"[host-a, host-b]", "[host-a]", "wires[0].endpoints: want two hosts, got 1"},
	{"[host-a, host-b]", "[host-a, host-b]\n    rate: fast", `lab.yaml:13: wires[0].rate: invalid rate "fast"`},
	{"[host-a, host-b]", "[host-a, host-b]\n    rate: 1kbit",
		`lab.yaml:13: wires[0].rate: invalid rate "1kbit": want a number and gbit, mbit, kbit or bit, from 1mbit to 400gbit`},
	{"[host-a, host-b]", "[host-a, host-b]\n    delay: 1", "lab.yaml:13: wires[0].delay: want a string, got a number"},
	{"[host-a, host-b]", "[host-a, host-b]\n    delay: soon", `wires[0].delay: "soon": want a time such as 1ms`},
	{"[host-a, host-b]", "[host-a, host-b]\n    delay: 1h", "wires[0].delay: delay 1h0m0s: want 1µs to 1s"},
	{"name: web", "name: w.b", `lab.yaml:14: services[0].name: name "w.b"`},
	{"name: web\n", "name: web\n    host: host-b\n",
		"lab.yaml:15: services[0].host: host-b lacks an implementation of services"},
	{"name: web\n", "name: web\n    host: hots-a\n", `services[0].host: unknown host "hots-a" (hosts: host-a, host-b)`},
	{"name: web\n", "name: web\n    protocol: icmp\n", `services[0].protocol: "icmp": want tcp or udp`},
	{"    address: 10.96.0.100:80\n", "", "lab.yaml:14: services[0].address: it is missing"},
	{"10.96.0.100:80", "10.96.0.100", `lab.yaml:15: services[0].address: service "10.96.0.100": no port`},
	{"10.96.0.100:80", "10.1.0.99:80", `"10.1.0.99:80" is in 10.1.0.0/24 of link veth on host-a`},
	{"10.96.0.100:80", "0.0.0.0:80", "want an unused address"},
	{"10.96.0.100:80", "[10.96.0.100:80, 10.96.0.100:80]",
		"services[0].address: service 10.96.0.100:80/any: duplicate frontend"},
	{"[web:8080]", "[wbe:8080]", `lab.yaml:16: services[0].backends[0]: unknown pod "wbe" (pods: web, db, client)`},
	{"[web:8080]", "[host-a:8080]", `unknown pod "host-a"`},
	{"[web:8080]", "[web]", `services[0].backends[0]: "web": want POD:PORT`},
	{"[web:8080]", "[web:0]", "with a port of 1 to 65535"},
	{"[web:8080]", "[]", "services[0].backends: it is missing"},
	{"[web:8080]", "[web:8080, web:8080]", "duplicate"},
	{"[web:8080]\n", "[web:8080]\n  - {name: web, address: 10.96.0.101:80, backends: [db:1]}\n",
		`lab.yaml:17: services[1].name: there is a service "web" already`},
	{"[web:8080]\n", "[web:8080]\n  - {name: b, address: 10.96.0.100:80, backends: [db:1]}\n",
		"lab.yaml:17: services[1].address: service 10.96.0.100:80/any: duplicate frontend"},
	{"[web:8080]\n", "[web:8080]\n---\nname: second\n", "lab.yaml: it has a second document"},
	{"hosts:\n", "hosts: [\n", ": did not find expected"},
	{good, "", "lab.yaml: it is empty"},
	{good, "# nothing\n", "lab.yaml: it is empty"},
	{good, "- a\n", "lab.yaml:1: want an object"},
	{good, "name: x\n", "lab.yaml:1: hosts: it is missing"},
	{good, "name: x\nhosts: \x00\n", "lab.yaml: yaml: control characters"},
	{good, "name: x\nhosts: {" + strings.Repeat("h%d: , ", 65) + "}\n", "at most 64 can be"},
}

// TestBadFiles changes a good file, and checks for one line that begins with the place and names the culprit.
func TestBadFiles(t *testing.T) {
	_, err := read(good)
	testkit.Require(t, err == nil, "%v", err)
	for _, c := range badFiles {
		text := strings.Replace(good, c.from, c.to, 1)
		for i := 0; strings.Contains(text, "%d"); i++ {
			text = strings.Replace(text, "%d", fmt.Sprint(i), 1)
		}
		_, err := read(text)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%q in place of %q: %v", c.to, c.from, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") ||
			!strings.HasPrefix(err.Error(), "lab.yaml:")):
			t.Errorf("%q in place of %q: %v\nwant %s", c.to, c.from, err, c.want)
		}
	}
}

// TestPlan compares the plan of addresses with the documentation.
func TestPlan(t *testing.T) {
	lab := testkit.Must(read(good))(t)
	for name, want := range map[string]string{
		"host-a": "[10.1.0.1 fd00:1::1]", "web": "[10.1.0.10 fd00:1::a]", "db": "[10.1.0.11 fd00:1::b]",
		"host-b": "[10.2.0.1 fd00:2::1]", "client": "[10.2.0.7 fd00:2::a]", "web.service": "[10.96.0.100]", "nobody": "[]",
	} {
		got := fmt.Sprint(lab.Addresses(name))
		testkit.Check(t, got == want, "%s has %s, want %s", name, got, want)
	}
	if got, want := fmt.Sprint(lab.Wires),
		"[{wire1 [{host-a [10.0.1.1/24 fd00:0:1::1/64]} {host-b [10.0.1.2/24 fd00:0:1::2/64]}] 0 0s}]"; got != want {
		t.Errorf("wires %s, want %s", got, want)
	}
}

// TestRoutes walks from each host of some graphs to each other one: as many steps as the shortest path has.
func TestRoutes(t *testing.T) {
	for name, wires := range map[string][]string{
		"chain": {"a b", "b c", "c d"}, "ring": {"a b", "b c", "c d", "d a"}, "star, two apart": {"a b", "c a"},
		"parallel": {"a b", "a b", "b c", "c d", "b d"},
	} {
		t.Run(name, func(t *testing.T) {
			text := "name: x\nhosts: {a: , b: {pods: {p: , q: {link: bridge}}}, c: , d: }\nwires:\n"
			near := map[string][]string{}
			for _, w := range wires {
				from, to, _ := strings.Cut(w, " ")
				near[from], near[to] = append(near[from], to), append(near[to], from)
				text += fmt.Sprintf("- endpoints: [%s, %s]\n", from, to)
			}
			lab := testkit.Must(read(text))(t)
			ends := map[netip.Addr]string{}
			for _, w := range lab.Wires {
				for _, end := range w.Ends {
					for _, prefix := range end.Addresses {
						ends[prefix.Addr()] = end.Host
					}
				}
			}
			for _, from := range lab.Hosts {
				distance := distances(near, from.Name)
				for _, to := range lab.Places() {
					for _, addr := range lab.Addresses(to) {
						want, linked := distance[lab.HostOf(to).Name]
						steps, at := 0, from.Name
						for ; at != lab.HostOf(to).Name && steps < 5; steps++ {
							if at = hop(lab.HostOf(at), ends, addr); at == "" {
								break
							}
						}
						testkit.Check(t, (!linked || at != "" && steps == want) && (linked || at == ""),
							"from %s to %v of %s: %d steps to %q, want %d", from.Name, addr, to, steps, at, want)
					}
				}
			}
		})
	}
}

// distances counts the wires to each host that one reaches.
func distances(near map[string][]string, from string) map[string]int {
	out := map[string]int{from: 0}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		for _, next := range near[queue[0]] {
			if _, seen := out[next]; !seen {
				out[next] = out[queue[0]] + 1
				queue = append(queue, next)
			}
		}
	}
	return out
}

// hop returns the next host for packets to an address; empty without a route.
func hop(h *labfile.Host, ends map[netip.Addr]string, addr netip.Addr) string {
	for _, r := range h.Routes {
		if r.To.Contains(addr) {
			return ends[r.Via]
		}
	}
	return ""
}

// FuzzRead reads any text: a lab, or one line that names the file.
func FuzzRead(f *testing.F) {
	f.Add(good)
	f.Add("name: x\nhosts: {a: &h {pods: {p: {address: ['fd00::/64', 1.2.3.4/8]}}}, b: *h}")
	f.Add("{\"name\": \"x\", \"hosts\": {\"a\": null}}")
	f.Add("<<: [*a]\n? {}\n: ~")
	f.Fuzz(func(t *testing.T, text string) {
		lab, err := read(text)
		if err != nil {
			testkit.Check(t, !strings.Contains(err.Error(), "\n") && strings.HasPrefix(err.Error(), "lab.yaml:"),
				"%q: %v", text, err)
			return
		}
		for _, place := range lab.Places() {
			testkit.Check(t, len(lab.Addresses(place)) == 2, "%s has %v", place, lab.Addresses(place))
		}
	})
}
