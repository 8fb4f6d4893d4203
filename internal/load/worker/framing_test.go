// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"testing"

	"golang.org/x/sys/unix"

	"mustang/internal/load"
)

// TestHeader refuses invalid headers.
func TestHeader(t *testing.T) {
	for name, spoil := range map[string]func(*header){
		"":            func(*header) {},
		"protocol":    func(h *header) { h.Protocol-- },
		"no workload": func(h *header) { h.Spec.Workload = "" },
		"socket":      func(h *header) { h.Spec.Workload, h.Spec.Flows, h.Spec.Reverse = load.UDPStream, 1, false },
		"flows":       func(h *header) { h.Spec.Flows = load.MaxFlows + 1 },
		"rr flows":    func(h *header) { h.Spec.Workload, h.Spec.Reverse = load.TCPRR, false },
		"stall":       func(h *header) { h.Spec.Stall = -1 },
		"window":      func(h *header) { h.Spec.Window = 1 },
		"request":     func(h *header) { h.Spec.Request = -1 },
		"response":    func(h *header) { h.Spec.Response++ },
		"delay":       func(h *header) { h.Spec.Delay = 1 },
		"reverse":     func(h *header) { h.Spec.Workload, h.Spec.Flows = load.TCPRR, 1 },
	} {
		h := newHeader(load.Spec{Workload: load.TCPStream, Flows: load.MaxFlows, Request: 100, Response: 1 << 20, Stall: 7,
			Reverse: true, Namespace: "/run/netns/x"})
		if spoil(&h); (h.check(unix.SOCK_STREAM) == nil) != (name == "") || h.Spec.Namespace != "" {
			t.Errorf("%q: %+v, %v", name, h, h.check(unix.SOCK_STREAM))
		}
	}
}
