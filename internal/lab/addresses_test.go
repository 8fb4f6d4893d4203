// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"fmt"
	"testing"

	"mustang/internal/lab"
)

func TestAddresses(t *testing.T) {
	const none = "[]"
	underlay := map[string]string{lab.HostA: "[10.0.0.1 fd00:1::1]", lab.HostB: "[10.0.0.2 fd00:1::2]", lab.Host: none, "": none}
	flat := map[string]string{lab.PodA: "[10.0.0.10 fd00:1::a]", lab.PodB: "[10.0.0.11 fd00:1::b]"}
	routed := map[string]string{lab.PodA: "[192.168.10.10 fd00:10::a]", lab.PodB: "[192.168.11.11 fd00:11::b]"}
	segment := map[string]string{lab.PodA: "[192.168.10.10 fd00:10::a]", lab.PodB: "[192.168.10.11 fd00:10::b]"}
	two := func(o lab.Options) lab.Options { o.Topology = lab.TopologyTwoHosts; return o }
	one := func(o lab.Options) lab.Options { o.Topology = lab.TopologyPodToHost; return o }
	on := func(o lab.Options) lab.Options {
		o.Topology, o.Parent = lab.TopologyPodToNetwork, parent
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
