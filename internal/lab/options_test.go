// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mustang/internal/lab"
	"mustang/internal/testkit"
)

// wrongOptions are options of a topology with one wrong option, which the error names.
type wrongOptions struct {
	topology, culprit string
	options           lab.Options
}

func allWrongOptions() []wrongOptions {
	host := func(text string) lab.Options {
		device := uplinkDevice
		device.Host, _ = netip.ParsePrefix(text)
		return lab.Options{Uplink: device}
	}
	const links, hosts, network = lab.TopologyPodLinks, lab.TopologyTwoHosts, lab.TopologyPodToNetwork
	const docker, node = lab.TopologyDocker, lab.TopologyNode
	return []wrongOptions{
		{links, `lab name "../x"`, lab.Options{Name: "../x"}},
		{"ring", `unknown topology "ring"`, lab.Options{}},
		{links, `unknown link mode "token-ring"`, lab.Options{Link: "token-ring"}},
		{links, `datapath "magic"`, lab.Options{Datapath: "magic"}},
		{links, `via "iptables": datapath ebpf takes`, lab.Options{Datapath: lab.DatapathEBPF, Via: lab.ViaIPTables}},
		{links, "link host: only in topologies two-hosts, pod-to-host, node", lab.Options{Link: lab.LinkHost}},
		{links, "overlay vxlan: only in topology two-hosts", lab.Options{Link: "bridge", Overlay: lab.OverlayVXLAN}},
		{links, "nat: only", lab.Options{Link: "bridge", NAT: true}},
		{network, "wire rate and wire delay: only", lab.Options{Uplink: uplinkDevice, WireDelay: time.Millisecond}},
		{docker, "datapath ebpf: only", lab.Options{Link: "bridge", Datapath: lab.DatapathEBPF}},
		{lab.TopologyPodToHost, "via nftables: only", lab.Options{Via: lab.ViaNFTables}},
		{lab.TopologyPodToHost, "services 5: only", lab.Options{Services: 5}},
		{hosts, "services of topology two-hosts: takes links veth, ", lab.Options{Link: "bridge", Via: lab.ViaNFTables}},
		{hosts, "via nftables: not with nat", lab.Options{Via: lab.ViaNFTables, NAT: true}},
		{hosts, "policy nftables: only", lab.Options{Policy: lab.ViaNFTables, PolicyRules: 1}},
		{hosts, "no-proxy: only", lab.Options{NoProxy: true}},
		{hosts, "uplink uplink: only", lab.Options{Uplink: uplinkDevice}},
		{docker, "netfilter call: only", lab.Options{Link: "bridge", NetfilterCall: true}},
		{docker, "guests: only", lab.Options{Link: "bridge", Guests: true}},
		{docker, `link "veth": topology docker has link bridge`, lab.Options{}},
		{docker, "wire delay 2s", lab.Options{Link: "bridge", WireDelay: 2 * time.Second}},
		{node, "link veth: topology node lacks pods", lab.Options{}},
		{node, "want an absolute path", lab.Options{Link: lab.LinkHost, Disk: "here"}},
		{hosts, `overlay "geneve"`, lab.Options{Link: "bridge", Overlay: "geneve"}},
		{hosts, "overlay vxlan: takes links veth, bridge, ", lab.Options{Link: "macvlan", Overlay: lab.OverlayVXLAN}},
		{hosts, "overlay vxlan-ovs-veth: takes links", lab.Options{Link: "ovs-veth", Overlay: lab.OverlayBridgedVeth}},
		{hosts, "overlay vxlan: not with nat", lab.Options{Link: "bridge", Overlay: lab.OverlayVXLAN, NAT: true}},
		{hosts, "or --big-tcp", lab.Options{Link: "bridge", Overlay: lab.OverlayVXLAN, BigTCP: true}},
		{hosts, "nat: takes links", lab.Options{Link: "macvlan", NAT: true}},
		{links, "netfilter call: takes links bridge", lab.Options{NetfilterCall: true}},
		{hosts, "offload: takes links", lab.Options{Link: lab.LinkHost, Offload: true}},
		{links, "--big-tcp: takes links", lab.Options{Link: "tun", BigTCP: true}},
		{lab.TopologyPodToHost, "datapath ebpf of topology pod-to-host: takes links", lab.Options{Link: "bridge",
			Datapath: lab.DatapathEBPF}},
		{hosts, "datapath ebpf of topology two-hosts: takes links", lab.Options{Link: "bridge", Datapath: lab.DatapathEBPF}},
		{lab.TopologyPodToHost, "datapath ebpf: not with nat", lab.Options{NAT: true, Datapath: lab.DatapathEBPF}},
		{network, "topology pod-to-network without nat: takes links", lab.Options{Uplink: uplinkDevice, Link: "bridge"}},
		{hosts, "wire rate 1000", lab.Options{WireRate: 1000}},
		{hosts, "wire delay -1", lab.Options{WireDelay: -1}},
		{hosts, "wire delay 999ns", lab.Options{WireDelay: time.Microsecond - 1}},
		{links, "guests: takes links", lab.Options{Guests: true}},
		{links, "link ovs-tap: only for guests", lab.Options{Link: "ovs-tap"}},
		{links, "datapath ebpf: not for guests", lab.Options{Link: "tap", Guests: true, Datapath: lab.DatapathEBPF}},
		{links, "via iptables: guests", lab.Options{Link: "tap", Guests: true, Via: lab.ViaIPTables}},
		{links, "offload: only for links between namespaces", lab.Options{Link: "tap", Guests: true, Offload: true}},
		{links, "services -1: want", lab.Options{Via: lab.ViaIPTables, Services: -1}},
		{links, "services 100001: want", lab.Options{Via: lab.ViaIPTables, Services: lab.MaxServices + 1}},
		{links, "services 5: want an implementation", lab.Options{Services: 5}},
		{links, "policy rules 0", lab.Options{Policy: lab.ViaIPTables}},
		{links, "policy rules 20001", lab.Options{Policy: lab.ViaIPTables, PolicyRules: lab.MaxPolicyRules + 1}},
		{links, `policy "ebpf-tc"`, lab.Options{Policy: lab.ViaEBPFTC, PolicyRules: 1}},
		{links, "link macvlan pass no rules", lab.Options{Link: "macvlan", Policy: lab.ViaNFTables, PolicyRules: 1}},
		{links, "not with the rules of services", lab.Options{Via: lab.ViaIPTables, Policy: lab.ViaNFTables, PolicyRules: 1}},
		{links, "no source guard", lab.Options{Unguarded: true}},
		{network, "by --uplink", lab.Options{}},
		{network, "uplink address invalid Prefix", host("")},
		{network, "uplink address fd00::1/64: want", host("fd00::1/64")},
		{network, "10.7.0.0/24: not a host address", host("10.7.0.0/24")},
		{network, "10.7.0.255/24: not a host address", host("10.7.0.255/24")},
		{network, "127.0.0.1/8: not a host address", host("127.0.0.1/8")},
		{network, "10.7.0.50/25 and 10.7.0.51/24", host("10.7.0.50/25")},
		{network, "want two addresses of one network", host("10.7.0.51/24")},
		{network, "labs reserve 198.18.11", host("198.18.0.1/15")},
	}
}

// TestOptions checks for an error that names each invalid option, before anything is written. Options without an
// error are valid.
func TestOptions(t *testing.T) {
	s := lab.Store{Dir: t.TempDir() + "/state"}
	for _, test := range allWrongOptions() {
		t.Run(test.topology+"/"+test.culprit, func(t *testing.T) {
			o := test.options
			o.Topology, o.Name, o.Link = test.topology, cmp.Or(o.Name, "x"), cmp.Or(o.Link, "veth")
			_, err := s.Up(t.Context(), o)
			var option *lab.OptionError
			testkit.Check(t, errors.As(err, &option) && strings.Contains(err.Error(), test.culprit),
				"error %v, want an OptionError that names %q", err, test.culprit)
			_, err = os.Stat(s.Dir)
			testkit.Check(t, errors.Is(err, fs.ErrNotExist), "something was written")
		})
	}
}

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	left := testkit.Must(os.ReadDir(dir))(t)
	for _, entry := range left {
		t.Errorf("left: %s", filepath.Join(dir, entry.Name()))
	}
}

func TestAddresses(t *testing.T) {
	const none = "[]"
	underlay := map[string]string{lab.HostA: "[10.0.0.1 fd00:1::1]", lab.HostB: "[10.0.0.2 fd00:1::2]",
		lab.Host: none, "": none}
	flat := map[string]string{lab.PodA: "[10.0.0.10 fd00:1::a]", lab.PodB: "[10.0.0.11 fd00:1::b]"}
	routed := map[string]string{lab.PodA: "[192.168.10.10 fd00:10::a]", lab.PodB: "[192.168.11.11 fd00:11::b]"}
	segment := map[string]string{lab.PodA: "[192.168.10.10 fd00:10::a]", lab.PodB: "[192.168.10.11 fd00:10::b]"}
	two := func(o lab.Options) lab.Options { o.Topology = lab.TopologyTwoHosts; return o }
	one := func(o lab.Options) lab.Options { o.Topology = lab.TopologyPodToHost; return o }
	on := func(o lab.Options) lab.Options {
		o.Topology, o.Uplink = lab.TopologyPodToNetwork, uplinkDevice
		return o
	}
	for _, test := range []struct {
		options lab.Options
		want    []map[string]string
	}{
		{two(lab.Options{Link: lab.LinkHost}), []map[string]string{underlay, {lab.PodA: none, lab.PodB: none}}},
		{two(lab.Options{Link: lab.LinkHostBridge}), []map[string]string{underlay, {lab.PodA: none, lab.PodB: none}}},
		{two(lab.Options{Link: "bridge"}), []map[string]string{underlay, flat}},
		{two(lab.Options{Link: "ipvlan-l3s", Overlay: lab.OverlayNone}), []map[string]string{underlay, flat}},
		{two(lab.Options{Link: "ovs-internal"}), []map[string]string{underlay, flat}},
		{two(lab.Options{Link: "netkit"}), []map[string]string{underlay, routed}},
		{two(lab.Options{Link: "bridge", NAT: true}), []map[string]string{underlay, routed}},
		{two(lab.Options{Link: "ovs-veth", Overlay: lab.OverlayVXLAN}), []map[string]string{underlay, segment}},
		{two(lab.Options{Link: "bridge", Overlay: lab.OverlayBridgedVeth}), []map[string]string{underlay, segment}},
		{one(lab.Options{Link: "macvlan"}), []map[string]string{underlay, {lab.PodA: none, lab.PodB: flat[lab.PodB]}}},
		{one(lab.Options{Link: "veth"}), []map[string]string{underlay, {lab.PodA: none, lab.PodB: routed[lab.PodB]}}},
		{on(lab.Options{Link: "macvlan"}), []map[string]string{{lab.HostB: "[10.7.0.50]", lab.PodB: "[10.7.0.51]",
			lab.HostA: none}}},
		{on(lab.Options{Link: "bridge", NAT: true}),
			[]map[string]string{{lab.HostB: "[10.7.0.50]", lab.PodB: "[198.18.11.11]"}}},
		{lab.Options{Topology: lab.TopologyPodLinks, Link: "veth"}, []map[string]string{segment, {
			lab.Host: "[192.168.10.1 fd00:10::1]", lab.HostA: none,
		}}},
		{lab.Options{Topology: "ring", Link: "veth"}, []map[string]string{{lab.HostA: none, lab.PodA: none}}},
	} {
		for _, want := range test.want {
			for place, addrs := range want {
				got := fmt.Sprint(lab.Addresses(test.options, place))
				testkit.Check(t, got == addrs, "%+v: %s is at %s, want %s", test.options, place, got, addrs)
			}
		}
	}
}
