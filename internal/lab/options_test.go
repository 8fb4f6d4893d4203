// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"context"
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
)

// TestTwoHostsOptions checks that an error names each invalid option before anything is
// written.
func TestTwoHostsOptions(t *testing.T) {
	s := lab.Store{Dir: t.TempDir() + "/state"}
	for culprit, o := range map[string]lab.Options{
		"link host":           {Topology: lab.TopologyPodLinks, Link: lab.LinkHost},
		"link host-bridge":    {Topology: lab.TopologyPodLinks, Link: lab.LinkHostBridge},
		"overlay vxlan":       {Topology: lab.TopologyPodLinks, Link: "bridge", Overlay: lab.OverlayVXLAN},
		"nat: only":           {Topology: lab.TopologyPodLinks, Link: "bridge", NAT: true},
		"wire rate and":       {Topology: lab.TopologyPodLinks, Link: "bridge", WireRate: 1e9},
		"and wire delay":      {Topology: lab.TopologyPodLinks, Link: "bridge", WireDelay: time.Millisecond},
		"no-proxy":            {Topology: lab.TopologyTwoHosts, Link: "bridge", NoProxy: true},
		`overlay "geneve"`:    {Link: "bridge", Overlay: "geneve"},
		"not veth":            {Link: "veth", Overlay: lab.OverlayVXLAN},
		"not host":            {Link: lab.LinkHost, Overlay: lab.OverlayVXLAN},
		"not ovs-veth":        {Link: "ovs-veth", Overlay: lab.OverlayBridgedVeth},
		"lacks pods":          {Topology: lab.TopologyPodToHost, Link: "bridge", Overlay: lab.OverlayVXLAN},
		"nat: not with":       {Link: "bridge", Overlay: lab.OverlayVXLAN, NAT: true},
		"nat: takes":          {Link: "macvlan", NAT: true},
		"not host-bridge":     {Link: lab.LinkHostBridge, NAT: true},
		"via nftables":        {Link: "bridge", Via: lab.ViaNFTables},
		"via ebpf-socket":     {Link: "bridge", Via: lab.ViaEBPFSocket},
		"datapath ebpf":       {Link: "veth", Datapath: lab.DatapathEBPF},
		"only with link":      {Topology: lab.TopologyPodToHost, Link: "bridge", Datapath: lab.DatapathEBPF},
		"without nat":         {Topology: lab.TopologyPodToHost, Link: "veth", NAT: true, Datapath: lab.DatapathEBPF},
		"guests: take links":  {Link: "bridge", Guests: true},
		"wire rate 1000":      {Link: "bridge", WireRate: 1000},
		"wire delay -1":       {Link: "bridge", WireDelay: -1},
		"wire delay 1h":       {Link: "bridge", WireDelay: time.Hour},
		"wire delay 999ns":    {Link: "bridge", WireDelay: time.Microsecond - 1},
		"wire delay 2s":       {Topology: lab.TopologyDocker, Link: "bridge", WireDelay: 2 * time.Second},
		"offload":             {Link: lab.LinkHost, Offload: true},
		"netfilter call":      {Link: lab.LinkHostBridge, NetfilterCall: true},
		"--big-tcp: takes":    {Link: "tun", BigTCP: true},
		"--big-tcp: not with": {Link: "bridge", Overlay: lab.OverlayVXLAN, BigTCP: true},
		"unknown link mode ":  {Link: "token-ring"},
	} {
		t.Run(culprit, func(t *testing.T) {
			o.Name = "x"
			if o.Topology == "" {
				o.Topology = lab.TopologyTwoHosts
			}
			_, err := s.Up(t.Context(), o)
			var option *lab.OptionError
			if !errors.As(err, &option) || !strings.Contains(err.Error(), culprit) {
				t.Errorf("error %v, want an OptionError that names %q", err, culprit)
			}
			if _, err := os.Stat(s.Dir); !errors.Is(err, fs.ErrNotExist) {
				t.Error("something was written")
			}
		})
	}
}

// TestOptions checks that an error names the invalid option.
func TestOptions(t *testing.T) {
	s := lab.Store{Dir: t.TempDir() + "/state"}
	for name, test := range map[string]struct {
		options lab.Options
		culprit string
	}{
		"name":     {lab.Options{Name: "../x", Topology: "pod-links", Link: "veth"}, "../x"},
		"topology": {lab.Options{Name: "x", Topology: "ring", Link: "veth"}, "ring"},
		"link":     {lab.Options{Name: "x", Topology: "pod-links", Link: "token-ring"}, "token-ring"},
		"datapath": {lab.Options{Name: "x", Topology: "pod-links", Link: "veth", Datapath: "magic"}, "magic"},
		"via":      {lab.Options{Name: "x", Topology: "pod-links", Link: "veth", Datapath: "ebpf", Via: "iptables"}, "iptables"},
		"call":     {lab.Options{Name: "x", Topology: "pod-links", Link: "veth", NetfilterCall: true}, "bridge"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Up(context.Background(), test.options)
			var option *lab.OptionError
			if !errors.As(err, &option) || !strings.Contains(err.Error(), test.culprit) {
				t.Errorf("error %v, want an OptionError that names %q", err, test.culprit)
			}
			if _, err := os.Stat(s.Dir); !errors.Is(err, fs.ErrNotExist) {
				t.Error("something was written")
			}
		})
	}
}

func TestDockerOptions(t *testing.T) {
	s := lab.Store{Dir: t.TempDir() + "/state"}
	for name, o := range map[string]lab.Options{
		"link \"veth\"":    {Link: "veth"},
		"datapath ebpf":    {Link: "bridge", Datapath: lab.DatapathEBPF},
		"guests":           {Link: "bridge", Guests: true},
		"overlay":          {Link: "bridge", Overlay: lab.OverlayVXLAN},
		"not in pod-links": {Topology: "pod-links", Link: "bridge", NoProxy: true},
		"via iptables":     {Link: "bridge", Via: lab.ViaIPTables},
		"netfilter call":   {Link: "bridge", NetfilterCall: true},
	} {
		t.Run(name, func(t *testing.T) {
			if o.Topology == "" {
				o.Topology = lab.TopologyDocker
			}
			_, err := s.Up(t.Context(), options(o))
			var option *lab.OptionError
			if !errors.As(err, &option) || !strings.Contains(err.Error(), name) {
				t.Errorf("error %v, want an OptionError that says %q", err, name)
			}
		})
	}
}

// TestGuestOptions checks that options that exclude guests are errors.
func TestGuestOptions(t *testing.T) {
	s := store(t)
	for name, o := range map[string]lab.Options{
		"link":     {Link: "veth", Guests: true},
		"no guest": {Link: "ovs-tap"},
		"datapath": {Link: "tap", Guests: true, Datapath: lab.DatapathEBPF},
		"service":  {Link: "tap", Guests: true, Via: lab.ViaIPTables},
		"offload":  {Link: "tap", Guests: true, Offload: true},
	} {
		_, err := s.Up(context.Background(), options(o))
		if wrong := (*lab.OptionError)(nil); !errors.As(err, &wrong) {
			t.Errorf("%s: error %v, want an OptionError", name, err)
		}
	}
}

// TestPodToNetworkOptions checks that an error names each invalid option before anything
// is written.
func TestPodToNetworkOptions(t *testing.T) {
	s := lab.Store{Dir: t.TempDir() + "/state"}
	on := func(change func(*lab.UplinkDevice)) lab.UplinkDevice {
		p := uplinkDevice
		change(&p)
		return p
	}
	host := func(text string) lab.UplinkDevice {
		return on(func(p *lab.UplinkDevice) { p.Host = netip.MustParsePrefix(text) })
	}
	for culprit, o := range map[string]lab.Options{
		"no device named":                     {Uplink: on(func(p *lab.UplinkDevice) { p.Name = "" })},
		"uplink address invalid Prefix":       {Uplink: on(func(p *lab.UplinkDevice) { p.Pod = netip.Prefix{} })},
		"uplink address fd00::1/64: want":     {Uplink: host("fd00::1/64")},
		"10.7.0.0/24: not a host address":     {Uplink: host("10.7.0.0/24")},
		"10.7.0.255/24: not a host address":   {Uplink: host("10.7.0.255/24")},
		"224.0.0.1/24: not a host address":    {Uplink: host("224.0.0.1/24")},
		"127.0.0.1/8: not a host address":     {Uplink: host("127.0.0.1/8")},
		"10.7.0.50/31: not a host address":    {Uplink: host("10.7.0.50/31")},
		"10.7.0.50/25 and 10.7.0.51/24":       {Uplink: host("10.7.0.50/25")},
		"10.7.1.50/24 and 10.7.0.51/24":       {Uplink: host("10.7.1.50/24")},
		"10.7.0.51/24: given twice":           {Uplink: host("10.7.0.51/24")},
		"labs reserve 198.18.11":              {Uplink: host("198.18.0.1/15")},
		"only topology pod-to-network":        {Topology: lab.TopologyPodToHost, Uplink: uplinkDevice},
		"link bridge: topology":               {Uplink: uplinkDevice, Link: "bridge"},
		"link host: topology":                 {Uplink: uplinkDevice, Link: lab.LinkHost},
		"link ipvlan-l3: topology":            {Uplink: uplinkDevice, Link: "ipvlan-l3"},
		"nat: takes":                          {Uplink: uplinkDevice, Link: "macvlan", NAT: true},
		"overlay vxlan":                       {Uplink: uplinkDevice, Link: "bridge", Overlay: lab.OverlayVXLAN},
		"wire rate and":                       {Uplink: uplinkDevice, WireRate: 1e9},
		"datapath ebpf":                       {Uplink: uplinkDevice, Link: "macvlan", Datapath: lab.DatapathEBPF},
		"via nftables: topology pod-to-netwo": {Uplink: uplinkDevice, Via: lab.ViaNFTables},
	} {
		t.Run(culprit, func(t *testing.T) {
			o.Name = "x"
			if o.Topology == "" {
				o.Topology = lab.TopologyPodToNetwork
			}
			if o.Link == "" {
				o.Link = "veth"
			}
			_, err := s.Up(t.Context(), o)
			var option *lab.OptionError
			if !errors.As(err, &option) || !strings.Contains(err.Error(), culprit) {
				t.Errorf("error %v, want an OptionError that names %q", err, culprit)
			}
			if _, err := os.Stat(s.Dir); !errors.Is(err, fs.ErrNotExist) {
				t.Error("something was written")
			}
		})
	}
}

func TestNodeOptions(t *testing.T) {
	for culprit, o := range map[string]lab.Options{
		"lacks pods":         {Link: "veth"},
		"link host-bridge":   {Link: lab.LinkHostBridge},
		"neither pods nor":   {Link: lab.LinkHost, Datapath: lab.DatapathEBPF},
		"via nftables":       {Link: lab.LinkHost, Via: lab.ViaNFTables},
		"one host only":      {Link: lab.LinkHost, WireRate: 1e9},
		"an absolute path":   {Link: lab.LinkHost, Disk: "here"},
		"overlay, nat, wire": {Link: lab.LinkHost, NAT: true},
	} {
		o.Name, o.Topology = "x", lab.TopologyNode
		_, err := lab.Store{Dir: t.TempDir() + "/state"}.Up(t.Context(), o)
		var option *lab.OptionError
		if !errors.As(err, &option) || !strings.Contains(err.Error(), culprit) {
			t.Errorf("error %v, want an OptionError that names %q", err, culprit)
		}
	}
}

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range left {
		t.Errorf("left: %s", filepath.Join(dir, entry.Name()))
	}
}

func TestAddresses(t *testing.T) {
	const none = "[]"
	underlay := map[string]string{lab.HostA: "[10.0.0.1 fd00:1::1]", lab.HostB: "[10.0.0.2 fd00:1::2]", lab.Host: none, "": none}
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
		{on(lab.Options{Link: "macvlan"}), []map[string]string{{lab.HostB: "[10.7.0.50]", lab.PodB: "[10.7.0.51]", lab.HostA: none}}},
		{on(lab.Options{Link: "bridge", NAT: true}), []map[string]string{{lab.HostB: "[10.7.0.50]", lab.PodB: "[198.18.11.11]"}}},
		{lab.Options{Topology: lab.TopologyPodLinks, Link: "veth"}, []map[string]string{segment, {
			lab.Host: "[192.168.10.1 fd00:10::1]", lab.HostA: none,
		}}},
		{lab.Options{Topology: "ring", Link: "veth"}, []map[string]string{{lab.HostA: none, lab.PodA: none}}},
	} {
		for _, want := range test.want {
			for place, addrs := range want {
				if got := fmt.Sprint(lab.Addresses(test.options, place)); got != addrs {
					t.Errorf("%+v: %s is at %s, want %s", test.options, place, got, addrs)
				}
			}
		}
	}
}
