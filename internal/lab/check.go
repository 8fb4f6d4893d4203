// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"slices"
	"strings"
	"time"
)

// Limits of the wire between two hosts.
const (
	minWireRate  = 1_000_000
	maxWireRate  = 400_000_000_000
	minWireDelay = time.Microsecond // what netem is told in
	maxWireDelay = time.Second
)

// checkPodLinks refuses what needs two hosts.
func checkPodLinks(o Options) error {
	switch {
	case o.hostsOnly():
		return optionErrorf("link %s: only in topologies %s and %s", o.Link, TopologyTwoHosts, TopologyPodToHost)
	case o.overlaid():
		return optionErrorf("overlay %s: only in topology %s", o.Overlay, TopologyTwoHosts)
	case o.NAT:
		return optionErrorf("nat: only in topologies %s and %s", TopologyTwoHosts, TopologyPodToHost)
	case o.WireRate != 0 || o.WireDelay != 0:
		return optionErrorf("wire rate and wire delay: topology %s has no wire", o.Topology)
	}
	return nil
}

// checkTwoHosts refuses what two hosts with a pod each can't have.
func checkTwoHosts(o Options) error {
	if o.Datapath == DatapathEBPF {
		return optionErrorf("datapath ebpf: in topology %s, only %s and %s have one",
			o.Topology, TopologyPodLinks, TopologyPodToHost)
	}
	return o.checkHosts()
}

// checkPodToHost refuses what a pod and a plain machine can't have.
func checkPodToHost(o Options) error {
	switch {
	case o.overlaid():
		return optionErrorf("overlay %s: host-a of topology %s has no pods, only %s has two ends",
			o.Overlay, o.Topology, TopologyTwoHosts)
	case o.Datapath == DatapathEBPF && (o.Link != "veth" || o.NAT):
		return optionErrorf("datapath ebpf: in topology %s only with link veth, without nat", o.Topology)
	}
	return o.checkHosts()
}

// checkHosts refuses what no two hosts can have.
func (o Options) checkHosts() error {
	overlays := map[string][]string{
		"": nil, OverlayNone: nil,
		OverlayVXLAN:           {"bridge", "tap", "ovs-veth", "ovs-internal", "ovs-tap"},
		OverlayBridgedVeth:     {"bridge", "tap"},
		OverlayBridgedInternal: {"bridge", "tap"},
	}
	links, known := overlays[o.Overlay]
	switch {
	case !known:
		return optionErrorf("overlay %q: want %s, %s, %s or %s",
			o.Overlay, OverlayNone, OverlayVXLAN, OverlayBridgedVeth, OverlayBridgedInternal)
	case o.overlaid() && !slices.Contains(links, o.Link):
		return optionErrorf("overlay %s: takes links %s, not %s", o.Overlay, strings.Join(links, ", "), o.Link)
	case o.NAT && o.overlaid():
		return optionErrorf("nat: not with overlay %s, where no packet of a pod leaves by the wire", o.Overlay)
	case o.NAT && o.Link != "bridge" && o.Link != "veth":
		return optionErrorf("nat: takes links bridge and veth, not %s", o.Link)
	case o.Via != ViaNone && o.Via != ViaEBPFTC:
		return optionErrorf("via %s: topology %s has no service", o.Via, o.Topology)
	}
	return CheckWire(o.WireRate, o.WireDelay)
}

// CheckWire returns an [*OptionError] if no wire can have that rate, in bits per
// second, or that delay; 0 is neither.
func CheckWire(rate uint64, delay time.Duration) error {
	switch {
	case rate != 0 && (rate < minWireRate || rate > maxWireRate):
		return optionErrorf("wire rate %d: want 1 Mbit/s to 400 Gbit/s, or 0", rate)
	case delay != 0 && (delay < minWireDelay || delay > maxWireDelay):
		return optionErrorf("wire delay %v: want %v to %v, or 0", delay, minWireDelay, maxWireDelay)
	}
	return nil
}
