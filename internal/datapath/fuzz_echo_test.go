// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"net/netip"
	"slices"

	"mustang/internal/datapath/objects"
)

// toHost reports whether a frame that came in is for the host.
func (o outcome) toHost() bool { return bytes.Equal(o.in[:6], make([]byte, 6)) }

// mustEcho reports whether the packet is an echo request to a service, and of a kind that is answered.
func (n *node) mustEcho(o outcome, seen view) bool {
	header, from := 20, seen.src.Addr()
	if seen.v6 {
		header = 40
	}
	if !seen.echo || seen.first || seen.later || seen.l4 != seen.l3+header || from.IsMulticast() || from.IsUnspecified() ||
		from.Is4() && (from.As4()[0] == 0 || from.As4()[0] >= 224) {
		return false
	}
	service := slices.ContainsFunc(n.worlds, func(w *world) bool {
		return slices.Contains([]netip.Addr{w.service.Addr(), w.other.Addr()}, seen.dst.Addr())
	})
	return service && (o.hook.Program == "from_pod" || o.hook.Program == "from_uplink" && o.toHost())
}

// wrongEcho tells what is wrong with the answer to an echo request.
func (n *node) wrongEcho(o outcome, seen view) string {
	switch {
	case !n.mustEcho(o, seen):
		return "no echo request to a service, and answered"
	case o.counted["icmp_echo"] == 0 || o.action != actionRedirect:
		return "an echo request to a service, and not answered"
	}
	want, hops, check := bytes.Clone(o.in), seen.l3+8, seen.l3+10
	want[seen.l4] = 0
	if seen.v6 {
		hops, check = seen.l3+7, 0
		want[seen.l4] = 129
	}
	if o.hook.Point != objects.AttachTun {
		copy(want, o.in[6:12])
		copy(want[6:], o.in[:6])
	}
	ends := seen.addresses(want)
	copy(ends, slices.Concat(ends[len(ends)/2:], ends[:len(ends)/2]))
	want[hops] = 64
	residue := func(b []byte) [2]uint16 { // of sums that include their checksum
		if seen.v6 {
			return [2]uint16{sum(seen.addresses(b), b[seen.l4:]) % 0xffff}
		}
		return [2]uint16{sum(b[seen.l4:]) % 0xffff, sum(b[seen.l3:seen.l3+20]) % 0xffff}
	}
	if residue(o.in) != residue(o.out) {
		return "a checksum of the answer is wrong"
	}
	for _, at := range []int{check, seen.l4 + 2} {
		if at != 0 {
			copy(want[at:at+2], o.out[at:at+2])
		}
	}
	if !bytes.Equal(o.out, want) {
		return "the answer is not the request, sent back"
	}
	return ""
}
