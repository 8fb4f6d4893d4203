// SPDX-License-Identifier: Apache-2.0

package report

import (
	"image/color"
	"slices"
	"strings"

	"mustang/internal/result"
)

// ink is a colour of a chart by its role. The drawing library knows only fixed
// colours, so charts are drawn in stand-ins, one per role, which are then
// replaced by CSS variables: that way one chart serves light, dark and paper.
type ink uint8

const (
	inkText ink = iota + 1
	inkMuted
	inkGrid
	inkBand
	inkSurface
	inkBaseline
	inkKernel
	inkIPTables
	inkNFTables
	inkEBPF
	inkSocket
	inkDocker
)

// inks names the CSS variable of each role.
func inks() map[ink]string {
	return map[ink]string{
		inkText: "--text", inkMuted: "--muted", inkGrid: "--grid", inkBand: "--band", inkSurface: "--surface",
		inkBaseline: "--baseline", inkKernel: "--kernel", inkIPTables: "--iptables", inkNFTables: "--nftables",
		inkEBPF: "--ebpf", inkSocket: "--socket", inkDocker: "--docker",
	}
}

// color is the stand-in.
func (i ink) color() color.Color { return color.RGBA{R: 1, B: uint8(i), A: 255} }

// recolour replaces the stand-ins in an SVG document.
func recolour(svg string) string {
	const digits = "0123456789ABCDEF"
	var pairs []string
	for i, name := range inks() {
		standIn := "#0100" + string(digits[i>>4]) + string(digits[i&15])
		pairs = append(pairs, standIn, "var("+name+")")
	}
	return strings.NewReplacer(pairs...).Replace(svg)
}

// kind is what an entry is told apart by in all charts: which part of the
// kernel handles its packets.
type kind struct {
	ink   ink
	class string // CSS class
	name  string // in legends
}

// kinds lists them in the legends' order.
func kinds() []kind {
	return []kind{
		{inkBaseline, "baseline", "baseline, no pod to pod"},
		{inkKernel, "kernel", "kernel, pod IP"},
		{inkIPTables, "iptables", "cluster IP by iptables"},
		{inkNFTables, "nftables", "cluster IP by nftables"},
		{inkDocker, "docker", "published by Docker"},
		{inkEBPF, "ebpf", "eBPF datapath"},
		{inkSocket, "socket", "cluster IP by eBPF at the socket"},
		{inkBaseline, "host", "host only"},
		{inkKernel, "plain", "kernel datapath"},
		{inkKernel, "bridge", "Linux bridge"},
		{inkDocker, "ovs", "Open vSwitch"},
		{inkNFTables, "ovs-bridge", "Open vSwitch below a bridge"},
	}
}

// class is the entry's kind as a CSS class.
func class(e *entry) string {
	switch {
	case e.baseline && namedByID(e.Suite):
		return "host"
	case e.Suite == suiteSwitching:
		return switchClass(e)
	case e.baseline:
		return "baseline"
	case e.Via == result.ViaEBPFSocket:
		return "socket"
	case e.Datapath == result.DatapathEBPF, e.Via == result.ViaEBPFTC:
		return "ebpf"
	case e.Via == result.ViaIPTables, e.Via == result.ViaNFTables, e.Via == result.ViaDocker:
		return e.Via
	case namedByID(e.Suite):
		return "plain"
	}
	return "kernel"
}

// switchClass tells apart what switches an entry's packets.
func switchClass(e *entry) string {
	parts := strings.Split(e.ID, "/")
	for _, class := range []string{"ovs-bridge", "ovs"} {
		if slices.Contains(parts, class) || e.Variant == class {
			return class
		}
	}
	if strings.HasPrefix(e.Link, "ovs") {
		return "ovs"
	}
	return "bridge"
}

// kindOf is the entry's kind.
func kindOf(e *entry) kind {
	for _, k := range kinds() {
		if k.class == class(e) {
			return k
		}
	}
	return kind{inkKernel, "kernel", "kernel"}
}

// legendOf lists the kinds that are among entries.
func legendOf(entries []*entry) []kind {
	seen := map[string]bool{}
	for _, e := range entries {
		seen[class(e)] = true
	}
	var out []kind
	for _, k := range kinds() {
		if seen[k.class] {
			out = append(out, k)
		}
	}
	return out
}

// Class is the CSS class, for the page's template.
func (k kind) Class() string { return k.class }

// Name is the legend's text, for the page's template.
func (k kind) Name() string { return k.name }
