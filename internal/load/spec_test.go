// SPDX-License-Identifier: Apache-2.0

package load

import (
	"net/netip"
	"testing"
	"time"

	"mustang/internal/testkit"
)

// TestSpecValidate checks that specs that make no sense are refused.
func TestSpecValidate(t *testing.T) {
	good := Spec{Workload: TCPRR, Target: netip.MustParseAddrPort("127.0.0.1:1"), Duration: time.Second}
	err := good.Validate()
	testkit.Check(t, err == nil, "good spec: %v", err)
	for name, spoil := range map[string]func(*Spec){
		"delay":      func(s *Spec) { s.Delay = MaxDelay + 1 },
		"delay, crr": func(s *Spec) { s.Workload, s.Delay = TCPCRR, 1 },
		"workload":   func(s *Spec) { s.Workload = "sctp" },
		"no target":  func(s *Spec) { s.Target = netip.AddrPort{} },
		"port 0":     func(s *Spec) { s.Target = netip.MustParseAddrPort("[::1]:0") },
		"flows":      func(s *Spec) { s.Workload, s.Flows = TCPStream, MaxFlows+1 },
		"rr flows":   func(s *Spec) { s.Flows = 2 },
		"negative":   func(s *Spec) { s.Workload, s.Flows = TCPStream, -1 },
		"limit":      func(s *Spec) { s.Workload, s.Flows, s.Limit = UDPStream, 3, 2 },
		"limit, tcp": func(s *Spec) { s.Workload, s.Limit = TCPStream, 2 },
		"duration":   func(s *Spec) { s.Duration = -1 },
		"warmup":     func(s *Spec) { s.Warmup = -1 },
		"stall":      func(s *Spec) { s.Stall = -1 },
		"small":      func(s *Spec) { s.Size = MinDatagram - 1 },
		"large":      func(s *Spec) { s.Size = MaxDatagram + 1 },
		"settle":     func(s *Spec) { s.Settle = 1 },
		"window":     func(s *Spec) { s.Window, s.Rate = 1, 1 },
		"pace":       func(s *Spec) { s.Workload, s.Pace = TCPCRR, 2 },
		"reverse":    func(s *Spec) { s.Reverse = true },
	} {
		spec := good
		spoil(&spec)
		err := spec.Validate()
		testkit.Check(t, err != nil, "%s: no error", name)
	}
}
