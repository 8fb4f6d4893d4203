// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"mustang/internal/lab"
)

// TestTwoHostsOptions has each setting where it makes no sense, which the error
// names before anything is written.
func TestTwoHostsOptions(t *testing.T) {
	s := lab.Store{Dir: t.TempDir() + "/state"}
	for culprit, o := range map[string]lab.Options{
		"link host":          {Topology: lab.TopologyPodLinks, Link: lab.LinkHost},
		"link host-bridge":   {Topology: lab.TopologyPodLinks, Link: lab.LinkHostBridge},
		"overlay vxlan":      {Topology: lab.TopologyPodLinks, Link: "bridge", Overlay: lab.OverlayVXLAN},
		"nat: only":          {Topology: lab.TopologyPodLinks, Link: "bridge", NAT: true},
		"wire rate and":      {Topology: lab.TopologyPodLinks, Link: "bridge", WireRate: 1e9},
		"and wire delay":     {Topology: lab.TopologyPodLinks, Link: "bridge", WireDelay: time.Millisecond},
		"no-proxy":           {Topology: lab.TopologyTwoHosts, Link: "bridge", NoProxy: true},
		`overlay "geneve"`:   {Link: "bridge", Overlay: "geneve"},
		"not veth":           {Link: "veth", Overlay: lab.OverlayVXLAN},
		"not host":           {Link: lab.LinkHost, Overlay: lab.OverlayVXLAN},
		"not ovs-veth":       {Link: "ovs-veth", Overlay: lab.OverlayBridgedVeth},
		"has no pods":        {Topology: lab.TopologyPodToHost, Link: "bridge", Overlay: lab.OverlayVXLAN},
		"nat: not with":      {Link: "bridge", Overlay: lab.OverlayVXLAN, NAT: true},
		"nat: takes":         {Link: "macvlan", NAT: true},
		"not host-bridge":    {Link: lab.LinkHostBridge, NAT: true},
		"via nftables":       {Link: "bridge", Via: lab.ViaNFTables},
		"via ebpf-socket":    {Link: "bridge", Via: lab.ViaEBPFSocket},
		"datapath ebpf":      {Link: "veth", Datapath: lab.DatapathEBPF},
		"only with link":     {Topology: lab.TopologyPodToHost, Link: "bridge", Datapath: lab.DatapathEBPF},
		"without nat":        {Topology: lab.TopologyPodToHost, Link: "veth", NAT: true, Datapath: lab.DatapathEBPF},
		"guests have":        {Link: "bridge", Guests: true},
		"wire rate 1000":     {Link: "bridge", WireRate: 1000},
		"wire delay -1":      {Link: "bridge", WireDelay: -1},
		"wire delay 1h":      {Link: "bridge", WireDelay: time.Hour},
		"wire delay 999ns":   {Link: "bridge", WireDelay: time.Microsecond - 1},
		"wire delay 2s":      {Topology: lab.TopologyDocker, Link: "bridge", WireDelay: 2 * time.Second},
		"offload":            {Link: lab.LinkHost, Offload: true},
		"netfilter call":     {Link: lab.LinkHostBridge, NetfilterCall: true},
		"unknown link mode ": {Link: "token-ring"},
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
