// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"mustang/internal/lab"
	"mustang/internal/lab/labfile"
	"mustang/internal/netns"
	"mustang/internal/podlink"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

func ofFile(t testing.TB, text string) lab.Options {
	t.Helper()
	file := testkit.Must(labfile.Read(strings.NewReader(text), "test.yaml"))(t)
	return options(lab.Options{File: file})
}

// files are labs with all link modes that the kernel of any machine has, side by side.
var files = map[string]string{
	"one host": `
name: one
hosts:
  host-a:
    datapath: ebpf
    pods:
      pod-a: {link: veth}
      pod-b: {link: macvlan}
      pod-c: {link: bridge}
      pod-d: {link: macvlan}
      with-a-long-name: {link: bridge, address: [172.16.5.7/24, "fd77::7/64"]}
services:
- {name: own, address: [10.96.0.1:80, "[fd00:96::1]:80"], backends: [pod-b:9000]}
`,
	"chain": `
name: chain
hosts:
  host-a:
    datapath: ebpf
    pods: {web: {link: veth}, db: {link: macvlan}, other: {link: bridge}, near: {link: macvlan}}
  host-b:
  host-c:
    datapath: ebpf
    pods: {client: {link: bridge}, far: , tap: {link: tap}, tun: {link: tun}}
wires:
- endpoints: [host-b, host-a]
- endpoints: [host-b, host-c]
services:
- {name: web, address: [10.96.0.100:80, "[fd00:96::100]:80"], backends: [web:9000]}
- {name: db, address: [10.96.0.101:80, "[fd00:96::101]:80"], backends: [db:9000], protocol: tcp}
- {name: far, address: [10.96.0.102:80, "[fd00:96::102]:80"], backends: [far:9000], host: host-a}
`,
	"rules": `
name: rules
hosts:
  host-a: {via: nftables, pods: {web: {link: macvlan}, near: {link: macvlan}}}
  host-b: {via: iptables, pods: {client: {link: bridge}, other: {link: bridge}}}
  host-c: {pods: {third: }}
wires:
- endpoints: [host-a, host-b]
- endpoints: [host-b, host-c]
- endpoints: [host-c, host-a]
services:
- {name: web, address: [10.96.0.100:80, "[fd00:96::100]:80"], backends: [web:9000]}
- {name: other, address: [10.96.0.101:80, "[fd00:96::101]:80"], backends: [other:9000]}
`,
	"switches": `
name: switches
hosts:
  host-a: {datapath: ebpf, pods: {a: {link: ovs-veth}, b: {link: ovs-internal}, c: {link: ovs-veth}, d: {link: veth}}}
  host-b: {datapath: ebpf, pods: {e: {link: ovs-internal}, f: }}
wires: [{endpoints: [host-a, host-b]}]
services: [{name: c, address: [10.96.0.100:80, "[fd00:96::100]:80"], backends: [c:9000]}]
`,
}

// otherFiles are labs with link modes that some kernels lack.
var otherFiles = map[string]string{
	"netkit and ipvlan": `
name: other
hosts:
  host-a:
    datapath: ebpf
    pods: {a: {link: netkit}, b: {link: netkit-l2}, c: {link: ipvlan-l2}, d: {link: macvlan}, e: {link: veth}, f: {link: ipvlan-l2}}
  host-b: {pods: {g: {link: ipvlan-l2}, h: {link: netkit}, i: {link: macvlan}}}
wires: [{endpoints: [host-a, host-b]}]
services:
- {name: c, address: [10.96.0.100:80, "[fd00:96::100]:80"], backends: [c:9000]}
- {name: g, address: [10.96.0.101:80, "[fd00:96::101]:80"], backends: [g:9000]}
`,
	"ipvlan-l3": `
name: l3
hosts: {host-a: {datapath: ebpf, pods: {a: {link: ipvlan-l3}, b: {link: ipvlan-l3}, c: {link: ipvlan-l3}}}}
services: [{name: a, address: [10.96.0.100:80, "[fd00:96::100]:80"], backends: [a:9000]}]
`,
}

// TestFileLinks does as TestFile with the other link modes.
func TestFileLinks(t *testing.T) {
	s := store(t)
	for name, text := range otherFiles {
		t.Run(name, func(t *testing.T) {
			for _, mode := range podlink.Modes() {
				if strings.Contains(text, "link: "+mode.Name()+"}") {
					testkit.RequireMode(t, mode.Probe())
				}
			}
			checkFile(t, up(t, s, ofFile(t, text)))
		})
	}
}

// TestFile builds labs of files. All places reach each other, and pods reach services at their backends, over TCP, IPv4
// and IPv6.
func TestFile(t *testing.T) {
	s := store(t)
	for name, text := range files {
		t.Run(name, func(t *testing.T) { checkFile(t, up(t, s, ofFile(t, text))) })
	}
}

func checkFile(t *testing.T, l *lab.Lab) {
	t.Helper()
	file := l.Options.File
	echoes := map[netip.Addr]string{}
	for _, to := range file.Places() {
		for _, addr := range file.Addresses(to) {
			echoes[addr] = testkit.Echo(t, place(t, l, to), "tcp", netip.AddrPortFrom(addr, 8080).String()).String()
		}
	}
	for _, from := range file.Places() {
		for _, to := range file.Places() {
			for _, addr := range file.Addresses(to) {
				_, err := testkit.RoundTrip(t, place(t, l, from), "tcp", echoes[addr], []byte("mustang"))
				testkit.Check(t, err == nil, "%s to %s: %v", from, to, err)
			}
		}
	}
	listening := map[string]bool{}
	for _, h := range file.Hosts {
		for _, translated := range file.Translated(h.Name) {
			for network := range payloads(translated) {
				if at := translated.Backends[0].Addr.String(); !listening[network+at] {
					testkit.Echo(t, backendOf(t, l, translated), network, at)
					listening[network+at] = true
				}
			}
			checkTranslated(t, l, h, translated)
		}
	}
}

// checkTranslated reaches a service from the pods of a host. Its backend alone listens at the backend's port.
func checkTranslated(t *testing.T, l *lab.Lab, h labfile.Host, translated service.Service) {
	t.Helper()
	for network, payload := range payloads(translated) {
		for _, n := range h.Networks {
			for _, p := range n.Pods {
				peer, err := testkit.RoundTrip(t, place(t, l, p.Name), network, translated.Frontend.String(), payload)
				if err != nil {
					t.Errorf("%s by %s to %s: %v", p.Name, network, translated.Frontend, err)
				} else if h.Datapath == labfile.EBPF && !slices.Contains(append(p.Addresses, translated.Frontend.Addr()),
					peer.Addr()) {
					t.Errorf("%s by %s to %s: the backend sees %s", p.Name, network, translated.Frontend, peer)
				}
			}
		}
	}
}

func payloads(s service.Service) map[string][]byte {
	out := map[string][]byte{"tcp": bytes.Repeat([]byte("mustang "), 1<<15)}
	if s.Protocol == service.Any {
		out["udp"] = []byte("mustang")
	}
	return out
}

func backendOf(t *testing.T, l *lab.Lab, s service.Service) *netns.Namespace {
	t.Helper()
	for _, name := range l.Options.File.Places() {
		if slices.Contains(l.Options.File.Addresses(name), s.Backends[0].Addr.Addr()) {
			return place(t, l, name)
		}
	}
	t.Fatalf("nobody has %v", s.Backends[0].Addr)
	return nil
}

// TestFileNames checks the names in a lab of a file, and that the record keeps it.
func TestFileNames(t *testing.T) {
	s := store(t)
	hosts, _, _ := strings.Cut(files["one host"], "services:")
	o := ofFile(t, hosts+
		"  host-b: {datapath: ebpf}\nservices: [{name: web, address: 10.96.0.1:80, backends: [pod-c:1]}]\n")
	up(t, s, o)
	info := testkit.Must(s.Find(o.Name))(t)
	if got, want := strings.Join(s.Places(info), " "),
		"host-a host-b pod-a pod-b pod-d pod-c with-a-long-name"; got != want {
		t.Errorf("places %s, want %s", got, want)
	}
	lines := info.Hosts(s.Places(info))
	for _, line := range []string{
		"10.96.0.1\tweb.service", "10.1.0.1\thost-a", "fd00:2::1\thost-b", "10.1.1.10\tpod-b", "fd00:1:1::a\tpod-b",
		"10.1.1.11\tpod-d",
		"10.1.0.10\tpod-a", "172.16.5.10\tpod-c", "172.16.5.7\twith-a-long-name", "fd77::7\twith-a-long-name",
		"fd77::a\tpod-c",
	} {
		testkit.Check(t, strings.Contains(lines, line+"\n"), "no line %q in\n%s", line, lines)
	}
	root := s.BPFRoot(info, "host-b")
	testkit.Check(t, strings.HasSuffix(root, o.Name+".bpf/host-b"), "the datapath of host-b is in %s", root)
}

// TestFileUnsupported uses a link mode that the kernel lacks: the error is the same as for a topology.
func TestFileUnsupported(t *testing.T) {
	s := store(t)
	for _, mode := range podlink.Modes() {
		want := mode.Probe()
		if want == nil {
			continue
		}
		o := ofFile(t, fmt.Sprintf("name: x\nhosts: {host-a: {pods: {b: {link: %s}}}}\n", mode.Name()))
		l, err := s.Up(context.Background(), o)
		if err == nil {
			t.Fatal(errors.Join(errors.New("the lab is up"), l.Close()))
		}
		testkit.Check(t, err.Error() == "lab "+o.Name+": "+want.Error(), "error %v, want that of %v", err, want)
		left := leftovers(t, o.Name, s.Dir)
		testkit.Check(t, len(left) == 0, "left behind: %q", left)
	}
	o := ofFile(t, files["one host"])
	o.Link = "veth"
	_, err := s.Up(context.Background(), o)
	testkit.Check(t, errors.As(err, new(*lab.OptionError)), "a file with a link: %v", err)
}

// TestFileWires sends over the second of two wires, which alone is slow.
func TestFileWires(t *testing.T) {
	s := store(t)
	l := up(t, s, ofFile(t, `
name: wires
hosts: {a: {pods: {p: }}, b: , c: {pods: {q: }}}
wires: [{endpoints: [a, b]}, {endpoints: [c, b], rate: 20mbit}]
`))
	if far := roundTrip(t, l, [2]string{"p", "q"}, slowPayload); far < slowTime {
		t.Errorf("%d bytes crossed a wire of %d bit/s in %v, which takes %v", slowPayload, slowRate, far, slowTime)
	}
	near := roundTrip(t, l, [2]string{"p", "b"}, slowPayload)
	for range 20 { // a busy machine may take its time once
		near = min(near, roundTrip(t, l, [2]string{"p", "b"}, slowPayload))
	}
	testkit.Check(t, near < slowTime, "%d bytes crossed a wire without a rate in %v", slowPayload, near)
}
